"""The tiering service: flush, position deletes, compaction, expiry, by Iceberg's own Spark runtime.

`service` runs rounds while it holds the `epoch`, and knows the `troubles` of tables; `flush`, `compact`, `expire` and
`orphans` are the steps of a round, and share what `round` holds. `iceberg_java` alone talks to the JVM; `record` is
what our snapshots say of themselves.
The theory: the lake's main is the table as of its tier point, bucket by bucket. A round brings the rows up to a new
tier point and the deaths below it in one commit, whose live sum the catalog checks: a lost or doubled row is refused.
Everything else can be lost: branches of an ended epoch are swept, an interrupted round is done again, and indexes of
files (`dead_rows`, `live_files`) are read again. Another engine's commits carry no record and change no rows.
Reading the lake belongs to `lakestore_spark` and `lakestore.union`, the rules of a commit to the catalog's gate.
"""

from lakestore_tiering.service import Outcome, Tierer

__all__ = ["Outcome", "Tierer"]
