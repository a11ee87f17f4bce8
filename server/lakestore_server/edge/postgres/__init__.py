"""The Postgres protocol, version 3: a port for drivers that have no engine.

- `messages`, `session` and what they call have no socket and no thread: bytes come in, bytes and questions go out.
- The query service answers the questions. Rows come from it as ready messages, and pass through.
- The port only reads. A statement that writes is answered by one sentence that names the doors that write.
"""
