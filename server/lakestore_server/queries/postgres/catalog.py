"""pg_catalog as Arrow tables of the definitions that the caller may see.

- A table is made when a text names it, and then column by column: 20,000 tables have few Python objects.
- A relation of PostgreSQL 15 that is not listed here has its columns and no rows.
- `attnum` is the permanent id of a column, so it survives a rename and a move, and has gaps after a drop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache

import pyarrow as pa

from lakestore.limits import TYPES_KEPT
from lakestore.model import defaults
from lakestore.model.columns import Column
from lakestore.model.contract.document import column_name, stored_columns
from lakestore.model.table import Table
from lakestore.model.types import arrow_type
from lakestore.rows.literals import text_literal
from lakestore.union.sql_gate import folded
from lakestore_server.access.principals import Grant
from lakestore_server.queries.postgres import oids, settings_rows
from lakestore_server.queries.postgres.fixed_catalog import (
    CATALOG_OID,
    INFORMATION_OID,
    INFORMATION_SCHEMA,
    PG_CATALOG,
    Relation,
    fixed_rows,
    joined,
    relations,
    rows_of,
    type_oids,
)
from lakestore_server.queries.postgres.types import PostgresType, postgres_type

SERVER_ROLE, SERVER_ROLE_OID = "lakestore", 10
"""The owner of tables whose contract names no owner."""
CLASS_OID, DATABASE_OID, CONSTRAINT_OID, ATTRDEF_OID, TYPE_OID = 1259, 1262, 2606, 2604, 1247
_HEAP, _BTREE, _TABLESPACE, _DEFAULT_COLLATION = 2, 403, 1663, 100


@dataclass(frozen=True, slots=True)
class Session:
    """The facts about a connection that its catalog shows."""

    user: str = SERVER_ROLE
    database: str = "lake"
    search_path: tuple[str, ...] = ()
    """Databases of the lake, in the order in which names without a database are looked up."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values of the session's variables; variables that are left out have their defaults."""
    backend: int = 1
    """The number that BackendKeyData gave to the connection."""
    readable: tuple[str, ...] = ("*",)
    """Patterns of the tables that the user may read; the catalog also lists tables on which he has another right."""
    readers: Mapping[str, Sequence[str]] | None = None
    """Each principal and its patterns of tables that it may read, `""` for everybody. None if the user may not know."""


