"""Steps that change a table's definition, as values; `lakestore.model.alteration` applies them.

- Columns are identified by id, and ids are never reused: a dropped name that is added again is another column.
- A new set of columns is a new schema version, and so is another partitioning or sort order of the lake. Other options
  alone are not.
- A default for existing rows is Iceberg's `initial-default`, which needs a lake of format version 3.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakestore.errors import Invalid
from lakestore.limits import TYPE_CHARS_MAX
from lakestore.model import outside_values
from lakestore.model.contract.document import DOCUMENT_CHARS_MAX
from lakestore.model.merge_engines import Merge
from lakestore.model.retention import Retention, parse_retention
from lakestore.model.shapes import DEFAULT_CHARS_MAX
from lakestore.model.ttl import Ttl, parse_ttl, seconds

UNCHANGED = "unchanged"
"""The value of an option that a step does not set."""
LAKE_SETTABLE = (
    "freshness",
    "target_file_bytes",
    "snapshots",
    "snapshot_seconds",
    "upkeep_percent",
    "upkeep_files",
    "committers",
    "partition_by",
    "sort_by",
    "z_order_by",
)
"""Options of the lake that can be changed."""
STEPS_MAX = 10_000
"""Steps of one alteration."""
_ASIDE = "lakestore_renaming_"


@dataclass(frozen=True, slots=True)
class Option:
    """A changeable option of a table."""

    field: str
    """The field of `Table`."""
    read: Callable[[Any], Any]
    """Parses the user's value."""


def _as_said(value: Any) -> Any:
    return value


OPTIONS: dict[str, Option] = {
    "retention": Option("retention", parse_retention),
    "deletes": Option("deletes", _as_said),
    "skip_unchanged": Option("skip_unchanged", _as_said),
    "ttl": Option("ttl", parse_ttl),
    "tombstone_ttl": Option("tombstone_seconds", lambda value: seconds(value, "tombstone_ttl")),
}
"""By the names of `create_table`, without `LAKE_SETTABLE`."""


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A new column, at the end unless `first` or `after` is set."""

    name: str
    type: str
    required: bool = False
    default: Any = None
    """The value for existing rows and for rows that do not name the column."""
    new_rows_only: bool = False
    """The default applies to new rows only: existing rows show null."""
    first: bool = False
    after: str = ""


@dataclass(frozen=True, slots=True)
class DropColumn:
    """Drop a column and its values."""

    name: str


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Another name for the same column."""

    name: str
    to: str


@dataclass(frozen=True, slots=True)
class WidenColumn:
    """A type that holds every value of the old one."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class MoveColumn:
    """Another position among the columns."""

    name: str
    first: bool = False
    after: str = ""


@dataclass(frozen=True, slots=True)
class MakeOptional:
    """The column may be null from now on."""

    name: str


@dataclass(frozen=True, slots=True)
class SetDefault:
    """Another default for new rows; None for none."""

    name: str
    default: Any = None


@dataclass(frozen=True, slots=True)
class SetOptions:
    """Options of the table; they make no new schema version."""

    lake: dict[str, Any] = field(default_factory=dict)
    """Options of `LAKE_SETTABLE`."""
    retention: Any = UNCHANGED
    """The time as `create_table` takes it; None keeps everything."""
    deletes: Any = UNCHANGED
    """allow, ignore or refuse."""
    skip_unchanged: Any = UNCHANGED
    """True or false."""
    ttl: Any = UNCHANGED
    """The rule as `create_table` takes it; None: rows do not expire."""
    tombstone_ttl: Any = UNCHANGED
    """The time as `create_table` takes it."""
    merge: Any = UNCHANGED
    """Another merge engine is refused, because the existing rows were merged by the present one."""


DocumentText = str


@dataclass(frozen=True, slots=True)
class SetContract:
    """Another contract, or none. It is bound to the columns after all steps of the alteration."""

    document: DocumentText
    """The text of the file; empty: the table has no contract any more."""
    object: str = ""
    """The name of the table's entry in the document's `schema`."""
    why: str = ""
    """The reason, for the audit."""


Step = (
    AddColumn
    | DropColumn
    | RenameColumn
    | WidenColumn
    | MoveColumn
    | MakeOptional
    | SetDefault
    | SetOptions
    | SetContract
)
"""One change of a definition."""
_KINDS: dict[str, type[Step]] = {
    "add": AddColumn,
    "drop": DropColumn,
    "rename": RenameColumn,
    "widen": WidenColumn,
    "move": MoveColumn,
    "optional": MakeOptional,
    "default": SetDefault,
    "options": SetOptions,
    "contract": SetContract,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_json(steps: Iterable[Step]) -> str:
    """Steps in their wire form."""
    said = [{"step": _NAMES[type(step)], **_said(step)} for step in steps]
    return json.dumps(said, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    """A default or an option in Python notation."""
    if isinstance(value, Ttl):
        return {"column": value.column, "after": value.seconds}
    if isinstance(value, Merge):
        return value.as_data()
    if isinstance(value, Retention):
        amounts = {"age": value.age_seconds, "bytes": value.bytes}
        return {name: amount for name, amount in amounts.items() if amount is not None}
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _said(step: Step) -> dict[str, Any]:
    """The fields that differ from a step's defaults."""
    said = {part.name: getattr(step, part.name) for part in dataclasses.fields(step)}
    for part in dataclasses.fields(step):
        if part.default is not dataclasses.MISSING and said[part.name] == part.default:
            del said[part.name]
    return said


