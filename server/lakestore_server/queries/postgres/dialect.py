"""A text in PostgreSQL's dialect as a text of DuckDB.

- DuckDB's own parser, a fork of PostgreSQL's, makes the tree. `spelling` mends what it does not read.
- The tree is changed where the meaning differs, and printed by DuckDB. The printed text must have the changed tree.
- A text without such a place stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model.table import Table
from lakestore.union import sql_gate, sql_text
from lakestore.union.sql import Extra
from lakestore.union.sql_gate import folded
from lakestore_server.queries.postgres import fixed_catalog, functions, names, spelling, tree
from lakestore_server.queries.postgres.catalog import Catalog, Session

SETTINGS = {"integer_division": "true", "default_null_order": "nulls_last_on_asc_first_on_desc"}
"""DuckDB's settings for a question in PostgreSQL's dialect: `7 / 2` is 3, and nulls sort as the greatest value."""


class Tables(Protocol):
    """The tables that the caller may see."""

    def all(self) -> Sequence[Table]:
        """All of them."""

    def find(self, name: str) -> Table | None:
        """The table of exactly this name. It costs a hundredth of `all`."""


def translated(engine: Any, text: str, tables: Tables, session: Session) -> tuple[str, Extra]:
    """The text for DuckDB, and the catalog that it needs.

    Raises `Invalid` for a text that is not read, with the position of the fault in the user's text.
    """
    begin, text = tree.explained(text)
    catalog = LazyCatalog(tables, session)
    body, past = sql_text.without_past(text, catalog.database_of)
    said = spelling.spelled(body)
    node = _parsed(engine, said)
    if node is None:
        return begin + text, Extra(settings=SETTINGS)
    changed = tree.Rewriting(catalog, said).rewritten(node["statements"][0])
    new = _printed(engine, node) if changed else said.text
    macros, needed = functions.calls_of(tree.called(node))
    relations = {name: catalog.relation(name) for name in {*tree.relations_of(node), *tree.internal(needed)}}
    made = functions.texts(macros, session, names.VERSION)
    has_oids = bool(relations) or names.OID in new
    return begin + tree.with_past(new, past), Extra(relations, fixed_catalog.LETTERS, made, macros, SETTINGS, has_oids)


class LazyCatalog:
    """The catalog, made when a text needs it."""

    def __init__(self, tables: Tables, session: Session) -> None:
        self._tables, self.session = tables, session
        self._made: Catalog | None = None
        self._found: dict[str, Table | None] = {}

    @property
    def made(self) -> Catalog:
        if self._made is None:
            self._made = Catalog(self._tables.all(), self.session)
        return self._made

    def database_of(self, name: str) -> str:
        """The database of the search path that has a table of this name; empty if none has."""
        return next((each for each in self.session.search_path if self._named(f"{each}.{name}")), "")

    def types_of(self, tables: Iterable[tuple[str, str]], column: str) -> Iterator[pa.DataType]:
        """The types that a column has in these tables, (database, name)."""
        column = folded(column)
        for name in {f"{database or self.database_of(name)}.{name}" for database, name in tables}:
            for table in self._named(name):
                yield from (each.arrow.type for each in table.columns if folded(each.name) == column)

    def _named(self, name: str) -> Sequence[Table]:
        """The tables of a name: the one of exactly this name, otherwise those whose names differ in case. All tables
        are asked for only if none has exactly this name."""
        if self._made is None:
            if name not in self._found:
                self._found[name] = self._tables.find(name)
            found = self._found[name]
            if found is not None:
                return (found,)
        tables = self.made.table_names.get(folded(name), ())
        return [table for table in tables if table.name == name] or tables

    def relation(self, name: str) -> pa.Table:
        schema, short = name.split(".", 1)
        return self.made.relation(tree.POSTGRES_SCHEMAS[schema], short)


def _parsed(engine: Any, said: spelling.Spelling) -> dict[str, Any] | None:
    """The tree of a text; None if it is no SELECT, which the gate refuses."""
    try:
        (answer,) = (
            sql_gate.parser(engine).cursor().execute("SELECT json_serialize_sql(?::VARCHAR)", [said.text]).fetchone()
        )
        found: dict[str, Any] = json.loads(answer)
    except (engine.Error, ValueError, RecursionError) as error:
        raise Invalid("the query failed: its text cannot be read, or nests too deep") from error
    if not found["error"]:
        return found if len(found["statements"]) == 1 else None
    if found.get("error_type") != "parser":
        return None
    where = found.get("position")
    place = f" at character {said.original(int(where)) + 1}" if where is not None else ""
    raise Invalid(f"the query failed: Parser Error: {found['error_message']}{place}")


def _printed(engine: Any, node: dict[str, Any]) -> str:
    """The text of a tree. Raises `Invalid` if DuckDB reads another tree in it."""
    cursor = sql_gate.parser(engine).cursor()
    try:
        (text,) = cursor.execute("SELECT json_deserialize_sql(?::JSON)", [json.dumps(node)]).fetchone()
        (again,) = cursor.execute("SELECT json_serialize_sql(?::VARCHAR)", [text]).fetchone()
    except engine.Error as error:
        raise Invalid(f"the query failed: its PostgreSQL form cannot be translated ({error})") from error
    if not tree.is_same(node, json.loads(again)):
        raise Invalid(
            "the query failed: a part of it has another meaning in DuckDB after its translation from PostgreSQL; write"
            " its joins with ON conditions, or ask in DuckDB's dialect by Flight SQL"
        )
    return str(text)


def preload() -> None:
    """Read the catalog's fixed part, so that the first question does not wait for it, and no file is opened later."""
    for name in (*fixed_catalog.relations(), (fixed_catalog.PG_CATALOG, "type_names")):
        Catalog((), Session()).relation(*name)
