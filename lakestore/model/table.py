"""Tables as values: columns with stable ids, keys, buckets and lake options.

The JSON of `Table.to_json` is the only stored and sent form.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import pyarrow as pa

from lakestore.errors import Denied, Invalid
from lakestore.limits import DEFAULT, Limits
from lakestore.model import defaults, outside_values, shapes, types
from lakestore.model.columns import (
    CATALOG_NAME,
    LAKE_BUCKET,
    LAKE_COLUMNS,
    LAKE_FIELD_IDS,
    LAKE_OFFSET,
    LAKE_TIMESTAMP,
    OPEN,
    OURS_ONLY,
    SYSTEM_PREFIX,
    SYSTEM_TYPES,
    WITH_MAINTENANCE,
    Column,
    LakeOptions,
    OldName,
    assign_ids,
    lake_options,
    max_id,
)
from lakestore.model.contract.contract import Contract
from lakestore.model.merge_engines import DELETES, UPSERT, Merge, parse_merge
from lakestore.model.merge_engines import check as check_merge
from lakestore.model.names import ADOPTING, SYSTEM_DATABASE, no_column
from lakestore.model.outside_values import excerpt, shown_name
from lakestore.model.retention import Retention, parse_retention
from lakestore.model.retention import check as check_retention
from lakestore.model.shapes import SECONDS_MAX
from lakestore.model.ttl import TOMBSTONE_SECONDS, Ttl, parse_ttl, seconds
from lakestore.model.ttl import check as check_ttl
from lakestore.model.types import type_name

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Table:
    """A table's definition."""

    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()
    """Empty for a log table."""
    buckets: int = 4
    bucket_key: tuple[str, ...] = ()
    """Columns whose hash selects the bucket. Default: the primary key; empty for a log table."""
    merge: Merge = UPSERT
    """Decides what happens to a row whose key exists."""
    lake: LakeOptions = field(default_factory=LakeOptions)
    uuid: str = ""
    """Assigned by the server. A table created again under the same name has another uuid."""
    number: int = 0
    """Assigned by the server and never reused: the table's prefix in the key index."""
    schema_id: int = 0
    last_column_id: int = 0
    """Highest id ever assigned to a column or nested field. Ids are never reused."""
    retention: Retention | None = None
    """The part of the log that is kept; None: all."""
    deletes: str = "allow"
    """Treatment of deletes: one of `DELETES`."""
    skip_unchanged: bool = False
    """True if an upsert equal to the live row is no change."""
    ttl: Ttl | None = None
    """When rows expire; None: never."""
    tombstone_seconds: int = TOMBSTONE_SECONDS
    """Minimum seconds for which a `versioned` table remembers the version of a deleted row."""
    former: tuple[str, ...] = ()
    """Assigned by the server: the uuids of the tables that it replaced by a rescale, oldest first."""
    contract: Contract | None = None
    """The contract that commits obey; None: no rules but the definition's own."""
    old_names: tuple[OldName, ...] = ()
    """Assigned by the server, in the order of the renames: names that columns had and that queries may still use."""

    def is_same(self, other: Table) -> bool:
        """Whether this is the table of another definition, maybe before or after a rescale."""
        return not {self.uuid, *self.former}.isdisjoint((other.uuid, *other.former))

    @property
    def keyed(self) -> bool:
        return bool(self.primary_key)

    @property
    def is_adopting(self) -> bool:
        """True for a table that takes the rows of an adoption. Nothing of it is tiered."""
        return self.lake.adopted and self.name.endswith(ADOPTING)

    @cached_property
    def is_system(self) -> bool:
        """True for a system table: the server gives it a uuid of version 5, and every other table one of version 4."""
        return self.namespace == SYSTEM_DATABASE and self.uuid[14:15] == "5"

    def refuse_change(self) -> None:
        """`Denied` for a system table: nobody but the server writes or changes it."""
        if self.is_system:
            raise Denied(
                f"table {self.name} is a system table: everybody with the right reads it, and only the server"
                " writes and changes it"
            )

    @property
    def namespace(self) -> str:
        return self.name.split(".")[0]

    @property
    def short_name(self) -> str:
        return self.name.split(".")[1]

    @cached_property
    def schema(self) -> pa.Schema:
        """Arrow schema for readers."""
        return pa.schema([column.arrow for column in self.columns])

    @cached_property
    def nullable_schema(self) -> pa.Schema:
        """Schema of rows as sent: nothing is required."""
        return pa.schema([column.arrow.with_nullable(True) for column in self.columns])

    @cached_property
    def storage_schema(self) -> pa.Schema:
        """Schema of stored rows: only the key is required, because a delete has nothing else."""
        keys = set(self.primary_key)
        return pa.schema([column.arrow.with_nullable(column.name not in keys) for column in self.columns])

    @property
    def key_schema(self) -> pa.Schema:
        """Primary key columns in key order."""
        return pa.schema([self.column(name).arrow for name in self.primary_key])

    def old_name_of(self, name: str) -> Column | None:
        """The column that had this name before a rename, while queries may use it; None for every other name."""
        ids = {each.id for each in self.old_names if each.name == name}
        return next((column for column in self.columns if column.id in ids), None)

    def column(self, name: str) -> Column:
        """The column of a name. Raises `Invalid`."""
        for column in self.columns:
            if column.name == name:
                return column
        raise Invalid(no_column(f"table {self.name}", name, [column.name for column in self.columns]))

    def selected(self, columns: list[str] | tuple[str, ...] | None) -> list[str]:
        """Checked names of columns to read; default: all user columns."""
        if not columns:
            return [column.name for column in self.columns]
        if len(set(columns)) != len(columns):
            raise Invalid(f"table {self.name}: a column is asked for twice: name each of them once")
        for name in columns:
            if name not in SYSTEM_TYPES:
                self.column(name)
        return list(columns)

    def read_schema(self, columns: list[str] | tuple[str, ...] | None) -> pa.Schema:
        """Arrow schema of a read of these columns; system columns must be named."""
        return pa.schema(
            [
                pa.field(name, SYSTEM_TYPES[name]) if name in SYSTEM_TYPES else self.column(name).arrow
                for name in self.selected(columns)
            ]
        )

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), separators=(",", ":"), sort_keys=True)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "columns": [column.as_dict() for column in self.columns],
            "primary_key": list(self.primary_key),
            "buckets": self.buckets,
            "bucket_key": list(self.bucket_key),
            "merge": self.merge.as_data(),
            "lake": self.lake.as_dict(),
            "uuid": self.uuid,
            "number": self.number,
            "schema_id": self.schema_id,
            "last_column_id": self.last_column_id,
            **({"retention": self.retention.as_dict()} if self.retention else {}),
            **self._keyed_options(),
            **({"former": list(self.former)} if self.former else {}),
            **({"contract": self.contract.as_dict()} if self.contract else {}),
            **({"old_names": [each.as_dict() for each in self.old_names]} if self.old_names else {}),
        }

    def _keyed_options(self) -> dict[str, Any]:
        said: dict[str, Any] = {
            "deletes": self.deletes,
            "skip_unchanged": self.skip_unchanged,
            "ttl": self.ttl.as_dict() if self.ttl else None,
            "tombstone_seconds": self.tombstone_seconds,
        }
        usual = {"deletes": "allow", "skip_unchanged": False, "ttl": None, "tombstone_seconds": TOMBSTONE_SECONDS}
        return {name: value for name, value in said.items() if value != usual[name]}

    @staticmethod
    def received(text: str) -> Table:
        """Parse a definition from the wire and check its types; `check` has the rules.

        Raises `Invalid` for an unknown key, which would define another table.
        """
        said = outside_values.json_of(text, "the table definition")
        for name in set(said) - {part.name for part in fields(Table)} if isinstance(said, dict) else ():
            raise Invalid(
                f"this server does not know {outside_values.excerpt(name)} of a table: run it with a newer release"
            )
        return Table.from_dict(shapes.DEFINITION(said, "the table definition"))

    @staticmethod
    def from_json(text: str | bytes) -> Table:
        return Table.from_dict(json.loads(text))

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Table:
        """Parse the output of `as_dict`, also of a less strict release."""
        columns = tuple(Column.from_dict(column) for column in data["columns"])
        return Table(
            name=data["name"],
            columns=columns,
            primary_key=tuple(data["primary_key"]),
            buckets=data["buckets"],
            bucket_key=tuple(data["bucket_key"]),
            merge=parse_merge(data["merge"]),
            lake=LakeOptions.from_dict(data["lake"]),
            uuid=data.get("uuid", ""),
            number=data.get("number", 0),
            schema_id=data.get("schema_id", 0),
            last_column_id=int(data.get("last_column_id") or max_id(columns)),
            retention=Retention.from_dict(data.get("retention")),
            deletes=data.get("deletes", "allow"),
            skip_unchanged=data.get("skip_unchanged", False),
            ttl=Ttl.from_dict(data.get("ttl")),
            tombstone_seconds=data.get("tombstone_seconds", TOMBSTONE_SECONDS),
            former=tuple(data.get("former", ())),
            contract=Contract.from_dict(data.get("contract")),
            old_names=tuple(OldName(**each) for each in data.get("old_names", ())),
        )