@dataclass(frozen=True, slots=True)
class ListedColumn:
    """A column with its type in PostgreSQL."""

    column: Column
    place: int
    """From 1, in the order of the definition."""
    type: PostgresType
    default: str
    """The default as SQL; empty without."""
    comment: str


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table with its oids."""

    table: Table
    oid: int
    index_oid: int
    constraint_oid: int
    schema_oid: int
    owner: str
    columns: tuple[ListedColumn, ...]
    comment: str

    @property
    def key_name(self) -> str:
        return f"{self.table.short_name}_pkey"

    @property
    def key_numbers(self) -> list[int]:
        ids = {column.name: column.id for column in self.table.columns}
        return [ids[name] for name in self.table.primary_key]


class Catalog:
    """The catalog of one caller."""

    def __init__(self, tables: Iterable[Table], session: Session) -> None:
        self.session = session
        self.lake_tables = sorted(tables, key=lambda table: (table.number, table.name))
        self._oids = oids.Oids()
        self._made: dict[tuple[str, str], pa.Table] = {}

    def relation(self, schema: str, name: str) -> pa.Table:
        """The rows of a relation of pg_catalog or information_schema. Raises `KeyError` for an unknown one."""
        found = self._made.get((schema, name))
        if found is None:
            found = self._made[schema, name] = self._relation(schema, name)
        return found

    def _relation(self, schema: str, name: str) -> pa.Table:
        from lakestore_server.queries.postgres import information_schema, lookup_relations

        if (schema, name) not in relations():
            return lookup_relations.rows(self, name)
        relation = relations()[schema, name]
        if schema == INFORMATION_SCHEMA:
            return information_schema.rows(self, relation)
        make = _ROWS.get(name)
        return joined([fixed_rows(name), make(self, relation)]) if make else fixed_rows(name)

    @cached_property
    def databases(self) -> dict[str, int]:
        """The oid of each schema that belongs to the lake, by name."""
        names = {table.namespace for table in self.lake_tables}
        return {name: self._oids.named("database", name) for name in sorted(names)}

    @cached_property
    def schemas(self) -> dict[str, int]:
        """The oid of each schema, by name."""
        return {PG_CATALOG: CATALOG_OID, INFORMATION_SCHEMA: INFORMATION_OID} | {
            name: oid for name, oid in self.databases.items() if name not in (PG_CATALOG, INFORMATION_SCHEMA)
        }

    @cached_property
    def roles(self) -> dict[str, int]:
        """The oid of each principal that the catalog names: the caller, the owners of his tables, and for an
        administrator all principals."""
        names = {self.session.user, *(self.session.readers or ())} | {each.owner for each in self.tables}
        hashed = {name: self._oids.named("role", name) for name in sorted(names - {SERVER_ROLE, ""})}
        return {SERVER_ROLE: SERVER_ROLE_OID} | hashed

    @cached_property
    def tables(self) -> tuple[ListedTable, ...]:
        """The tables that the caller may see."""
        return tuple(self._listed(table) for table in self.lake_tables)

    @cached_property
    def readable(self) -> list[ListedTable]:
        """The tables that the caller may read."""
        grant = Grant(frozenset({"read"}), self.session.readable)
        return [each for each in self.tables if grant.covers(each.table.name)]

    @cached_property
    def table_names(self) -> Mapping[str, Sequence[Table]]:
        """The tables by name, as the gate folds names."""
        made: dict[str, list[Table]] = {}
        for table in self.lake_tables:
            made.setdefault(folded(table.name), []).append(table)
        return made

    @property
    def keyed(self) -> list[ListedTable]:
        return [each for each in self.tables if each.table.primary_key]

    def _listed(self, table: Table) -> ListedTable:
        owner = table.contract.owner if table.contract else None
        comment, comments = comments_of(table)
        columns = tuple(
            ListedColumn(column, place, column_type(column.type), default_text(column), comments.get(column.id, ""))
            for place, column in enumerate(table.columns, 1)
        )
        schema = self.schemas[table.namespace]
        who = owner.owner if owner else SERVER_ROLE
        oid, index, constraint = (
            self._oids.of_table(table, slot) for slot in (oids.TABLE, oids.KEY_INDEX, oids.KEY_CONSTRAINT)
        )
        return ListedTable(table, oid, index, constraint, schema, who, columns, comment)

    def default_oid(self, table: ListedTable, column: ListedColumn) -> int:
        """The oid of a column's default."""
        return self._oids.named("default", f"{table.oid}.{column.column.id}")


@lru_cache(maxsize=TYPES_KEPT)
def column_type(declared: str) -> PostgresType:
    """The PostgreSQL type of a declared type of a column."""
    return postgres_type(pa.field("", arrow_type(declared)))


def comments_of(table: Table) -> tuple[str, dict[int, str]]:
    """The contract's description of a table, and of its columns by id."""
    if table.contract is None:
        return "", {}
    ids = table.contract.column_ids
    said = {ids[column_name(each)]: each.text("description") for each in stored_columns(table.contract.entry)}
    return table.contract.entry.text("description"), {number: text for number, text in said.items() if text}


def default_text(column: Column) -> str:
    """A column's default as PostgreSQL shows it; empty without."""
    if column.default is None:
        return ""
    value = defaults.scalar(column.default, column.type, column.name).as_py()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    kind = column_type(column.type)
    return f"{text_literal(str(value))}::{format_type(kind.oid, -1)}"


def quoted(name: str) -> str:
    """A name as an identifier of PostgreSQL, quoted where it must be."""
    plain = name.isascii() and name.replace("_", "a").isalnum() and name == name.lower() and not name[0].isdecimal()
    return name if plain and name not in _RESERVED else '"' + name.replace('"', '""') + '"'


