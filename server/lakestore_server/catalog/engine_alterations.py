"""ALTER TABLE of another engine, as an alteration of the table. Pure.

An engine sends the schema of the lake with other columns. They are compared by id, and then with the table as it is
now: the lake may be behind it. So the retry of a commit with a lost answer has no steps left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakestore.errors import Conflict
from lakestore.evolution import AddColumn, DropColumn, MakeOptional, RenameColumn, Step, WidenColumn
from lakestore.iceberg import data_files
from lakestore.model.columns import Column
from lakestore.model.table import Table
from lakestore.model.types import arrow_type, is_nested, type_name
from lakestore_server.catalog import metadata
from lakestore_server.catalog.errors import Forbidden
from lakestore_server.catalog.schemas import Json

_COLUMNS = ("add-schema", "set-current-schema")


def is_about_columns(updates: Sequence[Json]) -> bool:
    """Whether a commit adds a schema, makes it current, and does nothing else."""
    return {update.get("action") for update in updates} == set(_COLUMNS)


def steps_of(table: Table, old: Json, new: Json) -> list[Step]:
    """The steps that lead from the lake's metadata `old` to `new`, as far as the table has not taken them. `Forbidden`
    for what is no step."""
    before, after = ({field["id"]: field for field in _current(doc)} for doc in (old, new))
    kept = [number for number in before if number in after]
    if kept != [number for number in after if number in before]:
        raise Forbidden(f"columns of {table.name} are moved with `lakestore apply -f tables.yaml`")
    columns = {column.id: column for column in table.columns}
    steps: list[Step] = [DropColumn(columns[number].name) for number in before if _is_gone(number, after, columns)]
    for number in kept:
        if before[number] != after[number]:
            steps += _changed(table, columns.get(number), before[number], after[number])
    for number, field in after.items():
        if number not in before:
            steps += _added(table, field)
    return steps


def _current(doc: Json) -> Sequence[Json]:
    schema = metadata.by_id(doc["schemas"], "schema-id", doc["current-schema-id"])
    assert schema is not None
    fields: Sequence[Json] = schema["fields"]
    return fields


def _is_gone(number: int, after: dict[int, Json], columns: dict[int, Column]) -> bool:
    return number not in after and number in columns


def _changed(table: Table, column: Column | None, before: Json, after: Json) -> Iterator[Step]:
    if column is None:
        raise Conflict(f"column {before['name']!r} of {table.name} was dropped, or is Lakestore's own: load it again")
    name = column.name if before["name"] == after["name"] else after["name"]
    if name != column.name:
        yield RenameColumn(column.name, name)
    if before["type"] != after["type"]:
        if is_nested(column.type):
            raise Forbidden(f"fields inside column {name!r} of {table.name} change with `lakestore alter {table.name}`")
        kind = _type(after)
        if arrow_type(column.type) != arrow_type(kind):
            yield WidenColumn(name, kind)
    if before["required"] and not after["required"] and column.required:
        yield MakeOptional(name)
    elif after["required"] and not before["required"]:
        raise Forbidden(f"column {name!r} of {table.name} has rows without a value and stays optional")


def _added(table: Table, field: Json) -> Iterator[Step]:
    name, kind = field["name"], _type(field)
    there = next((column for column in table.columns if column.name == name), None)
    if there is not None and arrow_type(there.type) != arrow_type(kind):
        raise Conflict(f"table {table.name} has a column {name!r} of type {there.type}, which the lake gets soon")
    if there is None:
        yield AddColumn(name, kind, required=bool(field.get("required")))


def _type(field: Json) -> str:
    return type_name(data_files.arrow_schema({"fields": [field]}).field(0).type, field["name"])
