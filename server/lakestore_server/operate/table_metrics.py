"""Metrics of tables: log, lake, retention and expiry of each."""

from __future__ import annotations

from lakestore_server.operate.metric_sources import (
    Family,
    expiring,
    held,
    in_lake,
    lag,
    of_tables,
    overdue,
    reclaimed,
    tier_failures,
)

FAMILIES = (
    Family("lakestore_table_rows", "gauge", "Live rows.", of_tables(lambda table: table.rows), ("table",)),
    Family(
        "lakestore_table_stored_rows",
        "gauge",
        "Rows in the server's files and memory: live ones, those that the log still tells of, and dead ones.",
        of_tables(lambda table: table.stored_rows),
        ("table",),
    ),
    Family(
        "lakestore_compaction_rows",
        "counter",
        "Superseded rows that local compaction dropped.",
        lambda m: m.upkeep.checkpointer.compactions.rows,
    ),
    Family(
        "lakestore_compaction_segments",
        "counter",
        "Segments that it rewrote.",
        lambda m: m.upkeep.checkpointer.compactions.segments,
    ),
    Family("lakestore_compaction_reclaimed_bytes", "counter", "What that made smaller.", reclaimed, ("table",)),
    Family(
        "lakestore_table_hot_offsets",
        "gauge",
        "Offsets that the lake does not have yet.",
        of_tables(lambda table: table.hot),
        ("table",),
    ),
    Family(
        "lakestore_table_lake_files",
        "gauge",
        "Data files of the newest snapshot in the lake.",
        in_lake(lambda lake: lake.files),
        ("table",),
    ),
    Family(
        "lakestore_table_lake_delete_files",
        "gauge",
        "Files of deletes there, deletion vectors among them.",
        in_lake(lambda lake: lake.delete_files),
        ("table",),
    ),
    Family(
        "lakestore_table_lake_deleted_rows",
        "gauge",
        "Rows of those data files that are deleted by position: what compaction has to clear away.",
        in_lake(lambda lake: lake.deleted_rows),
        ("table",),
    ),
    Family(
        "lakestore_table_tier_lag_seconds",
        "gauge",
        "Age of the oldest change that the lake does not have; 0 if it has all.",
        lag,
        ("table",),
    ),
    Family(
        "lakestore_table_tier_failures",
        "gauge",
        "Rounds of tiering that failed in a row, as the tierer says; 0 after one that did not.",
        tier_failures,
        ("table",),
    ),
    Family(
        "lakestore_retention_held_bytes",
        "gauge",
        "Log beyond its retention that somebody holds.",
        held,
        ("table", "by"),
    ),
    Family(
        "lakestore_rows_expired",
        "counter",
        "Rows that a table's TTL has deleted.",
        lambda m: ((labels, figures.expired) for labels, figures in expiring(m)),
        ("table",),
    ),
    Family(
        "lakestore_expiry_overdue_seconds",
        "gauge",
        "For how long rows may have been due to expire; high where nothing can be written, or the clock jumped.",
        overdue,
        ("table",),
    ),
)
"""The families, in the order of the page."""
