"""What the server's files hold, described offline: one module for each format."""
