"""The Iceberg catalog: metadata as plain JSON, a gate for our tables, a ledger on the journal. No HTTP here.

A pointer (table to metadata file) moves by compare-and-set in a journal record, after the file is durable. Several
tables commit together or not at all. Tables that are not ours are free; ours change only over `gate`: main moves over
tier commits, which prove by epoch, tier point and live sums that lake and log agree, and over `replace` snapshots
that keep the live rows. Other engines may compact and expire, for rows are found by number and not by file.

A table's schema in the lake changes in the commit of the first flush that needs the new version. Spark writes only a
table's current schema, so the catalog also shows a lake table as `orders$3`, as if main had version 3 already; nobody
lists or stores such a table. `tables` and `tierer_epoch` are the verbs of definitions and of the one tierer.
"""