_RESERVED = frozenset(
    "all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create"
    " current_date current_role current_time current_timestamp current_user default deferrable desc distinct do else"
    " end except false fetch for foreign from grant group having in initially intersect into lateral leading limit"
    " localtime localtimestamp not null offset on only or order placing primary references returning select"
    " session_user some symmetric table then to trailing true union unique user using variadic when where window"
    " with".split()
)
TYPE_NAMES = {
    16: "boolean",
    18: '"char"',
    20: "bigint",
    21: "smallint",
    23: "integer",
    700: "real",
    701: "double precision",
    1042: "character",
    1043: "character varying",
    1083: "time without time zone",
    1114: "timestamp without time zone",
    1184: "timestamp with time zone",
    1266: "time with time zone",
    1560: "bit",
    1562: "bit varying",
}
"""Types whose SQL name is another than their name in pg_type."""


@cache
def format_type(oid: int, modifier: int) -> str:
    """The SQL name of a type, as `format_type` gives it."""
    names = {number: name for name, number in type_oids().items()}
    name = names.get(oid, "???")
    if name.startswith("_"):
        return format_type(type_oids()[name[1:]], modifier) + "[]"
    if oid == 1700 and modifier >= 4:
        return f"numeric({modifier - 4 >> 16},{modifier - 4 & 0x7FF})"
    return TYPE_NAMES.get(oid, name)


def index_definition(each: ListedTable) -> str:
    """The text of a primary key's index, as `pg_get_indexdef` gives it."""
    columns = ", ".join(map(quoted, each.table.primary_key))
    where = f"{quoted(each.table.namespace)}.{quoted(each.table.short_name)}"
    return f"CREATE UNIQUE INDEX {quoted(each.key_name)} ON {where} USING btree ({columns})"


def _namespaces(catalog: Catalog, relation: Relation) -> pa.Table:
    found = catalog.schemas
    columns = {"oid": list(found.values()), "nspname": list(found), "nspowner": SERVER_ROLE_OID}
    return rows_of(relation, len(found), columns)


_CLASS = {
    "reltype": 0,
    "reloftype": 0,
    "reltablespace": 0,
    "relpages": 0,
    "reltuples": -1.0,
    "relallvisible": 0,
    "reltoastrelid": 0,
    "relisshared": False,
    "relpersistence": "p",
    "relchecks": 0,
    "relhastriggers": False,
    "relhassubclass": False,
    "relrowsecurity": False,
    "relforcerowsecurity": False,
    "relispopulated": True,
    "relispartition": False,
    "relrewrite": 0,
    "relfrozenxid": 0,
    "relminmxid": 0,
}


def _classes(catalog: Catalog, relation: Relation) -> pa.Table:
    tables, keyed = catalog.tables, catalog.keyed
    roles = catalog.roles
    own = rows_of(
        relation,
        len(tables),
        _CLASS
        | {
            "oid": [each.oid for each in tables],
            "relname": [each.table.short_name for each in tables],
            "relnamespace": [each.schema_oid for each in tables],
            "relowner": [roles[each.owner] for each in tables],
            "relam": _HEAP,
            "relfilenode": [each.oid for each in tables],
            "relhasindex": [bool(each.table.primary_key) for each in tables],
            "relkind": "r",
            "relnatts": [len(each.columns) for each in tables],
            "relhasrules": False,
            "relreplident": "d",
        },
    )
    indexes = rows_of(
        relation,
        len(keyed),
        _CLASS
        | {
            "oid": [each.index_oid for each in keyed],
            "relname": [each.key_name for each in keyed],
            "relnamespace": [each.schema_oid for each in keyed],
            "relowner": [roles[each.owner] for each in keyed],
            "relam": _BTREE,
            "relfilenode": [each.index_oid for each in keyed],
            "relhasindex": False,
            "relkind": "i",
            "relnatts": [len(each.table.primary_key) for each in keyed],
            "relhasrules": False,
            "relreplident": "n",
        },
    )
    return joined([own, indexes, _system_classes(relation)])


