"""`tables.yaml`: wanted tables, and the steps from the existing tables to them.

The file lists all columns of a table in order. Options that cannot change (key, buckets, lake layout) may be omitted
for an existing table; if present they must match.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pyarrow as pa
import yaml

from lakestore.errors import Invalid
from lakestore.evolution import (
    LAKE_SETTABLE,
    OPTIONS,
    AddColumn,
    DropColumn,
    MakeOptional,
    MoveColumn,
    SetDefault,
    SetOptions,
    Step,
    WidenColumn,
    renames,
)
from lakestore.model import columns, yaml_text
from lakestore.model import table as schema
from lakestore.model.alteration import apply_steps
from lakestore.model.columns import Column
from lakestore.model.defaults import canonical
from lakestore.model.merge_engines import Merge, parse_merge
from lakestore.model.names import suggestion
from lakestore.model.nested_fields import SCALAR, NestedField, tree, tree_of
from lakestore.model.table import Table
from lakestore.model.types import arrow_type, type_name

TABLE_KEYS = (
    "name",
    "columns",
    "primary_key",
    "buckets",
    "bucket_key",
    "merge",
    "lake",
    "retention",
    "deletes",
    "skip_unchanged",
    "ttl",
    "tombstone_ttl",
)
COLUMN_KEYS = ("name", "type", "required", "default", "new_rows_only", "renamed_from")


@dataclass(frozen=True, slots=True)
class WantedColumn:
    """A column in the file."""

    name: str
    type: str
    required: bool = False
    default: Any = None
    new_rows_only: bool = False
    """True if a new column's default does not show in older rows."""
    renamed_from: str = ""
    """Its former name; may stay in the file forever."""


@dataclass(frozen=True, slots=True)
class WantedTable:
    """A table in the file."""

    name: str
    columns: tuple[WantedColumn, ...]
    options: dict[str, Any]
    """Other options by the names of `create_table`."""
    place: str = field(default="", compare=False)
    """File and line; empty without a file."""

    def definition(self) -> Table:
        """The definition if the table does not exist yet."""
        fields = [pa.field(c.name, arrow_type(c.type), nullable=not c.required) for c in self.columns]
        made = schema.define(self.name, pa.schema(fields), **self.options)
        defaults = [canonical(column.default, column.type, column.name) for column in self.columns]
        columns = [replace(c, default=default) for c, default in zip(made.columns, defaults, strict=True)]
        return replace(made, columns=tuple(columns))


def parse(text: str, source: str) -> list[WantedTable]:
    """Parse a file. Raises `Invalid` with file, table and rule."""
    try:
        data = yaml_text.values(text)
    except yaml_text.Unreadable as error:
        raise Invalid(f"{source} is not YAML: {error}") from error
    if not isinstance(data, dict) or set(data) != {"tables"} or not isinstance(data["tables"], list):
        raise Invalid(f"{source} is not a list of tables under the one key 'tables'")
    lines = yaml_text.item_lines(text, "tables")
    tables = [_table(entry, f"{source}, line {line}") for entry, line in zip(data["tables"], lines, strict=True)]
    names = [table.name for table in tables]
    for name in names:
        if names.count(name) > 1:
            raise Invalid(f"{source} says table {name} twice")
    return tables


def yaml_of(tables: Iterable[WantedTable]) -> str:
    """The file of some tables, readable by `parse`."""
    lines = ["tables:"]
    for table in tables:
        lines += [f"  - name: {_flow(table.name)}"]
        lines += [f"    {key}: {_flow(value)}" for key, value in table.options.items()]
        lines += ["    columns:", *(f"      - {column_text(column)}" for column in table.columns)]
    return "\n".join(lines) + "\n"


def column_text(column: WantedColumn) -> str:
    """A column on one line of a file."""
    said = {"name": column.name, "type": column.type}
    said |= {
        each.name: value
        for each in fields(column)
        if each.name not in said and (value := getattr(column, each.name)) != each.default
    }
    return "{" + ", ".join(f"{key}: {_flow(value)}" for key, value in said.items()) + "}"


