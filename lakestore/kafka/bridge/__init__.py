"""The bridge reads Kafka topics into tables, exactly once.

A block of records passes `gathering` (batches), `framing`, a decoder of `decode`, `map` (route, columns, filter, casts)
and `commit` (one commit with rows, dead letters and progress). `records` describes a block, `outcome` the results,
`spec` the file bridge.yaml.

- Every record ends in a table, in a table's dead letters, or in a count.
- Steps take values and return values, vectorised over a block.
- Only `source`, `cluster` and `decode.registry` import the Kafka library.
"""