def _system_classes(relation: Relation) -> pa.Table:
    known = list(relations().values())
    return rows_of(
        relation,
        len(known),
        _CLASS
        | {
            "oid": [each.oid for each in known],
            "relname": [each.name for each in known],
            "relnamespace": [CATALOG_OID if each.schema == PG_CATALOG else INFORMATION_OID for each in known],
            "relowner": SERVER_ROLE_OID,
            "relam": [_HEAP if each.kind == "r" else 0 for each in known],
            "relfilenode": 0,
            "relhasindex": False,
            "relkind": [each.kind for each in known],
            "relnatts": [len(each.columns) for each in known],
            "relhasrules": [each.kind == "v" for each in known],
            "relreplident": "n",
        },
    )


_ATTRIBUTE = {
    "attstattarget": -1,
    "attcacheoff": -1,
    "attcompression": "",
    "atthasmissing": False,
    "attidentity": "",
    "attgenerated": "",
    "attisdropped": False,
    "attislocal": True,
    "attinhcount": 0,
}


def _attributes(catalog: Catalog, relation: Relation) -> pa.Table:
    rows: list[tuple[int, str, int, int, int, bool, bool]] = []
    for each in catalog.tables:
        rows += [
            (each.oid, c.column.name, c.type.oid, c.column.id, c.type.modifier, c.column.required, bool(c.default))
            for c in each.columns
        ]
    for each in catalog.keyed:
        by_name = {column.column.name: column for column in each.columns}
        keys = [by_name[name] for name in each.table.primary_key]
        rows += [
            (each.index_oid, c.column.name, c.type.oid, place, c.type.modifier, False, False)
            for place, c in enumerate(keys, 1)
        ]
    known = type_oids()
    for system in relations().values():
        rows += [
            (system.oid, name, known.get(kind, 25), place, -1, name in system.required, False)
            for place, (name, kind) in enumerate(system.columns.items(), 1)
        ]
    return _attribute_rows(relation, rows)


def _attribute_rows(relation: Relation, rows: Sequence[tuple[int, str, int, int, int, bool, bool]]) -> pa.Table:
    relids, names, types, numbers, modifiers, required, has_default = zip(*rows, strict=True)
    kinds = {row["oid"]: row for row in fixed_rows("pg_type").to_pylist()}
    said = {oid: kinds[oid] for oid in set(types)}
    columns = {
        "attrelid": relids,
        "attname": names,
        "atttypid": types,
        "attlen": [said[oid]["typlen"] for oid in types],
        "attnum": numbers,
        "attndims": [int(said[oid]["typcategory"] == "A") for oid in types],
        "atttypmod": modifiers,
        "attbyval": [said[oid]["typbyval"] for oid in types],
        "attalign": [said[oid]["typalign"] for oid in types],
        "attstorage": [said[oid]["typstorage"] for oid in types],
        "attnotnull": required,
        "atthasdef": has_default,
        "attcollation": [said[oid]["typcollation"] for oid in types],
    }
    return rows_of(relation, len(rows), _ATTRIBUTE | columns)


def _indexes(catalog: Catalog, relation: Relation) -> pa.Table:
    keyed = catalog.keyed
    counts = [len(each.table.primary_key) for each in keyed]
    columns = {
        "indexrelid": [each.index_oid for each in keyed],
        "indrelid": [each.oid for each in keyed],
        "indnatts": counts,
        "indnkeyatts": counts,
        "indkey": [each.key_numbers for each in keyed],
        "indcollation": [[_collation(each, name) for name in each.table.primary_key] for each in keyed],
        "indclass": [[_operator_class(each, name) for name in each.table.primary_key] for each in keyed],
        "indoption": [[0] * count for count in counts],
        **dict.fromkeys(("indisunique", "indisprimary", "indimmediate", "indisvalid", "indisready", "indislive"), True),
        **dict.fromkeys(
            ("indnullsnotdistinct", "indisexclusion", "indisclustered", "indcheckxmin", "indisreplident"), False
        ),
    }
    return rows_of(relation, len(keyed), columns)


