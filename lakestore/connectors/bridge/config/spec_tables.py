"""The tables of bridge.yaml: a topic's table or route, columns, policies, and options as in tables.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args
from zoneinfo import ZoneInfo

import pyarrow as pa

from lakestore.connectors.bridge import spec as said
from lakestore.connectors.bridge.config.yaml_place import Place
from lakestore.connectors.bridge.paths import EVENT_ROOTS
from lakestore.connectors.bridge.spec import ColumnSpec, RouteSpec, TableSpec
from lakestore.connectors.bridge.tables import wanted_table
from lakestore.errors import Invalid
from lakestore.model.columns import lake_options
from lakestore.model.defaults import canonical
from lakestore.model.merge_engines import parsed as parse_merge
from lakestore.model.table import define
from lakestore.model.table_file import TABLE_KEYS
from lakestore.model.ttl import parsed as parse_ttl
from lakestore.model.types import arrow_type

OPTION_KEYS = tuple(key for key in TABLE_KEYS if key not in ("name", "columns", "primary_key"))
POLICIES: dict[str, tuple[str, ...]] = {
    "on_error": get_args(said.OnError),
    "tombstone": get_args(said.Tombstone),
    "truncate": get_args(said.Truncate),
    "drift": get_args(said.Drift),
    "events": get_args(said.Events),
}
TABLE_PART_KEYS = (
    "primary_key", "columns", "where", "coordinates", "version", "event_columns", *POLICIES, *OPTION_KEYS,
)  # fmt: skip
ROUTE_KEYS = ("by", "tables", "otherwise")
COLUMN_KEYS = ("name", "type", "from", "expression", "required", "default", "unit", "zone")
PLACEHOLDERS = ("topic", "database", "schema", "table")
_PATH = re.compile(
    r"(value|key)(\..+)?|headers(\..+)?|topic|partition|offset|timestamp"
    r"|(source|transaction)\..+|op|ts_ms|ts_us|ts_ns|position",
    re.DOTALL,
)
_TIME_UNITS, _DECIMAL_UNITS = ("s", "ms", "us", "ns"), ("base64", "text")


def target(place: Place, keys: Mapping[str, Place], form: str) -> TableSpec | RouteSpec:
    """The table or route of a topic, whose keys are given."""
    if ("table" in keys) == ("route" in keys):
        raise place.refused("names a table, or tables by a route: one of the two keys")
    shared = {key: keys[key] for key in TABLE_PART_KEYS if key in keys}
    if "table" in keys:
        return _table(keys["table"], shared, form)
    route = keys["route"].keys(ROUTE_KEYS, ("by", "tables"))
    tables = {}
    for value, (entry, _) in route["tables"].entries().items():
        if entry.is_text:
            tables[value] = _table(entry, shared, form)
            continue
        own = entry.keys(("table", *TABLE_PART_KEYS), ("table",))
        tables[value] = _table(own["table"], shared | {key: own[key] for key in own if key != "table"}, form)
    if not tables:
        raise route["tables"].refused("names no table")
    otherwise: Any = route["otherwise"].one_of(("dlq", "skip")) if "otherwise" in route else "dlq"
    return RouteSpec(_path(route["by"]), tables, otherwise)


def _table(place: Place, keys: Mapping[str, Place], form: str) -> TableSpec:
    name = _table_name(place, form)
    columns = tuple(_column(entry) for entry in keys["columns"].items()) if "columns" in keys else ()
    if "columns" in keys:
        _check_columns(keys["columns"], columns, form)
    policies: Any = {key: keys[key].one_of(known) for key, known in POLICIES.items() if key in keys}
    found = TableSpec(
        name,
        keys["primary_key"].texts() if "primary_key" in keys else (),
        columns,
        keys["where"].text() if "where" in keys else "",
        keys["coordinates"].flag() if "coordinates" in keys else False,
        keys["version"].text() if "version" in keys else "",
        **policies,
        event_columns=_event_columns(keys["event_columns"], form) if "event_columns" in keys else (),
        options={key: _option(key, keys[key]) for key in OPTION_KEYS if key in keys},
        line=place.line,
    )
    _check_table(place, keys, found, form)
    return found


def _table_name(place: Place, form: str) -> str:
    name = place.text()
    for placeholder in re.findall(r"\{([^{}]*)\}", name):
        if placeholder not in PLACEHOLDERS:
            raise place.refused(f"may hold {{{'}, {'.join(PLACEHOLDERS)}}}, and not {{{placeholder}}}")
        if placeholder != "topic" and not form.startswith("debezium"):
            raise place.refused(f"holds {{{placeholder}}}, which only change events tell; others have {{topic}}")
    return name


def _option(key: str, place: Place) -> Any:
    """A table's option, of the shape that `create_table` takes."""
    if key == "bucket_key":
        return list(place.texts())
    if key == "lake":
        place.entries()
    return place.value()


