"""Union reads: the rows of tables at one cut, from the lake and from the log behind it.

- A plan names, for each table, the lake snapshot, its dead offsets and the hot ranges of the log. A lease keeps all of
  it readable.
- `arrow` executes plans in batches of bounded size. `sql` puts DuckDB on top. `verify` compares log, index, lake and
  reads. Spark executes the same plans in `lakestore_spark`.
- A row version is identified by bucket and offset, never by its key.

Connections are not made here but in `client`.
"""