def define(
    name: str,
    schema: pa.Schema,
    *,
    primary_key: list[str] | tuple[str, ...] | None = None,
    buckets: int = 4,
    bucket_key: list[str] | tuple[str, ...] | None = None,
    merge: Any = "upsert",
    lake: dict[str, Any] | None = None,
    limits: Limits = DEFAULT,
    retention: Any = None,
    deletes: str = "allow",
    skip_unchanged: bool = False,
    ttl: Any = None,
    tombstone_ttl: Any = TOMBSTONE_SECONDS,
) -> Table:
    """A checked table from a user's arguments."""
    for what, names in (("primary_key", primary_key), ("bucket_key", bucket_key)):
        if isinstance(names, str):
            raise Invalid(f"table {name}: {what}= is a list of column names, not the text {names!r}")
    keys = tuple(primary_key or ())
    engine = parse_merge(merge)
    required = {*keys, *engine.version}
    columns = assign_ids(
        [Column(0, f.name, type_name(f.type, f.name), required=not f.nullable or f.name in required) for f in schema]
    )
    table = Table(
        name=name,
        columns=columns,
        primary_key=keys,
        buckets=buckets,
        bucket_key=tuple(bucket_key or keys),
        merge=engine,
        lake=lake_options(lake or {}),
        last_column_id=max_id(columns),
        retention=parse_retention(retention),
        deletes=deletes,
        skip_unchanged=skip_unchanged,
        ttl=parse_ttl(ttl),
        tombstone_seconds=seconds(tombstone_ttl, "tombstone_ttl"),
    )
    check(table, limits)
    return table


