"""Names and versions of the protocol, and errors as gRPC metadata."""
