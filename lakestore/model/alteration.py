"""Applies steps of `lakestore.evolution` to a definition, or names the violated rule.

Columns of the primary or bucket key are never widened, because buckets and index depend on their bytes. Key, partition
and sort columns are never dropped. Every column may be renamed. Another partitioning or sort order is a new version:
a file's version says its layout.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from functools import singledispatch
from typing import Any, NamedTuple

from lakestore.errors import Invalid
from lakestore.evolution import (
    LAKE_SETTABLE,
    OPTIONS,
    UNCHANGED,
    AddColumn,
    DropColumn,
    MakeOptional,
    MoveColumn,
    RenameColumn,
    SetContract,
    SetDefault,
    SetOptions,
    Step,
    WidenColumn,
)
from lakestore.limits import DEFAULT, Limits
from lakestore.model import columns, times
from lakestore.model import table as schema
from lakestore.model.columns import Column, OldName
from lakestore.model.contract import deletes
from lakestore.model.contract.contract import Contract
from lakestore.model.contract.event_time import TIME_TYPE
from lakestore.model.contract.late_data import time_columns
from lakestore.model.defaults import canonical
from lakestore.model.merge_engines import parse_merge
from lakestore.model.nested_fields import Editor, path_of
from lakestore.model.outside_values import excerpt
from lakestore.model.table import Table
from lakestore.model.ttl import seconds
from lakestore.model.types import DECIMAL, arrow_type

Freshness = str | int | float | timedelta
"""A span of time: `60s`, `5m`, seconds, a timedelta."""
Through = str | datetime
"""A time with a zone, or a text, which is UTC without a zone."""
_SPAN_US_MAX = 1 << 56
_FEED = re.compile(r"(?:[^/]+/)?complete/(?P<table>[^/.]+\.[^/.]+)/(?P<feed>.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Requirement:
    """The demands of a read on its data; zero demands nothing."""

    through_us: int = 0
    """The data must be complete through this time, in microseconds since 1970."""
    freshness_us: int = 0
    """The data must be complete through the server's time minus this, in microseconds."""
    wait_seconds: float = 0.0
    """Seconds that a read of the head may wait for it."""

    @staticmethod
    def of(freshness: Freshness | None, through: Through | None, wait_seconds: float = 0.0) -> Requirement | None:
        """Parse a user's requirement; None if nothing is required."""
        if freshness is None and through is None:
            return None
        asked = 0 if through is None else max(_through_us(through), 1)
        return Requirement(asked, 0 if freshness is None else _span_us(freshness), wait_seconds)

    def as_of(self, now_us: int) -> Requirement:
        """The requirement with its freshness resolved at this time of the server."""
        if not self.freshness_us:
            return self
        return Requirement(max(self.through_us, now_us - self.freshness_us), 0, self.wait_seconds)


class FeedName(NamedTuple):
    """A table and one of its feeds."""

    table: str
    feed: str


def feed_of(register: str) -> FeedName | None:
    """The feed of a register, also of a principal's own; None for other registers."""
    found = _FEED.fullmatch(register) if "complete/" in register else None
    return FeedName(found["table"], found["feed"]) if found else None


def _through_us(through: Any) -> int:
    found = times.micros_of(times.position_text(through))
    if found is None:
        raise Invalid(f"require_complete_through {excerpt(str(through))} is not a time such as '2026-11-20T10:00Z'")
    return found


def _span_us(freshness: Any) -> int:
    said = Invalid(
        f"require_freshness {excerpt(str(freshness))} is not a span of time above zero such as '60s' or '5m'"
    )
    if isinstance(freshness, timedelta):
        found = freshness // timedelta(microseconds=1)
    elif isinstance(freshness, str):
        try:
            found = seconds(freshness, "require_freshness") * 1_000_000
        except Invalid as error:
            raise said from error
    elif isinstance(freshness, (int, float)) and not isinstance(freshness, bool) and 0 < freshness < _SPAN_US_MAX:
        found = round(freshness * 1_000_000)
    else:
        raise said
    if not 0 < found <= _SPAN_US_MAX:
        raise said
    return found


_OPTIONS = ("primary_key", "buckets", "bucket_key", "merge", "retention", "deletes", "skip_unchanged", "ttl")


def difference(table: Table, wanted: Table) -> str:
    """The difference between a table and a wanted one, ignoring values that servers assign; empty for none."""
    return _of_options(table, wanted) or _of_columns(table, wanted)


