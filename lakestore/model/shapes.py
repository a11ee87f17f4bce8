"""JSON shapes of definitions and their parts. Rules about several fields are in `table.check`."""

from __future__ import annotations

from lakestore.limits import TYPE_CHARS_MAX, WIDEST
from lakestore.model import typed

DEFAULT_CHARS_MAX = 64 << 10
"""Characters of a column's default, which is stored in every row that does not name the column."""
SECONDS_MAX = 10_000 * 366 * 86_400
"""The longest span of time; longer than any between two times of a column."""
_NAME = typed.text(WIDEST.name_chars)
_NAMES = typed.list_of(_NAME, WIDEST.columns)
_FIELD = typed.text(2 * WIDEST.name_chars)
"""A partition or sort field: column name and transform."""
_ID = typed.integer(0, (1 << 31) - 1)
_LONG = typed.integer(0)
_SECONDS = typed.integer(0)
_VALUE = typed.scalar(DEFAULT_CHARS_MAX)
COLUMN = typed.record(
    {
        "id": _ID,
        "name": _NAME,
        "type": typed.text(TYPE_CHARS_MAX),
        "required": typed.boolean,
        "nested": typed.list_of(_ID, WIDEST.nested_fields),
        "default": _VALUE,
        "initial": _VALUE,
    },
    required=("id", "name", "type"),
)
LAKE = typed.record(
    {
        "freshness": typed.text(32),
        "partition_by": typed.list_of(_FIELD, WIDEST.columns),
        "sort_by": typed.list_of(_FIELD, WIDEST.columns),
        "format_version": typed.integer(),
        "target_file_bytes": typed.integer(1),
        "snapshots": typed.integer(1),
        "snapshot_seconds": _SECONDS,
    }
)
DEFINITION = typed.record(
    {
        "name": typed.text(2 * WIDEST.name_chars + 1),
        "columns": typed.list_of(COLUMN, WIDEST.columns),
        "primary_key": _NAMES,
        "buckets": typed.integer(),
        "bucket_key": _NAMES,
        "merge": typed.plain(TYPE_CHARS_MAX, depth_max=3),
        "lake": LAKE,
        "uuid": typed.text(64),
        "number": _LONG,
        "schema_id": _LONG,
        "last_column_id": _LONG,
        "retention": typed.optional(
            typed.record({"age_seconds": typed.optional(_SECONDS), "bytes": typed.optional(_LONG)})
        ),
        "deletes": typed.text(32),
        "skip_unchanged": typed.boolean,
        "ttl": typed.optional(typed.record({"column": _NAME, "seconds": _SECONDS}, required=("column", "seconds"))),
        "tombstone_seconds": _SECONDS,
    },
    required=("name", "columns", "primary_key", "buckets", "bucket_key", "merge", "lake"),
)