def _flow(value: Any) -> str:
    plain = value.as_data() if isinstance(value, Merge) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=math.inf, allow_unicode=True, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def _table(entry: Any, source: str) -> WantedTable:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise Invalid(f"{source}: a table has a name and columns")
    where = f"{source}: table {entry['name']}"
    _known(entry, TABLE_KEYS, where)
    columns = entry.get("columns")
    if not isinstance(columns, list) or not columns:
        raise Invalid(f"{where} has no list of columns")
    options = {key: value for key, value in entry.items() if key not in ("name", "columns")}
    for key in ("primary_key", "bucket_key"):
        if not isinstance(options.get(key, []), list):
            raise Invalid(f"{where}: {key} is a list of column names")
    if not isinstance(options.get("lake", {}), dict):
        raise Invalid(f"{where}: lake is a list of options")
    return WantedTable(entry["name"], tuple(_column(column, where) for column in columns), options, source)


def _column(entry: Any, where: str) -> WantedColumn:
    if not isinstance(entry, dict) or not {"name", "type"} <= set(entry):
        raise Invalid(f"{where}: a column has a name and a type, unlike {entry!r}")
    _known(entry, COLUMN_KEYS, f"{where}, column {entry['name']}")
    column = WantedColumn(**entry)
    texts, flags = (column.name, column.type, column.renamed_from), (column.required, column.new_rows_only)
    if not all(isinstance(text, str) for text in texts) or not all(isinstance(flag, bool) for flag in flags):
        raise Invalid(f"{where}, column {column.name}: names and types are texts, required and new_rows_only yes or no")
    return column


def _known(entry: dict[str, Any], keys: Sequence[str], where: str) -> None:
    for key in entry:
        if key not in keys:
            hint = suggestion(key, keys) or f"; known are {', '.join(keys)}"
            raise Invalid(f"{where} says {key!r}, which is not known{hint}")


def steps_between(table: Table, wanted: WantedTable) -> list[Step]:
    """The steps from a table to the file's. Raises `Invalid` for a difference that no step can make."""
    taken = _taken(table, wanted)
    gone = [column.name for column in table.columns if column not in taken.values()]
    renamed = {old.name: name for name, old in taken.items() if old.name != name}
    steps: list[Step] = []
    if table.ttl and table.ttl.column in gone and "ttl" in wanted.options:
        steps.append(SetOptions(ttl=None))
    steps += [DropColumn(name) for name in gone]
    steps += renames(renamed)
    steps += _added(wanted, taken)
    for column in wanted.columns:
        if column.name in taken:
            steps += _column_steps(table, taken[column.name], column)
    steps += _options(apply_steps(table, steps), wanted)
    reached = apply_steps(table, steps)
    _check_fixed(reached, wanted)
    steps += _moves([c.name for c in reached.columns], [c.name for c in wanted.columns])
    return steps


def _added(wanted: WantedTable, taken: Collection[str]) -> list[Step]:
    last = max((i for i, column in enumerate(wanted.columns) if column.name in taken), default=-1)
    steps: list[Step] = []
    for i, column in enumerate(wanted.columns):
        if column.name in taken:
            continue
        default = canonical(column.default, column.type, column.name)
        step = AddColumn(column.name, column.type, column.required, default, column.new_rows_only)
        if i < last:
            step = replace(step, first=not i, after=wanted.columns[i - 1].name if i else "")
        steps.append(step)
    return steps


def _taken(table: Table, wanted: WantedTable) -> dict[str, Column]:
    there = {column.name: column for column in table.columns}
    names = {column.name for column in wanted.columns}
    moved = {
        column.name: there[column.renamed_from]
        for column in wanted.columns
        if column.name not in there and column.renamed_from in there
    }
    sources = [column.name for column in moved.values()]
    for name in sources:
        if sources.count(name) > 1:
            raise Invalid(f"table {table.name}: two columns of the file are renamed_from {name!r}")
    return moved | {name: there[name] for name in names & set(there) if name not in sources}