def check(table: Table, limits: Limits = DEFAULT) -> None:
    """Refuse an invalid definition, naming the column and the rule."""
    _check_shape(table)
    _check_names(table, limits)
    for column in table.columns:
        types.check(column.name, column.type, limits)
        for value in (column.default, column.initial):
            defaults.scalar(value, column.type, column.name)
    _check_ids(table)
    _check_keys(table)
    check_retention(table.retention, table.name)
    if type(table.buckets) is not int or not 1 <= table.buckets <= limits.buckets:
        raise Invalid(f"table {table.name}: buckets must be 1 to {limits.buckets}, not {table.buckets}")
    _check_changes(table)
    if table.contract is not None:
        table.contract.check(table)
    if table.lake.format_version not in (2, 3):
        raise Invalid(f"table {table.name}: lake format_version must be 2 or 3")
    if table.lake.catalog and not CATALOG_NAME.fullmatch(table.lake.catalog):
        raise Invalid(f"table {table.name}: lake catalog {shown_name(table.lake.catalog)} is not a catalog's name")
    _check_committers(table)
    if not 1 <= table.lake.freshness_seconds <= SECONDS_MAX:
        raise Invalid(f"table {table.name}: freshness is a time from 1s to {SECONDS_MAX}s")
    partitioned = [part.column for part in table.lake.partition_fields()]
    _check_z_order(table)
    for name in (*partitioned, *[part.column for part in table.lake.sort_fields()]):
        if name not in LAKE_COLUMNS and types.is_nested(table.column(name).type):
            raise Invalid(
                f"table {table.name}: column {name!r} is nested, and lake tables are neither "
                "partitioned nor sorted by nested columns"
            )


