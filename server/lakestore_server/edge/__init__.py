"""The ports: gRPC, HTTP with the Iceberg REST routes, OAuth, TLS and the console. Technology ends here.

A port admits a call by `access`, bounds its size and its time, hands it to a verb of `service` or of the catalog, and
turns errors into answers of its protocol. Nothing about data is decided here.

A body or a message is decoded only after its sender is known. Each boundary catches every defect once: a client gets
a typed error, never a traceback. Files of TLS and rights that change are used without a restart; files that cannot be
used leave the last good ones in force.
"""