def _of_options(table: Table, wanted: Table) -> str:
    for name in _OPTIONS:
        if getattr(table, name) != getattr(wanted, name):
            return f"its {name} is {_shown(getattr(table, name))}, not {_shown(getattr(wanted, name))}"
    if table.tombstone_seconds != wanted.tombstone_seconds:
        return f"its tombstone_ttl is {table.tombstone_seconds} s, not {wanted.tombstone_seconds} s"
    for each in fields(table.lake):
        old, new = getattr(table.lake, each.name), getattr(wanted.lake, each.name)
        if each.name == "catalog" and (not new or {old, new} == {"", columns.OWN_CATALOG}):
            continue  # the server has chosen a catalog for a definition without one
        if old != new:
            return f"its lake option {each.name} is {_shown(old)}, not {_shown(new)}"
    return ""


def _of_columns(table: Table, wanted: Table) -> str:
    columns, asked = {column.name: column for column in table.columns}, {column.name for column in wanted.columns}
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


def _of_column(column: Column, wanted: Column) -> str:
    if arrow_type(column.type) != arrow_type(wanted.type):
        return f"its column {column.name!r} is {column.type}, not {wanted.type}"
    if column.required != wanted.required:
        return f"its column {column.name!r} is {'required' if column.required else 'optional'}"
    if column.default != wanted.default:
        return f"its column {column.name!r} has the default {column.default!r}, not {wanted.default!r}"
    return ""


def _shown(value: Any) -> str:
    return "not set" if value is None or value == () else str(value)


_PROMOTIONS = {
    "int8": ("int16", "int32", "int64"),
    "int16": ("int32", "int64"),
    "int32": ("int64",),
    "uint8": ("uint16", "uint32", "int16", "int32", "int64"),
    "uint16": ("uint32", "int32", "int64"),
    "uint32": ("int64",),
    "float32": ("float64",),
}
_SORTED_COLUMN = re.compile(r"\s*(\w+)")
_PARTITIONED_COLUMN = re.compile(r"(\w+)\s*\)?\s*$")


def apply_steps(table: Table, steps: Sequence[Step], limits: Limits = DEFAULT) -> Table:
    """The definition after the steps. Raises `Invalid` with the column and the rule. Equal if nothing changes."""
    changed = table
    for step in steps:
        changed = _applied(step, changed)
    if changed.contract is not None and changed.contract != table.contract:
        changed = bind_contract(changed)
    if _is_another_version(changed, table):
        changed = replace(changed, schema_id=table.schema_id + 1)
    schema.check(changed, limits)
    return changed


def bind_contract(table: Table) -> Table:
    """The table with its contract bound to the ids of its columns, and with the columns of the contract's times."""
    contract = table.contract
    assert contract is not None
    names = {column.name for column in table.columns}
    for name in time_columns(contract):
        if name not in names:
            table = _applied(AddColumn(name, TIME_TYPE), table)
    return replace(table, contract=contract.bind(table))


def _is_another_version(changed: Table, table: Table) -> bool:
    """Whether rows after the change are read or checked in another way than rows before it."""
    same = changed.columns == table.columns and layout(changed) == layout(table)
    return not same or changed.contract != table.contract


def with_old_names(before: Table, made: Table, now_us: int) -> Table:
    """`made`, an alteration of `before` at a time, with the names that queries may still use for renamed columns.

    A contract without `oldNames` has none, so they end with it. Raises `Invalid` for a new column with such a name.
    """
    seconds = made.contract.schema_changes.old_names_seconds if made.contract else 0
    if not seconds:
        return replace(made, old_names=()) if made.old_names else made
    columns, names = {column.id: column for column in made.columns}, {column.name.lower() for column in made.columns}
    kept = {each.name: each for each in before.old_names}
    for column in made.columns:
        taken = kept.get(column.name)
        if taken is not None and taken.id in columns and taken.id != column.id:
            raise _refused(
                made,
                column.name,
                f"cannot have this name yet: queries use it for column {columns[taken.id].name!r} until"
                f" {times.text_of(taken.until_us)}; a contract without oldNames ends that",
            )
    for column in before.columns:
        if column.id in columns and columns[column.id].name != column.name:
            kept[column.name] = OldName(column.name, column.id, now_us + seconds * 1_000_000)
    old = [each for each in kept.values() if each.id in columns and each.name.lower() not in names]
    return replace(made, old_names=tuple(old))