def _key_type(each: ListedTable, name: str) -> int:
    return next(column.type.oid for column in each.columns if column.column.name == name)


def _collation(each: ListedTable, name: str) -> int:
    return _DEFAULT_COLLATION if _key_type(each, name) == 25 else 0


def _operator_class(each: ListedTable, name: str) -> int:
    kind = _key_type(each, name)
    found = fixed_rows("pg_opclass").to_pylist()
    return next((int(row["oid"]) for row in found if row["opcintype"] == kind), 0)


def _constraints(catalog: Catalog, relation: Relation) -> pa.Table:
    keyed = catalog.keyed
    columns = {
        "oid": [each.constraint_oid for each in keyed],
        "conname": [each.key_name for each in keyed],
        "connamespace": [each.schema_oid for each in keyed],
        "contype": "p",
        "condeferrable": False,
        "condeferred": False,
        "convalidated": True,
        "conrelid": [each.oid for each in keyed],
        "contypid": 0,
        "conindid": [each.index_oid for each in keyed],
        "conparentid": 0,
        "confrelid": 0,
        "confupdtype": " ",
        "confdeltype": " ",
        "confmatchtype": " ",
        "conislocal": True,
        "coninhcount": 0,
        "connoinherit": True,
        "conkey": [each.key_numbers for each in keyed],
    }
    return rows_of(relation, len(keyed), columns)


def _descriptions(catalog: Catalog, relation: Relation) -> pa.Table:
    rows = [(each.oid, 0, each.comment) for each in catalog.tables if each.comment]
    for each in catalog.tables:
        rows += [(each.oid, c.column.id, c.comment) for c in each.columns if c.comment]
    objects, numbers, texts = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {"objoid": objects, "classoid": CLASS_OID, "objsubid": numbers, "description": texts}
    return rows_of(relation, len(rows), columns)


def _defaults(catalog: Catalog, relation: Relation) -> pa.Table:
    found = [(each, column) for each in catalog.tables for column in each.columns if column.default]
    columns = {
        "oid": [catalog.default_oid(each, column) for each, column in found],
        "adrelid": [each.oid for each, _ in found],
        "adnum": [column.column.id for _, column in found],
        "adbin": [column.default for _, column in found],
    }
    return rows_of(relation, len(found), columns)


def _databases(catalog: Catalog, relation: Relation) -> pa.Table:
    columns = {
        "oid": [catalog_database_oid()],
        "datname": catalog.session.database,
        "datdba": SERVER_ROLE_OID,
        "encoding": 6,
        "datlocprovider": "c",
        "datistemplate": False,
        "datallowconn": True,
        "datconnlimit": -1,
        "datfrozenxid": 0,
        "datminmxid": 1,
        "dattablespace": _TABLESPACE,
        "datcollate": "C",
        "datctype": "C",
    }
    return rows_of(relation, 1, columns)


def catalog_database_oid() -> int:
    """The oid of the one database of a connection: PostgreSQL's of the database `postgres`."""
    return 5


def _roles(catalog: Catalog, relation: Relation) -> pa.Table:
    names, numbers = list(catalog.roles), list(catalog.roles.values())
    columns = {
        "rolname": names,
        "oid": numbers,
        "rolsuper": [name == SERVER_ROLE for name in names],
        "rolinherit": True,
        "rolcreaterole": False,
        "rolcreatedb": False,
        "rolcanlogin": [name != SERVER_ROLE for name in names],
        "rolreplication": False,
        "rolbypassrls": False,
        "rolconnlimit": -1,
    }
    if "rolpassword" in relation.columns and relation.name == "pg_roles":
        columns["rolpassword"] = "********"
    return rows_of(relation, len(names), columns)


def _users(catalog: Catalog, relation: Relation) -> pa.Table:
    names = [name for name in catalog.roles if name != SERVER_ROLE]
    columns = {
        "usename": names,
        "usesysid": [catalog.roles[name] for name in names],
        "usecreatedb": False,
        "usesuper": False,
        "userepl": False,
        "usebypassrls": False,
        "passwd": "********",
    }
    return rows_of(relation, len(names), columns)


