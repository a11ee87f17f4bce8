"""Union reads: the rows of tables at one cut, out of the lake and the log behind it.

A plan names per table the lake snapshot, the offsets in it that are dead, and the hot ranges of the log; a lease holds
all of it. The Arrow executor reads plans in batches of bounded size; `sql` puts DuckDB over it, `verify` compares what
log, index, lake and reads say. Spark reads the same plans in `lakestore_spark`.
Rows are told apart by bucket and offset, never by key. Not here: who connects, and how (`client`).
"""