def layout(table: Table) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The options that the lake table's metadata has as partition spec and sort order."""
    return table.lake.partition_by, table.lake.sort_by


@singledispatch
def _applied(step: Any, table: Table) -> Table:
    raise Invalid(f"{type(step).__name__} is not an alteration step")


@_applied.register
def _(step: AddColumn, table: Table) -> Table:
    if path := path_of(table, step.name):
        if step.required or step.default is not None:
            raise _refused_field(table, step.name, "is inside a column: it is added as optional, without a default")
        return Editor(table, path).add(step.type, first=step.first, after=step.after)
    default = canonical(step.default, step.type, step.name)
    v3 = table.lake.format_version >= 3
    if step.required and (default is None or step.new_rows_only):
        raise _refused(table, step.name, "is required and needs a default for the rows that are there: give one")
    if step.required and not v3:
        raise _refused(table, step.name, "is required, which needs lake format_version 3: add it as optional")
    if default is not None and not step.new_rows_only and not v3:
        raise _refused(
            table,
            step.name,
            "has a default for the rows that are there, which needs lake format_version 3: add it without a default,"
            " or with one for new rows only",
        )
    arrow_type(step.type)
    initial = None if step.new_rows_only else default
    plain = Column(0, step.name, step.type, step.required, default=default, initial=initial)
    new = columns.assign_ids([plain], table.last_column_id)
    changed = replace(table, columns=(*table.columns, *new), last_column_id=columns.max_id(new))
    return _moved(changed, step.name, step.first, step.after) if step.first or step.after else changed


@_applied.register
def _(step: DropColumn, table: Table) -> Table:
    if path := path_of(table, step.name):
        return Editor(table, path).drop()
    gone = table.column(step.name)
    use = _use(table, step.name)
    if use:
        raise _refused(table, step.name, f"is in the {use} and cannot be dropped")
    if len(table.columns) == 1:
        raise _refused(table, step.name, "is the only one and cannot be dropped: drop the table")
    return replace(table, columns=tuple(column for column in table.columns if column != gone))


@_applied.register
def _(step: RenameColumn, table: Table) -> Table:
    if path := path_of(table, step.name):
        return Editor(table, path).rename(step.to)
    column = table.column(step.name)
    if step.to != step.name and step.to.lower() in [c.name.lower() for c in table.columns if c != column]:
        raise _refused(table, step.name, f"cannot be called {step.to!r}: another column is")

    def name(old: str) -> str:
        return step.to if old == step.name else old

    lake = replace(
        table.lake,
        partition_by=tuple(_with_column(_PARTITIONED_COLUMN, text, name) for text in table.lake.partition_by),
        sort_by=tuple(_with_column(_SORTED_COLUMN, text, name) for text in table.lake.sort_by),
        z_order_by=tuple(map(name, table.lake.z_order_by)),
    )
    return replace(
        _with(table, replace(column, name=step.to), column),
        primary_key=tuple(map(name, table.primary_key)),
        bucket_key=tuple(map(name, table.bucket_key)),
        lake=lake,
        merge=table.merge.renamed(name),
        ttl=replace(table.ttl, column=name(table.ttl.column)) if table.ttl else None,
    )


@_applied.register
def _(step: WidenColumn, table: Table) -> Table:
    if path := path_of(table, step.name):
        return Editor(table, path).widen(arrow_type(step.type), widens)
    column = table.column(step.name)
    if arrow_type(column.type) == arrow_type(step.type):
        return table
    if not widens(column.type, step.type):
        hint = ": change the fields inside it by their paths" if column.nested else ""
        raise _refused(table, step.name, f"is {column.type}, which cannot be widened to {step.type}{hint}")
    if step.name in table.primary_key or step.name in table.bucket_key:
        raise _refused(table, step.name, "is in the key, whose bytes and buckets stay: its type cannot change")
    values = {"default": column.default, "initial": column.initial}
    wide = {name: canonical(value, step.type, step.name) for name, value in values.items()}
    return _with(table, replace(column, type=step.type, **wide), column)


