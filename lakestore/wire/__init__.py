"""The protocol between client and server: RPCs with their versions, errors as metadata, gRPC itself.

- The proto file is the source: `rpc` reads the methods and their options from its descriptor.
- Each RPC and each newer request field has the number of the protocol that introduced it.
- Only `wire.rpc` imports gRPC. Clients are in `client`, the server's ports in `lakestore_server.edge`.
"""