def from_json(text: str) -> list[Step]:
    """The steps that `to_json` wrote, or `Invalid`."""
    return outside_values.list_of(_step, STEPS_MAX)(outside_values.json_of(text, "the alteration"), "the alteration")


def _step(data: Any, place: str) -> Step:
    if not isinstance(data, dict) or not isinstance(data.get("step"), str) or data["step"] not in _KINDS:
        raise Invalid(f"{place} has no step of {', '.join(_KINDS)}")
    kind = _KINDS[data["step"]]
    said = {name: value for name, value in data.items() if name != "step"}
    made: Step = kind(**_SHAPES[kind](said, place))
    return made


def _shape(kind: type[Step]) -> outside_values.Reader[dict[str, Any]]:
    """The reader of a step's fields; fields without a default are required."""
    parts = dataclasses.fields(kind)
    needed = [part.name for part in parts if _is_needed(part)]
    return outside_values.record({part.name: _READERS[str(part.type)] for part in parts}, needed)


def _is_needed(part: dataclasses.Field[Any]) -> bool:
    return part.default is dataclasses.MISSING and part.default_factory is dataclasses.MISSING


_READERS: Mapping[str, outside_values.Reader[Any]] = {
    "str": outside_values.text(TYPE_CHARS_MAX),
    "bool": outside_values.boolean,
    "DocumentText": outside_values.text(DOCUMENT_CHARS_MAX),
    "Any": outside_values.plain(DEFAULT_CHARS_MAX, depth_max=4),
    "dict[str, Any]": outside_values.mapping(outside_values.plain(DEFAULT_CHARS_MAX, depth_max=2), 64, 64),
}
"""By the type of a step's field."""
_SHAPES = {kind: _shape(kind) for kind in _KINDS.values()}


def renames(mapping: Mapping[str, str]) -> list[Step]:
    """All renames at once: names may be swapped."""
    if not set(mapping) & set(mapping.values()):
        return [RenameColumn(old, new) for old, new in mapping.items()]
    aside = [RenameColumn(old, f"{_ASIDE}{i}") for i, old in enumerate(mapping)]
    return [*aside, *(RenameColumn(f"{_ASIDE}{i}", new) for i, new in enumerate(mapping.values()))]


__all__ = [
    "UNCHANGED",
    "AddColumn",
    "DropColumn",
    "MakeOptional",
    "MoveColumn",
    "RenameColumn",
    "SetContract",
    "SetDefault",
    "SetOptions",
    "Step",
    "WidenColumn",
    "renames",
]
