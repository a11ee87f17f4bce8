"""What comes in: gRPC, HTTP, the Iceberg REST routes, OAuth, TLS, the console.

Technology ends here. A port admits a call, bounds it, and hands it to a verb; no decision about data is made here.
"""