@_applied.register
def _(step: MoveColumn, table: Table) -> Table:
    path = path_of(table, step.name)
    if path is None:
        table.column(step.name)
    if step.first == bool(step.after):
        raise _refused(table, step.name, "is to move: say first, or after which column")
    if path:
        return Editor(table, path).move(first=step.first, after=step.after)
    return _moved(table, step.name, step.first, step.after)


@_applied.register
def _(step: MakeOptional, table: Table) -> Table:
    if path := path_of(table, step.name):
        return Editor(table, path).make_optional()
    column = table.column(step.name)
    if step.name in table.primary_key:
        raise _refused(table, step.name, "is in the primary key and stays required")
    return _with(table, replace(column, required=False), column)


@_applied.register
def _(step: SetDefault, table: Table) -> Table:
    if path_of(table, step.name):
        raise _refused_field(table, step.name, "is inside a column and has no default of its own")
    column = table.column(step.name)
    return _with(table, replace(column, default=canonical(step.default, column.type, column.name)), column)


@_applied.register
def _(step: SetContract, table: Table) -> Table:
    if not step.document:
        return replace(table, contract=None)
    wanted = Contract(step.document, step.object or table.short_name, why=step.why)
    if table.contract is not None and (table.contract.document, table.contract.object) == (
        wanted.document,
        wanted.object,
    ):
        return table
    return deletes.obeyed(replace(table, contract=wanted))


@_applied.register
def _(step: SetOptions, table: Table) -> Table:
    said: dict[str, Any] = dict(step.lake)
    said |= {name: columns.layout_texts(name, said[name]) for name in columns.LAYOUT if name in said}
    for name, value in said.items():
        if name not in LAKE_SETTABLE:
            raise Invalid(
                f"table {table.name}: lake option {name!r} cannot be changed, only {' and '.join(LAKE_SETTABLE)}:"
                " make a new table"
            )
        if type(value) is not type(getattr(table.lake, name)):
            raise Invalid(f"table {table.name}: lake option {name!r} cannot be {excerpt(value)}")
    if step.merge != UNCHANGED and parse_merge(step.merge) != table.merge:
        raise Invalid(
            f"table {table.name}: the merge engine is {table.merge} and cannot become {parse_merge(step.merge)}:"
            " make a table of another name and copy the rows"
        )
    return replace(table, lake=replace(table.lake, **said), **_options(step))


def _options(step: SetOptions) -> dict[str, Any]:
    said = {name: getattr(step, name) for name in OPTIONS if getattr(step, name) != UNCHANGED}
    return {OPTIONS[name].field: OPTIONS[name].read(value) for name, value in said.items()}


def widens(old: str, new: str) -> bool:
    """True if every `old` value is a `new` value, in files too: Iceberg's promotions."""
    narrow, wide = DECIMAL.fullmatch(old), DECIMAL.fullmatch(new)
    if narrow and wide:
        return int(narrow[2]) == int(wide[2]) and int(narrow[1]) < int(wide[1])
    return new in _PROMOTIONS.get(old, ())


def _refused(table: Table, column: str, rule: str) -> Invalid:
    return Invalid(f"table {table.name}: column {column!r} {rule}")


def _refused_field(table: Table, field: str, rule: str) -> Invalid:
    return Invalid(f"table {table.name}: field {field!r} {rule}")


def _use(table: Table, name: str) -> str:
    uses = {
        "primary key": table.primary_key,
        "bucket key": table.bucket_key,
        "merge engine": table.merge.columns,
        "ttl": [table.ttl.column] if table.ttl else [],
        "lake's partitioning": [part.column for part in table.lake.partition_fields()],
        "lake's sort order": [*[part.column for part in table.lake.sort_fields()], *table.lake.z_order_by],
    }
    return next((use for use, names in uses.items() if name in names), "")


def _with(table: Table, column: Column, old: Column) -> Table:
    return replace(table, columns=tuple(column if c is old else c for c in table.columns))


def _moved(table: Table, name: str, first: bool, after: str) -> Table:
    column = table.column(name)
    others = [c for c in table.columns if c is not column]
    if after and (first or after == name):
        raise _refused(table, name, "has two places: say first, or after which other column")
    at = 0 if first else others.index(table.column(after)) + 1
    return replace(table, columns=(*others[:at], column, *others[at:]))


def _with_column(pattern: re.Pattern[str], text: str, name: Callable[[str], str]) -> str:
    match = pattern.search(text)
    return text[: match.start(1)] + name(match[1]) + text[match.end(1) :] if match else text
