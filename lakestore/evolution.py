"""Steps that change a table's definition, as values; `lakestore.model.altered` applies them.

Columns are told apart by id, never by name, and ids are never used again: a name that is dropped and added anew is
another column. A new set of columns is a new schema version; options alone are not.
A default for rows that are there already is Iceberg's `initial-default`, which needs a lake of format version 3.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakestore.errors import Invalid
from lakestore.model.merge_engines import Merge
from lakestore.model.retention import Retention
from lakestore.model.retention import parsed as parse_retention
from lakestore.model.ttl import Ttl, seconds
from lakestore.model.ttl import parsed as parse_ttl

UNCHANGED = "unchanged"
"""The value of an option that a step does not set."""
LAKE_SETTABLE = ("freshness", "target_file_bytes")
"""Options of the lake that may be changed."""
_ASIDE = "lakestore_renaming_"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a table that may be changed."""

    field: str
    """The field of `Table`."""
    read: Callable[[Any], Any]
    """From what a user writes."""


def _as_said(value: Any) -> Any:
    return value


OPTIONS: dict[str, Option] = {
    "retention": Option("retention", parse_retention),
    "deletes": Option("deletes", _as_said),
    "skip_unchanged": Option("skip_unchanged", _as_said),
    "ttl": Option("ttl", parse_ttl),
    "tombstone_ttl": Option("tombstone_seconds", lambda value: seconds(value, "tombstone_ttl")),
}
"""By the names of `create_table`; beside `LAKE_SETTABLE`."""


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A new column, last unless told otherwise."""

    name: str
    type: str
    required: bool = False
    default: Any = None
    """The value for rows that do not name the column, and for rows that are there already."""
    new_rows_only: bool = False
    """The default is for new rows alone: older ones show null."""
    first: bool = False
    after: str = ""


@dataclass(frozen=True, slots=True)
class DropColumn:
    """A column goes, with what it held."""

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
    """Another place among the columns."""

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
    """As `create_table` takes it; None keeps everything."""
    deletes: Any = UNCHANGED
    """allow, ignore or refuse."""
    skip_unchanged: Any = UNCHANGED
    """True or false."""
    ttl: Any = UNCHANGED
    """As `create_table` takes it; None: rows do not expire."""
    tombstone_ttl: Any = UNCHANGED
    """As `create_table` takes it."""
    merge: Any = UNCHANGED
    """Refused if it is another engine: rows that are there were merged by the one that was."""


Step = AddColumn | DropColumn | RenameColumn | WidenColumn | MoveColumn | MakeOptional | SetDefault | SetOptions
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
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_json(steps: Iterable[Step]) -> str:
    """Steps as they are sent."""
    said = [{"step": _NAMES[type(step)], **_said(step)} for step in steps]
    return json.dumps(said, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    """A default or an option as a user writes it in Python."""
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
    try:
        return [_step(data) for data in json.loads(text)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Invalid(f"the alteration is not readable: {error}") from error


def _step(data: dict[str, Any]) -> Step:
    kind = _KINDS[data.pop("step")]
    step = kind(**data)
    for part in dataclasses.fields(kind):
        value = getattr(step, part.name)
        wanted = {"str": str, "bool": bool, "Any": object}.get(str(part.type), dict)
        if not isinstance(value, wanted):
            raise TypeError(f"{part.name} is {value!r}")
    return step


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
    "SetDefault",
    "SetOptions",
    "Step",
    "WidenColumn",
    "renames",
]
