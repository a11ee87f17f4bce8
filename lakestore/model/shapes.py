"""JSON shapes of definitions and their parts. Rules about several fields are in `table.check`."""

from __future__ import annotations

from lakestore.limits import TYPE_CHARS_MAX, WIDEST
from lakestore.model import outside_values
from lakestore.model.contract import document

DEFAULT_CHARS_MAX = 64 << 10
"""Characters of a column's default, which is stored in every row that does not name the column."""
SECONDS_MAX = 10_000 * 366 * 86_400
"""The longest span of time; longer than any between two times of a column."""
_NAME = outside_values.text(WIDEST.name_chars)
_NAMES = outside_values.list_of(_NAME, WIDEST.columns)
_FIELD = outside_values.text(2 * WIDEST.name_chars)
"""A partition or sort field: column name and transform."""
_ID = outside_values.integer(0, (1 << 31) - 1)
_LONG = outside_values.integer(0)
_SECONDS = outside_values.integer(0)
_VALUE = outside_values.scalar(DEFAULT_CHARS_MAX)
COLUMN = outside_values.record(
    {
        "id": _ID,
        "name": _NAME,
        "type": outside_values.text(TYPE_CHARS_MAX),
        "required": outside_values.boolean,
        "nested": outside_values.list_of(_ID, WIDEST.nested_fields),
        "default": _VALUE,
        "initial": _VALUE,
    },
    required=("id", "name", "type"),
)
LAKE = outside_values.record(
    {
        "freshness": outside_values.text(32),
        "partition_by": outside_values.list_of(_FIELD, WIDEST.columns),
        "sort_by": outside_values.list_of(_FIELD, WIDEST.columns),
        "format_version": outside_values.integer(),
        "target_file_bytes": outside_values.integer(1),
        "snapshots": outside_values.integer(1),
        "snapshot_seconds": _SECONDS,
        "catalog": outside_values.text(64),
        "upkeep_percent": outside_values.integer(1, 100),
        "upkeep_files": outside_values.integer(1),
        "committers": outside_values.text(32),
        "adopted": outside_values.boolean,
        "z_order_by": outside_values.list_of(_FIELD, WIDEST.columns),
    }
)
DEFINITION = outside_values.record(
    {
        "name": outside_values.text(2 * WIDEST.name_chars + 1),
        "columns": outside_values.list_of(COLUMN, WIDEST.columns),
        "primary_key": _NAMES,
        "buckets": outside_values.integer(),
        "bucket_key": _NAMES,
        "merge": outside_values.plain(TYPE_CHARS_MAX, depth_max=3),
        "lake": LAKE,
        "uuid": outside_values.text(64),
        "number": _LONG,
        "schema_id": _LONG,
        "last_column_id": _LONG,
        "retention": outside_values.optional(
            outside_values.record(
                {"age_seconds": outside_values.optional(_SECONDS), "bytes": outside_values.optional(_LONG)}
            )
        ),
        "deletes": outside_values.text(32),
        "skip_unchanged": outside_values.boolean,
        "ttl": outside_values.optional(
            outside_values.record({"column": _NAME, "seconds": _SECONDS}, required=("column", "seconds"))
        ),
        "tombstone_seconds": _SECONDS,
        "former": outside_values.list_of(outside_values.text(64), 1_000),
        "contract": outside_values.optional(document.SHAPE),
        "old_names": outside_values.list_of(
            outside_values.record({"name": _NAME, "id": _LONG, "until_us": _LONG}, required=("name", "id", "until_us")),
            WIDEST.columns,
        ),
    },
    required=("name", "columns", "primary_key", "buckets", "bucket_key", "merge", "lake"),
)
