"""Kafka in: a declarative bridge from topics to tables, exactly once, nothing silently dropped.

A block of records goes one way: `source` (consumer, partitions) -> `wire` (framing) -> `formats` (a decoder each) ->
`mapping` (route, columns, filter, casts) -> `writing` (one commit: rows, dead letters and progress). `spec` is what
bridge.yaml says. Everything between source and writing is values in, values out, vectorised over a block.
Each record ends in a table, in a table's dead letters, or in a count that somebody asked for; never nowhere.
`spec_file` reads the file, `assembly` puts a bridge together, `check` looks before it runs, `replay` takes dead letters
back in. Only `source`, `cluster` and `registry` import the Kafka library. Not here: the sink, command lines (`cli`).
"""
