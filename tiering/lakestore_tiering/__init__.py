"""The tiering service: flush, position deletes, compaction and expiry with Iceberg's Spark runtime.

- The lake's main is the table as of its tier point, bucket by bucket.
- A round commits the rows up to a new tier point and the deaths below it together. The catalog checks the live sum, so
  a lost or doubled row is refused.
- Everything else is disposable: branches of an ended epoch are swept, an interrupted round is repeated, and file
  indexes are read again.
- Commits of other engines carry no record and change no rows.

`service` runs rounds while it holds the `epoch`. `flush`, `compact` and `orphans` are the steps of a round and share
the tools in `round`. Only `iceberg_java` talks to the JVM. `record` is the metadata in our snapshots. Reading the lake
belongs to `lakestore_spark` and `lakestore.union`, the rules of a commit to the catalog's gate.
"""

from lakestore_tiering.service import Outcome, Tierer

__all__ = ["Outcome", "Tierer"]
