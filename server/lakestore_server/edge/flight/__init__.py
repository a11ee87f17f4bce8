"""The Flight SQL port: Arrow's protocol for drivers (ADBC, Arrow JDBC) over the query service.

- The port is gRPC, so it is a second `RpcPort`: limits before authentication, TLS and tokens are the gRPC port's.
- `messages` and `catalog_tables` are values in, values out; `verbs` decides; `port` has the connections.
- Batches of a query process leave as the bytes that came through its pipe. No row is decoded here.
"""
