"""The ports: gRPC, and HTTP with the Iceberg REST routes, OAuth, TLS and the console.

- A port admits a call through `access`, bounds its size and time, passes it to a verb of `service` or of the catalog,
  and turns errors into its protocol's answers. Ports decide nothing about data.
- A body or message is decoded only after its sender is known.
- Each boundary catches every defect once: a client gets a typed error, never a traceback.
- Changed TLS and auth files are used without a restart; if they cannot be used, the last good ones stay in force.
"""