def _settings(catalog: Catalog, relation: Relation) -> pa.Table:
    rows = settings_rows.rows(catalog.session.variables, catalog.session.search_path)
    names, values, short = (list(part) for part in zip(*rows, strict=True))
    columns = {
        "name": names,
        "setting": values,
        "short_desc": short,
        "category": "Client Connection Defaults",
        "context": "user",
        "vartype": "string",
        "source": "default",
        "boot_val": values,
        "reset_val": values,
        "pending_restart": False,
    }
    return rows_of(relation, len(rows), columns)


def _activity(catalog: Catalog, relation: Relation) -> pa.Table:
    session = catalog.session
    columns = {
        "datid": catalog_database_oid(),
        "datname": session.database,
        "pid": session.backend,
        "usesysid": catalog.roles[session.user],
        "usename": session.user,
        "application_name": session.variables.get("application_name", ""),
        "state": "active",
        "backend_type": "client backend",
    }
    return rows_of(relation, 1, columns)


def _tablespaces(catalog: Catalog, relation: Relation) -> pa.Table:
    columns = {"oid": [_TABLESPACE, 1664], "spcname": ["pg_default", "pg_global"], "spcowner": SERVER_ROLE_OID}
    return rows_of(relation, 2, columns)


def _listed_tables(catalog: Catalog, relation: Relation) -> pa.Table:
    tables = catalog.tables
    system = [each for each in relations().values() if each.kind == "r"]
    columns = {
        "schemaname": [*(each.table.namespace for each in tables), *(each.schema for each in system)],
        "tablename": [*(each.table.short_name for each in tables), *(each.name for each in system)],
        "tableowner": [*(each.owner for each in tables), *(SERVER_ROLE for _ in system)],
        "hasindexes": [*(bool(each.table.primary_key) for each in tables), *(False for _ in system)],
        "hasrules": False,
        "hastriggers": False,
        "rowsecurity": False,
    }
    return rows_of(relation, len(tables) + len(system), columns)


def _listed_indexes(catalog: Catalog, relation: Relation) -> pa.Table:
    keyed = catalog.keyed
    columns = {
        "schemaname": [each.table.namespace for each in keyed],
        "tablename": [each.table.short_name for each in keyed],
        "indexname": [each.key_name for each in keyed],
        "indexdef": [index_definition(each) for each in keyed],
    }
    return rows_of(relation, len(keyed), columns)


def _listed_views(catalog: Catalog, relation: Relation) -> pa.Table:
    system = [each for each in relations().values() if each.kind == "v"]
    columns = {
        "schemaname": [each.schema for each in system],
        "viewname": [each.name for each in system],
        "viewowner": SERVER_ROLE,
        "definition": "",
    }
    return rows_of(relation, len(system), columns)


def _table_statistics(catalog: Catalog, relation: Relation) -> pa.Table:
    tables = catalog.tables
    columns = {
        "relid": [each.oid for each in tables],
        "schemaname": [each.table.namespace for each in tables],
        "relname": [each.table.short_name for each in tables],
    }
    return rows_of(relation, len(tables), columns)


_ROWS: dict[str, Callable[[Catalog, Relation], pa.Table]] = {
    "pg_attrdef": _defaults,
    "pg_attribute": _attributes,
    "pg_authid": _roles,
    "pg_class": _classes,
    "pg_constraint": _constraints,
    "pg_database": _databases,
    "pg_description": _descriptions,
    "pg_index": _indexes,
    "pg_indexes": _listed_indexes,
    "pg_namespace": _namespaces,
    "pg_roles": _roles,
    "pg_settings": _settings,
    "pg_shadow": _users,
    "pg_stat_activity": _activity,
    "pg_stat_all_tables": _table_statistics,
    "pg_stat_user_tables": _table_statistics,
    "pg_statio_user_tables": _table_statistics,
    "pg_tables": _listed_tables,
    "pg_tablespace": _tablespaces,
    "pg_user": _users,
    "pg_views": _listed_views,
}