def _check_committers(table: Table) -> None:
    said = table.lake.committers
    if said == OPEN:
        raise Invalid(
            f"table {table.name}: committers {OPEN!r} is not there yet: rows of other engines cannot become commits of"
            f" the log; write them through Lakestore, and use {WITH_MAINTENANCE!r} or {OURS_ONLY!r}"
        )
    if said not in (OURS_ONLY, WITH_MAINTENANCE):
        raise Invalid(f"table {table.name}: committers is {OURS_ONLY!r} or {WITH_MAINTENANCE!r}, not {excerpt(said)}")


Z_ORDER_TYPES = ("int", "long", "float", "double", "string", "binary", "timestamptz")
"""Types of the lake that Iceberg's rewrite in Spark can order along a Z-curve."""


def _check_z_order(table: Table) -> None:
    names = table.lake.z_order_by
    if names and (table.lake.sort_by or len(set(names)) < max(len(names), 2)):
        raise Invalid(f"table {table.name}: lake option 'z_order_by' is two columns or more, without 'sort_by'")
    for name in names:
        kind = table.column(name).type
        if not re.fullmatch(r"\w+", name):
            raise Invalid(
                f"table {table.name}: column {name!r} has other characters than letters, digits and _, which"
                " Iceberg cannot order along a Z-curve"
            )
        if types.is_nested(kind) or types.iceberg_type(kind) not in Z_ORDER_TYPES:
            raise Invalid(
                f"table {table.name}: column {name!r} is {kind}, and a Z-curve is of integers, floating-point numbers,"
                " strings, binary and timestamptz"
            )
        if name in [part.column for part in table.lake.partition_fields() if part.transform == "identity"]:
            raise Invalid(f"table {table.name}: column {name!r} is a partition, so a Z-curve has no use for it")


def _check_shape(table: Table) -> None:
    try:
        data = table.as_dict()
    except (TypeError, AttributeError, ValueError) as error:
        raise Invalid(f"the table definition has a value of a wrong type: {error}") from error
    shapes.DEFINITION(data, "the definition")


def _check_changes(table: Table) -> None:
    check_merge(table.merge, {c.name: (c.type, c.required) for c in table.columns}, table.primary_key, table.name)
    if table.deletes not in DELETES:
        raise Invalid(f"table {table.name}: deletes is one of {', '.join(DELETES)}, not {table.deletes!r}")
    if type(table.skip_unchanged) is not bool:
        raise Invalid(f"table {table.name}: skip_unchanged is true or false, not {table.skip_unchanged!r}")
    if not table.keyed and (table.deletes != "allow" or table.skip_unchanged):
        raise Invalid(f"table {table.name}: deletes= and skip_unchanged= are for primary-key tables; leave them out")
    if type(table.tombstone_seconds) is not int or not 0 <= table.tombstone_seconds <= SECONDS_MAX:
        raise Invalid(f"table {table.name}: tombstone_ttl is up to {SECONDS_MAX} s, not {table.tombstone_seconds!r}")
    check_ttl(table.ttl, {c.name: c.type for c in table.columns}, table.name, keyed=table.keyed)


