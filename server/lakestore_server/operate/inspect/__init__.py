"""Reports on the server's files, made offline: one module for each format."""