def _check_columns(place: Place, columns: tuple[ColumnSpec, ...], form: str) -> None:
    if not columns:
        raise place.refused("names no column: leave the key out to take those of the records' schema")
    names = [column.name for column in columns]
    for entry, name in zip(place.items(), names, strict=True):
        if names.count(name) > 1:
            raise entry.refused(f"says column {name!r} twice")
    for entry, column in zip(place.items(), columns, strict=True):
        if column.source.partition(".")[0] in EVENT_ROOTS and not form.startswith("debezium"):
            raise entry.refused(f"is from {column.source}, which only change events have")


def _check_table(place: Place, keys: Mapping[str, Place], table: TableSpec, form: str) -> None:
    """Refuse options that no table can have, as far as the columns are known."""
    keyed = bool(table.primary_key) or form.startswith("debezium")
    if table.events and not form.startswith("debezium"):
        raise keys["events"].refused("is about change events: say a debezium format")
    if table.truncate == "follow" and not form.startswith("debezium"):
        raise keys["truncate"].refused("follows TRUNCATEs of change events: say a debezium format")
    if table.truncate == "follow" and (table.version or "merge" in table.options):
        raise keys["truncate"].refused("follows by the position in the topic: leave out version and merge")
    if table.version and not keyed:
        raise keys["version"].refused("decides between rows of one key: name a primary_key")
    name = re.sub(r"\{[^{}]*\}", "x", table.table)
    if "." not in name and "{topic}" in table.table:
        name = "x.x"  # the topic's name may bring the database
    try:
        if table.columns:
            wanted_table(table, name=name)
        else:
            _check_options(table, name)
    except Invalid as error:
        raise place.because(error) from error


def _check_options(table: TableSpec, name: str) -> None:
    """Refuse options that name no column, as much as can be told without columns."""
    options = {key: value for key, value in table.options.items() if key not in ("merge", "ttl", "lake", "bucket_key")}
    names = table.primary_key or ("x",)
    define(name, pa.schema([pa.field(each, pa.int64()) for each in names]), primary_key=table.primary_key, **options)
    parse_merge(table.options.get("merge", "upsert"))
    parse_ttl(table.options.get("ttl"))
    lake_options(table.options.get("lake", {}))


def _column(place: Place) -> ColumnSpec:
    keys = place.keys(COLUMN_KEYS, ("name", "type"))
    if "from" in keys and "expression" in keys:
        raise place.refused("takes from or expression, not both")
    name, kind = keys["name"].text(), keys["type"].text()
    try:
        arrow_type(kind)
    except Invalid as error:
        raise keys["type"].because(error) from error
    default = None
    if "default" in keys:
        default = keys["default"].value()
        try:
            canonical(default, kind, name)
        except Invalid as error:
            raise keys["default"].because(error) from error
    return ColumnSpec(
        name,
        kind,
        _path(keys["from"]) if "from" in keys else "",
        keys["expression"].text() if "expression" in keys else "",
        keys["required"].flag() if "required" in keys else False,
        default,
        keys["unit"].one_of(_DECIMAL_UNITS if kind.startswith("decimal") else _TIME_UNITS) if "unit" in keys else "",
        _zone(keys["zone"]) if "zone" in keys else "",
    )


def _event_columns(place: Place, form: str) -> tuple[str, ...]:
    if not form.startswith("debezium"):
        raise place.refused("names parts of change events: say a debezium format")
    for text in place.texts():
        root, _, part = text.partition(".")
        if not _PATH.fullmatch(text) or root not in EVENT_ROOTS or (root in ("source", "transaction")) != bool(part):
            raise place.refused(f"names source.FIELD, transaction.FIELD, op, ts_ms or position, not {text!r}")
    return tuple(place.texts())


def _zone(place: Place) -> str:
    try:
        ZoneInfo(place.text())
    except (KeyError, ValueError, OSError) as error:
        raise place.refused(f"is a time zone such as Europe/Berlin or UTC, not {place.shown}") from error
    return place.text()


def _path(place: Place) -> str:
    text = place.text()
    if not _PATH.fullmatch(text) or text.endswith(".") or ".." in text:
        raise place.refused(
            "is value.FIELD, key.FIELD, headers.NAME, value, key, headers, topic, partition, offset or timestamp, and"
            f" of change events source.FIELD, transaction.FIELD, op, ts_ms or position, not {place.shown}"
        )
    return text
