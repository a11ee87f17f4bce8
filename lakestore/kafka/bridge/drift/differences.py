"""Drift: the differences between the newest schema of records and the columns of their table, as evolution steps.

- New fields, wider types and newly optional fields are followed.
- A renamed field, an incompatible type or a missing required field is a proposal. A renamed field keeps filling the old
  column.
- A table whose columns bridge.yaml names does not drift.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from lakestore import evolution
from lakestore.errors import Invalid
from lakestore.evolution import AddColumn, MakeOptional, RenameColumn, Step, WidenColumn
from lakestore.kafka.bridge.decode.avro_schema import ALIASES
from lakestore.kafka.bridge.spec import COORDINATES, POSITION, TableSpec
from lakestore.model.alteration import widens
from lakestore.model.columns import Column
from lakestore.model.nested_fields import MAP, SCALAR, NestedField, tree, tree_of
from lakestore.model.table import Table
from lakestore.model.types import arrow_type, type_name

_OURS = {*POSITION, *COORDINATES}


@dataclass(frozen=True, slots=True)
class Change:
    """One difference and the steps that resolve it."""

    words: str
    """The difference as one sentence."""
    steps: tuple[Step, ...]
    follows: bool = False
    """Whether the steps lose nothing: a new column, a wider type, an optional column."""
    waits: str = ""
    """The field whose values may not fit until somebody decides."""

    def id(self, table: str) -> str:
        """The proposal's name, the same from every process."""
        return hashlib.sha256(f"{table}\n{evolution.to_json(self.steps)}".encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Differences:
    """All differences between a table and a schema."""

    follow: tuple[Change, ...] = ()
    propose: tuple[Change, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Field to the column that still has the field's former name."""


def differences(table: Table, schema: pa.Schema, spec: TableSpec) -> Differences:
    """Compare a schema with a table, by the table's policy."""
    if spec.columns or spec.drift == "ignore":
        return Differences()
    renamed = _renamed(table, schema)
    found = [*_of_fields(table, schema, renamed), *_of_columns(table, schema, renamed)]
    if spec.drift == "propose":
        return Differences((), tuple(found), renamed)
    return Differences(tuple(c for c in found if c.follows), tuple(c for c in found if not c.follows), renamed)


def additions(table: Table, schema: pa.Schema, spec: TableSpec) -> list[Step]:
    """The new columns of a schema, by the table's policy, without renamed fields."""
    found = differences(table, schema, spec).follow
    return [step for change in found for step in change.steps if isinstance(step, AddColumn)]


def new_fields(table: Table, extra: Mapping[str, pa.DataType]) -> pa.Schema:
    """The columns plus the fields that records without a schema have in addition."""
    fields = [pa.field(name, kind) for name, kind in extra.items() if "." not in name and not pa.types.is_null(kind)]
    there = [column.arrow for column in table.columns if column.name not in _OURS]
    return pa.schema([*there, *(each for each in fields if each.name not in {name.name for name in there})])


def _renamed(table: Table, schema: pa.Schema) -> dict[str, str]:
    columns = {column.name for column in table.columns}
    found: dict[str, str] = {}
    for each in schema:
        if each.name in columns:
            continue
        former = [name for name in _aliases(each) if name in columns and name not in schema.names]
        if former and former[0] not in found.values():
            found[each.name] = former[0]
    return found


def _aliases(field: pa.Field) -> list[str]:
    told = (field.metadata or {}).get(ALIASES)
    return [str(name) for name in json.loads(told)] if told else []


def _of_fields(table: Table, schema: pa.Schema, renamed: Mapping[str, str]) -> Iterator[Change]:
    columns = {column.name: column for column in table.columns}
    for each in schema:
        if each.name in _OURS or pa.types.is_null(each.type):
            continue
        former = renamed.get(each.name)
        if former is not None:
            words = f"field {former!r} is called {each.name!r} now: rename the column"
            yield Change(words, (RenameColumn(former, each.name),))
        column = columns.get(former or each.name)
        try:
            kind = type_name(each.type, each.name)
        except Invalid as error:
            if column is None:
                yield Change(f"field {each.name!r} is new, and no column holds it: {error.message}", ())
            continue
        if column is None:
            yield Change(f"field {each.name!r} is new, of type {kind}", (AddColumn(each.name, kind),), follows=True)
        else:
            yield from _of_type(table, column, each, kind)


def _of_type(table: Table, column: Column, field: pa.Field, kind: str) -> Iterator[Change]:
    keyed = column.name in (*table.primary_key, *table.bucket_key)
    has_default = column.default is not None or column.initial is not None
    inside = None if has_default else _of_parts(tree(column), tree_of(arrow_type(kind), column.name), column.name)
    if inside is not None:
        yield from inside
    elif column.type != kind and not widens(kind, column.type):
        words = f"field {field.name!r} is {kind} now, and its column {column.type}"
        if widens(column.type, kind) and not keyed:
            yield Change(f"{words}: the column is made wider", (WidenColumn(column.name, kind),), follows=True)
        elif keyed:
            text = f"{words}, which is in the key and stays: make a table of another name"
            yield Change(text, (), waits=field.name)
        else:
            kept = _aside(table, column.name)
            steps: list[Step] = [MakeOptional(column.name)] if column.required else []
            steps += [RenameColumn(column.name, kept), AddColumn(column.name, kind)]
            text = f"{words}: keep that column as {kept!r}, and begin a new one"
            yield Change(text, tuple(steps), waits=field.name)
    if field.nullable and column.required and not keyed and column.default is None:
        words = f"field {field.name!r} may be null now: so may its column"
        yield Change(words, (MakeOptional(column.name),), follows=True)


def _of_parts(held: NestedField, told: NestedField, path: str) -> list[Change] | None:
    """The changes of the fields inside a column, which all lose nothing; None if the values would not fit."""
    if held.shape != told.shape or held.shape == SCALAR:
        return None
    there, found = {part.name: part for part in held.parts}, list[Change]()
    for part in told.parts:
        place, kind = f"{path}.{part.name}", type_name(part.kind, part.name)
        if part.name not in there:
            found.append(Change(f"field {place!r} is new, of type {kind}", (AddColumn(place, kind),), follows=True))
            continue
        known = there[part.name]
        inside = _of_parts(known, part, place)
        if inside is not None:
            found += inside
        elif known.kind != part.kind and not widens(kind, type_name(known.kind, part.name)):
            is_key = held.shape == MAP and part is told.parts[0]
            if is_key or known.parts or not widens(type_name(known.kind, part.name), kind):
                return None
            words = f"field {place!r} is {kind} now: it is made wider"
            found.append(Change(words, (WidenColumn(place, kind),), follows=True))
        if known.required and not part.required:
            words = f"field {place!r} may be null now: so may the table's"
            found.append(Change(words, (MakeOptional(place),), follows=True))
    missing = [part for part in held.parts if part.required and part.name not in {each.name for each in told.parts}]
    for part in missing:
        place = f"{path}.{part.name}"
        found.append(Change(f"field {place!r} is gone: it may be null", (MakeOptional(place),), follows=True))
    return found


def _aside(table: Table, name: str) -> str:
    taken = {column.name for column in table.columns}
    return next(each for number in range(1, len(taken) + 2) if (each := f"{name}_{number}") not in taken)


def _of_columns(table: Table, schema: pa.Schema, renamed: Mapping[str, str]) -> Iterator[Change]:
    there = {*schema.names, *renamed.values(), *_OURS}
    for column in table.columns:
        if column.name in there or not column.required or column.default is not None:
            continue
        words = f"field {column.name!r} is gone, and its column is required"
        if column.name in table.primary_key:
            yield Change(f"{words} as part of the key: make a table of another name", (), waits=column.name)
        else:
            yield Change(f"{words}: let it be null", (MakeOptional(column.name),), waits=column.name)
