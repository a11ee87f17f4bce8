"""Kafka in both directions: the bridge reads topics into tables, the sink writes changes to topics.

- Both are clients of the public API.
- Writes are exactly once: a position commits together with its rows or events.
- `client` connects to Kafka and translates the library's errors.

Not here: change streams (`lakestore.client`), command lines (`cli`).
"""
