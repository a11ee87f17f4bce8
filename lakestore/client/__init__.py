"""The client: one code over gRPC or inside the server's process."""
