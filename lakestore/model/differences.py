"""The first difference of two definitions of one table, in words."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from lakestore.model.columns import Column
from lakestore.model.table import Table
from lakestore.model.types import arrow_type

_OPTIONS = ("primary_key", "buckets", "bucket_key", "merge", "retention", "deletes", "skip_unchanged", "ttl")


def difference(there: Table, wanted: Table) -> str:
    """The difference of a table from a wanted one, leaving aside what servers give; empty for none."""
    return _of_options(there, wanted) or _of_columns(there, wanted)


def _of_options(there: Table, wanted: Table) -> str:
    for name in _OPTIONS:
        if getattr(there, name) != getattr(wanted, name):
            return f"its {name} is {_shown(getattr(there, name))}, not {_shown(getattr(wanted, name))}"
    if there.tombstone_seconds != wanted.tombstone_seconds:
        return f"its tombstone_ttl is {there.tombstone_seconds} s, not {wanted.tombstone_seconds} s"
    for each in fields(there.lake):
        old, new = getattr(there.lake, each.name), getattr(wanted.lake, each.name)
        if old != new:
            return f"its lake option {each.name} is {_shown(old)}, not {_shown(new)}"
    return ""


def _of_columns(there: Table, wanted: Table) -> str:
    columns, asked = {column.name: column for column in there.columns}, {column.name for column in wanted.columns}
    for column in wanted.columns:
        if column.name not in columns:
            return f"it has no column {column.name!r}"
        if told := _of_column(columns[column.name], column):
            return told
    for name in columns:
        if name not in asked:
            return f"it has a column {name!r} as well"
    if list(columns) != [column.name for column in wanted.columns]:
        return f"its columns are in the order {', '.join(columns)}"
    return ""


def _of_column(there: Column, wanted: Column) -> str:
    if arrow_type(there.type) != arrow_type(wanted.type):
        return f"its column {there.name!r} is {there.type}, not {wanted.type}"
    if there.required != wanted.required:
        return f"its column {there.name!r} is {'required' if there.required else 'optional'}"
    if there.default != wanted.default:
        return f"its column {there.name!r} has the default {there.default!r}, not {wanted.default!r}"
    return ""


def _shown(value: Any) -> str:
    return "not set" if value is None or value == () else str(value)
