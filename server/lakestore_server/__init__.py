"""The server: journal, segments, index, commit loop, gRPC services, REST catalog, metrics."""
