"""Kafka in: a declarative bridge from topics to tables, exactly once, nothing silently dropped.

A block of records goes one way: `lane` (consumer, batches) -> `framing` -> `formats` (a decoder each) -> `mapping`
(route, columns, filter, casts) -> `lane` (one commit: rows, dead letters and progress). Between them all is values in,
values out, vectorised over a block: `records` on the way in, `outcome` on the way out, `spec` as bridge.yaml says.
Each record ends in a table, in a table's dead letters, or in a count that somebody asked for; never nowhere.
`config` reads the file, `assembly` puts a topic's way together, `survey` looks before it runs, `letters` takes dead
letters back in. Rooms import downwards only, in the order of tests/support/house.py. Only `lane.source`,
`survey.cluster` and `schemas.registry` import the Kafka library. Not here: the sink, command lines (`cli`).
"""
