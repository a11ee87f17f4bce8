"""The client: a lake, its tables, writers, change streams and look-ups.

- Everything goes through a `Transport`, over gRPC or to a server in this process. Code above does not know which one.
- Every call is safe to repeat: commits carry a sequence, acknowledgements move a position, streams continue at a token.
- Errors are distinguished by type, never by text.

`Connection` is shared by the tables of a lake. Reading rows at a cut is in `union`, events for other systems in
`kafka`.
"""