def _column_steps(table: Table, old: Column, wanted: WantedColumn) -> list[Step]:
    steps: list[Step] = []
    required = wanted.required or old.name in (*table.primary_key, *table.merge.version)
    steps += _type_steps(table, tree(old), tree_of(arrow_type(wanted.type), wanted.name), wanted.name)
    if old.required and not required:
        steps.append(MakeOptional(wanted.name))
    if required and not old.required:
        raise Invalid(
            f"table {table.name}: column {wanted.name!r} is optional and cannot become required, for rows that are"
            " there may have none: leave it optional, or add another column with a default"
        )
    default = canonical(wanted.default, wanted.type, wanted.name)
    if default != canonical(old.default, wanted.type if steps else old.type, wanted.name):
        steps.append(SetDefault(wanted.name, default))
    return steps


def _options(table: Table, wanted: WantedTable) -> list[Step]:
    said = wanted.options.get("lake", {})
    parsed = columns.lake_options(said)
    settable = [name for name in LAKE_SETTABLE if name in said]
    lake = {name: said[name] for name in settable if getattr(parsed, name) != getattr(table.lake, name)}
    steps: list[Step] = [SetOptions(lake=lake)] if lake else []
    options = {name: wanted.options[name] for name in OPTIONS if name in wanted.options}
    differing = {
        name: value
        for name, value in options.items()
        if OPTIONS[name].read(value) != getattr(table, OPTIONS[name].field)
    }
    return [*steps, SetOptions(**differing)] if differing else steps


def _check_fixed(reached: Table, wanted: WantedTable) -> None:
    lake = columns.lake_options(wanted.options.get("lake", {}))
    said = {name: value for name, value in wanted.options.items() if name not in ("lake", *OPTIONS)}
    said["primary_key"] = said.get("primary_key") or []
    if "merge" in said:
        said["merge"] = parse_merge(said["merge"])
    there: dict[str, Any] = {name: getattr(reached, name) for name in said}
    for name in set(wanted.options.get("lake", {})) - set(LAKE_SETTABLE):
        said[f"lake.{name}"], there[f"lake.{name}"] = getattr(lake, name), getattr(reached.lake, name)
    if "lake.catalog" in said:
        there["lake.catalog"] = there["lake.catalog"] or columns.OWN_CATALOG
    for name, value in said.items():
        plain = tuple(value) if isinstance(value, list) else value
        if plain != there[name]:
            raise Invalid(
                f"table {reached.name}: {name} is {_text(there[name])} and cannot become {_text(plain)}:"
                " make a table of another name and copy the rows"
            )


def _text(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


def _type_steps(table: Table, old: NestedField, wanted: NestedField, path: str) -> list[Step]:
    """The steps from the type at a path to another one: what is inside changes field by field."""
    if old.shape != wanted.shape or old.shape == SCALAR:
        return [] if old.kind == wanted.kind else [WidenColumn(path, type_name(wanted.kind, path))]
    there, asked = {part.name: part for part in old.parts}, {part.name: part for part in wanted.parts}
    steps: list[Step] = [DropColumn(f"{path}.{name}") for name in there if name not in asked]
    for name, part in asked.items():
        place = f"{path}.{name}"
        if name not in there:
            steps.append(AddColumn(place, type_name(part.kind, place), part.required))
            continue
        steps += _type_steps(table, there[name], part, place)
        if there[name].required and not part.required:
            steps.append(MakeOptional(place))
        if part.required and not there[name].required:
            raise Invalid(f"table {table.name}: field {place!r} is optional and cannot become required")
    now = [*(name for name in there if name in asked), *(name for name in asked if name not in there)]
    return [*steps, *_moves(now, list(asked), path)]


def _moves(names: Iterable[str], wanted: Sequence[str], inside: str = "") -> list[Step]:
    now, steps = list(names), list[Step]()
    prefix = f"{inside}." if inside else ""
    for i, name in enumerate(wanted):
        if now[i] != name:
            now.remove(name)
            now.insert(i, name)
            steps.append(MoveColumn(prefix + name, first=not i, after=wanted[i - 1] if i else ""))
    return steps
