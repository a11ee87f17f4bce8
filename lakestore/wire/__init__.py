"""The protocol between client and server: RPCs with their versions, errors as metadata, gRPC itself.

The proto file is the source: methods are read from its descriptor, and a field or an RPC has the protocol that it came
with. Only `wire.grpc` imports gRPC. Not here: clients and servers (`client`, `lakestore_server.edge`).
"""
