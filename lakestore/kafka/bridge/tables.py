"""Definitions of the tables that a bridge creates: columns of bridge.yaml or a schema, source positions,
coordinates, dead letters.

A keyed table without a version or merge engine stores every row's source position, and the row with the later position
wins. Records that are read again, or replayed from the dead letters, therefore never replace newer rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.kafka.bridge.paths import Path
from lakestore.kafka.bridge.spec import COORDINATES, POSITION, ColumnSpec, TableSpec
from lakestore.model.merge_engines import versioned
from lakestore.model.table import Table
from lakestore.model.table_file import WantedColumn, WantedTable
from lakestore.model.types import type_name

POSITION_MERGE = versioned(POSITION[1], within=POSITION[0])
_POSITION = (WantedColumn(POSITION[0], "string", required=True), WantedColumn(POSITION[1], "int64", required=True))
_COORDINATES = (
    WantedColumn(COORDINATES[0], "string", required=True),
    WantedColumn(COORDINATES[1], "int32", required=True),
    WantedColumn(COORDINATES[2], "int64", required=True),
    WantedColumn(COORDINATES[3], "timestamptz"),
)


OP, OP_BESIDE = "op", "event_op"
"""Operation column in a log of change events. The second name is used if a field has the first."""


def op_column(names: Collection[str]) -> str:
    """Name of the operation column for a table with these fields."""
    return OP_BESIDE if OP in names else OP


def event_paths(spec: TableSpec, *, op: str = "") -> dict[str, Path]:
    """Columns with parts of change events outside the row. `op` is the name of the operation column, in a log."""
    paths = [Path.of(text) for text in spec.event_columns]
    found = {"_".join((path.root, *path.parts)): path for path in paths}
    if op and not any(path == Path("op") for path in paths) and all(each.source != "op" for each in spec.columns):
        found[op] = Path("op")
    return found


def keeps_position(spec: TableSpec, key: Sequence[str] = ()) -> bool:
    """True if rows store their source position, which decides between rows of one key."""
    return bool(spec.primary_key or key) and not spec.version and "merge" not in spec.options


def wanted_table(spec: TableSpec, schema: pa.Schema | None = None, *, name: str = "", key: Sequence[str] = ()) -> Table:
    """The table definition for records, in the form that `create` takes.

    `schema` has the fields of the records if the file names no columns. `name` is the full name if the file's name has
    placeholders. `key` is the key of change events if the file names none.
    """
    return wanted_definition(spec, schema, name=name, key=key).definition()


def wanted_definition(
    spec: TableSpec, schema: pa.Schema | None = None, *, name: str = "", key: Sequence[str] = (), log: bool = False
) -> WantedTable:
    """The same table in the form of tables.yaml. `log`: rows are change events."""
    name = name or spec.table
    keys = tuple(spec.primary_key or key)
    columns = list(_declared(spec.columns) if spec.columns else _told(schema, name))
    columns += _of_events(spec, {each.name for each in columns}, name, log=log)
    columns = _with(columns, keys, name)
    options = dict(spec.options)
    if keys:
        options["primary_key"] = list(keys)
    if keeps_position(spec, keys):
        for each in spec.columns:
            if each.name in POSITION:
                raise Invalid(
                    f"table {name} has a column {each.name!r}, and source positions needs that name: leave"
                    " it out, or call yours something else"
                )
        options["merge"] = POSITION_MERGE
        columns = _beside(columns, _POSITION, name, "source positions")
    elif spec.version:
        if "merge" in options:
            raise Invalid(f"table {name} names a version and a merge engine: say one of them")
        options["merge"] = versioned(spec.version)
        columns = _with(columns, (spec.version,), name)
    if spec.coordinates:
        columns = _beside(columns, _COORDINATES, name, "coordinates: true")
    return WantedTable(name, tuple(columns), options)


def _of_events(spec: TableSpec, names: Collection[str], table: str, *, log: bool) -> Iterator[WantedColumn]:
    paths = event_paths(spec, op=op_column(names) if log else "")
    for name, path in paths.items():
        if name in names:
            raise Invalid(
                f"table {table} has a column {name!r}, and event_columns needs that name for {path}: leave it out, or"
                f" name your columns, with {{name: …, type: {path.event_type}, from: {path}}}"
            )
        yield WantedColumn(name, path.event_type)


def _declared(columns: Sequence[ColumnSpec]) -> list[WantedColumn]:
    return [WantedColumn(each.name, each.type, each.required, each.default) for each in columns]


def _told(schema: pa.Schema | None, name: str) -> list[WantedColumn]:
    if schema is None or not len(schema):
        raise Invalid(
            f"table {name} has no columns: name them under columns:, or let `lakestore bridge --plan` show the"
            " columns of samples"
        )
    return [WantedColumn(each.name, type_name(each.type, each.name), not each.nullable) for each in schema]


def _with(columns: list[WantedColumn], names: Sequence[str], table: str) -> list[WantedColumn]:
    there = {column.name for column in columns} | {*COORDINATES}
    for name in names:
        if name not in there:
            raise Invalid(f"table {table} names column {name!r}, which is not among {', '.join(sorted(there))}")
    return [WantedColumn(each.name, each.type, each.required or each.name in names, each.default) for each in columns]


def _beside(columns: list[WantedColumn], added: Sequence[WantedColumn], table: str, why: str) -> list[WantedColumn]:
    there = {column.name: column for column in columns}
    for each in added:
        found = there.get(each.name)
        if found is not None and found.type != each.type:
            raise Invalid(
                f"table {table} has a column {each.name!r} of type {found.type}, and {why} needs that name for"
                f" {each.type}: call yours something else"
            )
    taken = {each.name: each for each in added}
    kept = [
        WantedColumn(each.name, each.type, each.required or taken[each.name].required, each.default)
        if each.name in taken
        else each
        for each in columns
    ]
    return [*kept, *(each for each in added if each.name not in there)]
