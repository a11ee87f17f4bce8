"""The client: a lake, its tables, writers, change streams and look-ups.

`Connection` is what the tables of a lake share; everything goes through a `Transport`, over gRPC or to a server in this
process, and nothing above asks which one. Every call is safe to send again: commits carry a sequence, acknowledgements
move a position, streams go on at a token. Errors decide by type, never by their words.
Not here: reading of rows at a cut (`union`), events for other systems (`connectors`), anything of the server.
"""