def refuse_system_database(name: str) -> None:
    """`Denied` if a new table, view or database has the name of the system tables' database, in any case of letters:
    DuckDB and Spark take `LAKESTORE.audit` for the same table."""
    if name.lower() == SYSTEM_DATABASE:
        raise Denied(f"database {SYSTEM_DATABASE} is for the server's system tables: choose another database")


def check_database(name: str) -> None:
    """Refuse an invalid database name."""
    if not _NAME.fullmatch(name):
        raise Invalid(f"database name {shown_name(name)} is not of the letters a-z and A-Z, digits and _")


def _check_names(table: Table, limits: Limits) -> None:
    parts = table.name.split(".")
    if len(parts) != 2 or not all(_NAME.fullmatch(part) for part in parts):
        name = shown_name(table.name)
        raise Invalid(f"table name {name} is not 'database.table' of the letters a-z and A-Z, digits and _")
    names = [column.name for column in table.columns]
    if not 1 <= len(names) <= limits.columns:
        raise Invalid(f"table {table.name}: a table has 1 to {limits.columns} columns, not {len(names)}")
    for name in (*parts, *names):
        if not name or len(name) > limits.name_chars:
            raise Invalid(f"table {table.name}: name {shown_name(name)} has not 1 to {limits.name_chars} characters")
    for name in names:
        if name.startswith(SYSTEM_PREFIX):
            raise Invalid(f"table {table.name}: column {name!r} starts with '__', which is for system columns")
    if len({name.lower() for name in names}) != len(names):
        raise Invalid(f"table {table.name}: two columns have the same name (upper and lower case are alike)")


def _check_ids(table: Table) -> None:
    ids = [number for column in table.columns for number in (column.id, *column.nested)]
    if len(set(ids)) != len(ids) or not all(type(number) is int and number > 0 for number in ids):
        raise Invalid(f"table {table.name}: the ids of columns and nested fields are not distinct positive numbers")
    for column in table.columns:
        if len(column.nested) != types.nested_count(column.type):
            raise Invalid(f"table {table.name}: column {column.name!r} has not one id for each of its nested fields")
    if not max(ids) <= table.last_column_id < LAKE_FIELD_IDS[LAKE_BUCKET]:
        raise Invalid(f"table {table.name}: last_column_id {table.last_column_id} is not the highest id ever given")


def _check_keys(table: Table) -> None:
    for what, names in (("primary key", table.primary_key), ("bucket key", table.bucket_key)):
        if len(set(names)) != len(names):
            raise Invalid(f"table {table.name}: the {what} names a column twice")
        for name in names:
            if table.column(name).type in ("float32", "float64"):
                raise Invalid(
                    f"table {table.name}: column {name!r} is a float and cannot be in the {what}: "
                    "NaN equals nothing and 0.0 equals -0.0; use a decimal, an integer or a string"
                )
            if types.is_nested(table.column(name).type):
                raise Invalid(f"table {table.name}: column {name!r} is nested and cannot be in the {what}")
    for name in table.primary_key:
        if not table.column(name).required:
            raise Invalid(f"table {table.name}: key column {name!r} must be required")
    if table.keyed and not set(table.bucket_key) <= set(table.primary_key):
        raise Invalid(f"table {table.name}: the bucket key must be part of the primary key")
    if table.keyed and not table.bucket_key:
        raise Invalid(f"table {table.name}: a primary-key table needs a bucket key")


def lake_schema(table: Table) -> list[Column]:
    """The lake table's columns: the user's and our three, with ids far above."""
    required = not table.lake.adopted
    return [
        *table.columns,
        Column(LAKE_FIELD_IDS[LAKE_BUCKET], LAKE_BUCKET, "int32", required=required),
        Column(LAKE_FIELD_IDS[LAKE_OFFSET], LAKE_OFFSET, "int64", required=required),
        Column(LAKE_FIELD_IDS[LAKE_TIMESTAMP], LAKE_TIMESTAMP, "timestamptz", required=required),
    ]
