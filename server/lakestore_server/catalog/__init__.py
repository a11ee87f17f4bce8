"""The Iceberg catalog: metadata as plain JSON, a gate for our tables, a ledger on the journal. No HTTP here.

- A pointer (table to metadata file) moves by compare-and-set in a journal record, after the file is durable. Several
  tables commit together or not at all.
- Foreign tables are free. Our tables change only through `gate`: main moves over tier commits, which prove by epoch,
  tier point and live sums that lake and log agree, and over `replace` snapshots that keep the live rows.
- Other engines may compact and expire, because rows are found by offset and not by file.

A lake table's schema changes in the first flush that needs the new version. Spark writes only a table's current schema,
so the catalog also serves `orders$3`, the table as if main had version 3. It is neither listed nor stored. `tables` and
`tierer_epoch` are the verbs of definitions and of the one tierer.
"""
