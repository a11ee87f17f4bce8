"""Parses bridge.yaml to a `BridgeSpec`. Raises `Invalid` with the file, the line, the place and the rule."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args
from urllib.parse import unquote, urlsplit, urlunsplit
from zoneinfo import ZoneInfo

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.kafka.bridge import spec as said
from lakestore.kafka.bridge.paths import EVENT_ROOTS
from lakestore.kafka.bridge.spec import (
    BatchBounds,
    BridgeSpec,
    ColumnSpec,
    RegistrySpec,
    RouteSpec,
    SchemaSpec,
    SourceSpec,
    TableSpec,
    TopicSpec,
)
from lakestore.kafka.bridge.tables import wanted_table
from lakestore.kafka.bridge.yaml_place import Place, document
from lakestore.model.columns import lake_options
from lakestore.model.defaults import canonical
from lakestore.model.merge_engines import parse_merge
from lakestore.model.outside_values import INT64_MAX
from lakestore.model.retention import byte_count
from lakestore.model.table import define
from lakestore.model.table_file import TABLE_KEYS
from lakestore.model.times import micros_of
from lakestore.model.ttl import parse_ttl
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
_TIME_UNITS_OF_TYPE, _DECIMAL_UNITS = ("s", "ms", "us", "ns"), ("base64", "text")


def target(place: Place, keys: Mapping[str, Place], form: str) -> TableSpec | RouteSpec:
    """The table or route of a topic's entry."""
    if ("table" in keys) == ("route" in keys):
        raise place.refusal("names a table, or tables by a route: one of the two keys")
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
        raise route["tables"].refusal("names no table")
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
            raise place.refusal(f"may hold {{{'}, {'.join(PLACEHOLDERS)}}}, and not {{{placeholder}}}")
        if placeholder != "topic" and not form.startswith("debezium"):
            raise place.refusal(f"holds {{{placeholder}}}, which only change events tell; others have {{topic}}")
    return name


def _option(key: str, place: Place) -> Any:
    if key == "bucket_key":
        return list(place.texts())
    if key == "lake":
        place.entries()
    return place.value()


def _check_columns(place: Place, columns: tuple[ColumnSpec, ...], form: str) -> None:
    if not columns:
        raise place.refusal("names no column: leave the key out to take the columns of the records' schema")
    names = [column.name for column in columns]
    for entry, name in zip(place.items(), names, strict=True):
        if names.count(name) > 1:
            raise entry.refusal(f"says column {name!r} twice")
    for entry, column in zip(place.items(), columns, strict=True):
        if column.source.partition(".")[0] in EVENT_ROOTS and not form.startswith("debezium"):
            raise entry.refusal(f"is from {column.source}, which only change events have")


def _check_table(place: Place, keys: Mapping[str, Place], table: TableSpec, form: str) -> None:
    keyed = bool(table.primary_key) or form.startswith("debezium")
    if table.events and not form.startswith("debezium"):
        raise keys["events"].refusal("is about change events: say a debezium format")
    if table.truncate == "follow" and not form.startswith("debezium"):
        raise keys["truncate"].refusal("follows TRUNCATEs of change events: say a debezium format")
    if table.truncate == "follow" and (table.version or "merge" in table.options):
        raise keys["truncate"].refusal("follows by the position in the topic: leave out version and merge")
    if table.version and not keyed:
        raise keys["version"].refusal("decides between rows of one key: name a primary_key")
    name = re.sub(r"\{[^{}]*\}", "x", table.table)
    if "." not in name and "{topic}" in table.table:
        name = "x.x"  # the topic's name may provide the database
    try:
        if table.columns:
            wanted_table(table, name=name)
        else:
            _check_options(table, name)
    except Invalid as error:
        raise place.because(error) from error


def _check_options(table: TableSpec, name: str) -> None:
    options = {key: value for key, value in table.options.items() if key not in ("merge", "ttl", "lake", "bucket_key")}
    names = table.primary_key or ("x",)
    define(name, pa.schema([pa.field(each, pa.int64()) for each in names]), primary_key=table.primary_key, **options)
    parse_merge(table.options.get("merge", "upsert"))
    parse_ttl(table.options.get("ttl"))
    lake_options(table.options.get("lake", {}))


def _column(place: Place) -> ColumnSpec:
    keys = place.keys(COLUMN_KEYS, ("name", "type"))
    if "from" in keys and "expression" in keys:
        raise place.refusal("takes from or expression, not both")
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
        keys["unit"].one_of(_DECIMAL_UNITS if kind.startswith("decimal") else _TIME_UNITS_OF_TYPE)
        if "unit" in keys
        else "",
        _zone(keys["zone"]) if "zone" in keys else "",
    )


def _event_columns(place: Place, form: str) -> tuple[str, ...]:
    if not form.startswith("debezium"):
        raise place.refusal("names parts of change events: say a debezium format")
    for text in place.texts():
        root, _, part = text.partition(".")
        if not _PATH.fullmatch(text) or root not in EVENT_ROOTS or (root in ("source", "transaction")) != bool(part):
            raise place.refusal(f"names source.FIELD, transaction.FIELD, op, ts_ms or position, not {text!r}")
    return tuple(place.texts())


def _zone(place: Place) -> str:
    try:
        ZoneInfo(place.text())
    except (KeyError, ValueError, OSError) as error:
        raise place.refusal(f"is a time zone such as Europe/Berlin or UTC, not {place.shown}") from error
    return place.text()


def _path(place: Place) -> str:
    text = place.text()
    if not _PATH.fullmatch(text) or text.endswith(".") or ".." in text:
        raise place.refusal(
            "is value.FIELD, key.FIELD, headers.NAME, value, key, headers, topic, partition, offset or timestamp, and"
            f" of change events source.FIELD, transaction.FIELD, op, ts_ms or position, not {place.shown}"
        )
    return text


SOURCE_KEYS = ("bootstrap", "group", "registry", "sasl", "tls", "options")
SASL_KEYS = ("mechanism", "username", "password", "token_url", "client_id", "client_secret", "scope")
TLS_KEYS = ("ca", "cert", "key", "key_password", "verify_hostname", "verify")
REGISTRY_KEYS = ("url", "username", "password", "token", "tls", "options")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER")
GROUP_CHARS_MAX = 249
FILE_BYTES_MAX = 1 << 20
"""Largest file for a secret or a schema. A larger file was probably named by mistake."""
OURS = (
    "bootstrap.servers", "group.id", "group.protocol", "group.instance.id", "isolation.level", "enable.auto.commit",
    "enable.auto.offset.store", "auto.offset.reset", "enable.partition.eof", "partition.assignment.strategy",
    "allow.auto.create.topics", "transactional.id",
)  # fmt: skip
"""Settings of librdkafka that the bridge sets itself, because exactly-once delivery depends on them."""
_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:,/\[\]]+)(:[0-9]{1,5})?")
_SASL: dict[str, str] = {
    "username": "sasl.username",
    "password": "sasl.password",
    "token_url": "sasl.oauthbearer.token.endpoint.url",
    "client_id": "sasl.oauthbearer.client.id",
    "client_secret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}
_TLS = {"ca": "ssl.ca.location", "cert": "ssl.certificate.location", "key": "ssl.key.location"}


@dataclass(frozen=True, slots=True)
class Secrets:
    """Resolves variables and files in the texts of a source."""

    folder: Path
    """Folder of bridge.yaml; relative paths start here."""
    variable: Callable[[str], str | None]
    """Looks up an environment variable."""

    def text(self, place: Place) -> str:
        return self.expand(place, place.text())

    def expand(self, place: Place, text: str) -> str:
        """A text at a place with variables and files resolved."""
        if text.startswith("file:"):
            return self._held(place, self._path(place, text.removeprefix("file:")))

        def put(match: re.Match[str]) -> str:
            if match[1] is None:
                return "${"
            if not _VARIABLE_NAME.fullmatch(match[1]):
                raise place.refusal("names a variable as ${NAME}, of letters, digits and _; write $${ for the signs ${")
            value = self.variable(match[1])
            if not value:
                raise place.refusal(f"takes the variable {match[1]}, which is not set: export {match[1]}=…")
            return value

        return _VARIABLE.sub(put, text)

    def path(self, place: Place) -> str:
        text = place.text()
        found = self._path(place, text.removeprefix("file:"))
        if not found.is_file():
            raise place.refusal(f"names the file {found}, which is not there")
        return str(found)

    def file_text(self, place: Place) -> str:
        return self._held(place, self._path(place, place.text().removeprefix("file:")))

    def _path(self, place: Place, text: str) -> Path:
        whole = self.expand(place, text) if not text.startswith("file:") else text
        return self.folder / Path(whole).expanduser()

    @staticmethod
    def _held(place: Place, path: Path) -> str:
        try:
            if path.stat().st_size > FILE_BYTES_MAX:
                raise place.refusal(f"takes the file {path}, which has more than {FILE_BYTES_MAX:,} bytes")
            text = path.read_text().removesuffix("\n").removesuffix("\r")
        except (OSError, RuntimeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise place.refusal(f"takes the file {path}, which cannot be read: {why}") from error
        except UnicodeDecodeError as error:
            raise place.refusal(f"takes the file {path}, which holds no text in UTF-8") from error
        if not text or "\0" in text:
            raise place.refusal(f"takes the file {path}, which {'holds a zero byte' if text else 'is empty'}")
        return text


def sources(keys: Mapping[str, Place], name: str, secrets: Secrets) -> dict[str, SourceSpec]:
    """Sources by name. A single `source:` has an empty name."""
    if "source" in keys:
        if "sources" in keys:
            raise keys["sources"].refusal("cannot be combined with source: use one of them")
        return {"": _source_spec("", keys["source"], name, secrets)}
    place = keys["sources"]
    found = {}
    for key, (entry, _) in place.entries().items():
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", key):
            raise entry.refusal("is the name of a source: 1 to 100 letters, digits, '.', '_' and '-'")
        found[key] = _source_spec(key, entry, name, secrets)
    if not found:
        raise place.refusal("names no source")
    return found


def _source_spec(name: str, place: Place, bridge: str, secrets: Secrets) -> SourceSpec:
    keys = place.as_secret().keys(SOURCE_KEYS, ("bootstrap",))
    bootstrap = _bootstrap(keys["bootstrap"], secrets)
    group = secrets.text(keys["group"]) if "group" in keys else bridge
    if len(group) > GROUP_CHARS_MAX:
        raise keys["group"].refusal(f"has {GROUP_CHARS_MAX} characters at most")
    registry = _registry(keys["registry"], secrets) if "registry" in keys else None
    return SourceSpec(name, bootstrap, group, registry, _options(keys, secrets))


def _bootstrap(place: Place, secrets: Secrets) -> str:
    parts = place.items() if place.is_list else [place]
    servers = [server.strip() for part in parts for server in secrets.text(part).split(",")]
    for server in servers:
        match = _SERVER.fullmatch(server)
        if not match or (match[2] and not 0 < int(match[2][1:]) < 65_536):
            raise place.refusal('is HOST:PORT of a broker, or several with commas between, as in "localhost:9092"')
    if not servers:
        raise place.refusal("names no broker")
    return ",".join(servers)


def _options(keys: Mapping[str, Place], secrets: Secrets) -> dict[str, str]:
    found: dict[str, str] = {}
    secure = "tls" in keys and (keys["tls"].is_list or not keys["tls"].is_text or keys["tls"].flag())
    if secure:
        found |= _tls(keys["tls"], secrets)
    if "sasl" in keys:
        found |= _sasl(keys["sasl"], secrets)
    if secure or "sasl" in keys:
        found["security.protocol"] = ("SASL_" if "sasl" in keys else "") + (
            "SSL" if secure else "PLAINTEXT" if "sasl" in keys else ""
        )
    if "options" in keys:
        found |= free_options(keys["options"], secrets, OURS)
    return found


def _sasl(place: Place, secrets: Secrets) -> dict[str, str]:
    keys = place.keys(SASL_KEYS, ("mechanism",))
    mechanism = replace(keys["mechanism"], secret=False).one_of(MECHANISMS)
    by_token = ("token_url", "client_id", "client_secret", "scope")
    needed = {"GSSAPI": (), "OAUTHBEARER": by_token[:3]}.get(mechanism, ("username", "password"))
    taken = {"GSSAPI": (), "OAUTHBEARER": by_token}.get(mechanism, ("username", "password"))
    for key in needed:
        if key not in keys:
            raise place.refusal(f"lacks {key!r}, which {mechanism} needs")
    for key, entry in keys.items():
        if key not in ("mechanism", *taken):
            raise entry.refusal(f"is nothing that {mechanism} takes")
    found = {"sasl.mechanism": mechanism} | {_SASL[key]: secrets.text(keys[key]) for key in taken if key in keys}
    return found | ({"sasl.oauthbearer.method": "oidc"} if mechanism == "OAUTHBEARER" else {})


def _tls(place: Place, secrets: Secrets) -> dict[str, str]:
    if place.is_text:
        return {}
    keys = place.keys(TLS_KEYS)
    if ("cert" in keys) != ("key" in keys):
        raise place.refusal("takes cert and key together, or neither")
    found = {name: secrets.path(keys[key]) for key, name in _TLS.items() if key in keys}
    if "key_password" in keys:
        found["ssl.key.password"] = secrets.text(keys["key_password"])
    if "verify_hostname" in keys and not keys["verify_hostname"].flag():
        found["ssl.endpoint.identification.algorithm"] = "none"
    if "verify" in keys and not keys["verify"].flag():
        found["enable.ssl.certificate.verification"] = "false"
    return found


def free_options(place: Place, secrets: Secrets, ours: tuple[str, ...]) -> dict[str, str]:
    """Settings of a library under its own names. Raises `Invalid` for a setting in `ours`."""
    found = {}
    for name, (entry, _) in place.entries().items():
        if name in ours:
            raise entry.refusal("is set by the bridge itself: leave it out")
        if not entry.is_text or entry.is_null:
            raise entry.refusal("takes a single value")
        value = entry.value()
        found[name] = str(value).lower() if isinstance(value, bool) else secrets.text(entry)
    return found


def _registry(place: Place, secrets: Secrets) -> RegistrySpec:
    if place.is_text:
        return RegistrySpec(*_url(place, secrets))
    keys = place.keys(REGISTRY_KEYS, ("url",))
    url, options = _url(keys["url"], secrets)
    if ("username" in keys) != ("password" in keys):
        raise place.refusal("takes username and password together, or neither")
    if "username" in keys:
        if options or "token" in keys:
            raise keys["username"].refusal("is one of two ways to log in: say one of them")
        user = secrets.text(keys["username"])
        options["basic.auth.user.info"] = f"{user}:{secrets.text(keys['password'])}"
    if "token" in keys:
        token = secrets.text(keys["token"])
        options |= {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": token}
    if "tls" in keys and not (keys["tls"].is_text and not keys["tls"].flag()):
        tls = _tls(keys["tls"], secrets)
        for name in ("ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification"):
            if name in tls:
                raise keys["tls"].refusal("cannot be without verification at a registry: name its authority by ca")
        options |= tls
    if "options" in keys:
        options |= free_options(keys["options"], secrets, ("url",))
    return RegistrySpec(url, options)


def _url(place: Place, secrets: Secrets) -> tuple[str, dict[str, str]]:
    """Split a password out of an address. Returns the address and the setting for the password."""
    refused = place.refusal('is an address such as "http://localhost:8081"')
    try:
        parts = urlsplit(secrets.text(place))
        host, port = parts.hostname, parts.port
    except Invalid:
        raise
    except ValueError as error:
        raise refused from error
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise refused
    shown = f"[{host}]" if ":" in host else host
    url = urlunsplit((parts.scheme, f"{shown}:{port}" if port else shown, parts.path.rstrip("/"), "", ""))
    if parts.username is None:
        return url, {}
    return url, {"basic.auth.user.info": f"{unquote(parts.username)}:{unquote(parts.password or '')}"}


KEYS = ("name", "source", "sources", "batch", "topics")
BATCH_KEYS = ("rows", "bytes", "time")
TOPIC_KEYS = (
    "topic", "pattern", "source", "table", "route", "format", "wire", "key_format", "schema", "key_schema", "start",
    "transactions", "unavailable", *TABLE_PART_KEYS,
)  # fmt: skip
SCHEMA_KEYS = ("text", "file", "subject", "version", "message")
KEY_FORMATS = ("json", "avro", "protobuf", "string", "raw")
EVENT_KEY_FORMATS = ("json", "avro")
ROWS_MAX, BYTES_MAX, SECONDS_MAX = 1_000_000, 1 << 30, 3600.0
"""Upper bounds of a batch. Memory holds a batch several times."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_HEX = re.compile(r"hex:([0-9A-Fa-f]{2})+")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m|min)")
_TIME_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0}
_WITH_SCHEMA = ("avro", "protobuf", "debezium-avro")


def read(path: Path, variable: Callable[[str], str | None] = os.environ.get) -> BridgeSpec:
    """Read a bridge file. Relative paths in it start at its folder."""
    try:
        text = path.read_text()
    except UnicodeDecodeError as error:
        raise Invalid(f"{path.name} is not text in UTF-8") from error
    return parse(text, path.name, path.parent, variable)


def parse(
    text: str, file: str, folder: Path = Path(), variable: Callable[[str], str | None] = os.environ.get
) -> BridgeSpec:
    """Parse a bridge text. `variable` looks up environment variables for `${NAME}`."""
    secrets = Secrets(folder, variable)
    place = document(text, file)
    keys = place.keys(KEYS, ("name", "topics"))
    if "source" not in keys and "sources" not in keys:
        raise place.refusal("the file lacks 'source': the cluster that topics are read from")
    name = secrets.text(keys["name"])
    if not _NAME.fullmatch(name):
        raise keys["name"].refusal(f"has 1 to 200 letters, digits, '.', '_' and '-', unlike {keys['name'].shown}")
    known = sources(keys, name, secrets)
    topics = tuple(_topic(entry, known, secrets) for entry in keys["topics"].items())
    if not topics:
        raise keys["topics"].refusal("names no topic")
    _check_once(keys["topics"], topics)
    return BridgeSpec(name, known, topics, _batch(keys["batch"]) if "batch" in keys else BatchBounds())


def _check_once(place: Place, topics: tuple[TopicSpec, ...]) -> None:
    seen: dict[tuple[str, str, str], int] = {}
    for each, entry in zip(topics, place.items(), strict=True):
        name = (each.source, each.topic, each.pattern)
        if name in seen:
            what = f"topic {each.topic!r}" if each.topic else f"pattern {each.pattern!r}"
            raise entry.refusal(f"says {what} again, which stands at line {seen[name]}: one entry has all its tables")
        seen[name] = each.line
    marks = {(each.source, each.transactions): each.line for each in topics if each.transactions}
    for each, entry in zip(topics, place.items(), strict=True):
        if each.topic and (each.source, each.topic) in marks:
            line = marks[each.source, each.topic]
            raise entry.refusal(
                f"says topic {each.topic!r}, whose BEGINs and ENDs are read for the entry of line {line}"
            )


def _batch(place: Place) -> BatchBounds:
    keys = place.keys(BATCH_KEYS)
    found = BatchBounds()
    if "rows" in keys:
        found = replace(found, rows=keys["rows"].whole(1, ROWS_MAX))
    if "bytes" in keys:
        found = replace(found, bytes=_bytes(keys["bytes"]))
    if "time" in keys:
        found = replace(found, seconds=_seconds(keys["time"]))
    return found


def _bytes(place: Place) -> int:
    try:
        found = byte_count(place.value())
    except Invalid as error:
        raise place.refusal(f"is an amount such as 8MB or 512KB, not {place.shown}") from error
    if not 1 <= found <= BYTES_MAX:
        raise place.refusal(f"is 1B to {BYTES_MAX >> 20}MB, not {place.shown}")
    return found


def _seconds(place: Place) -> float:
    match = _TIME.fullmatch(place.text().strip())
    if not match:
        raise place.refusal(f"is a span of time such as 200ms or 2s, not {place.shown}")
    found = float(match[1]) * _TIME_UNITS[match[2]]
    if not 0.001 <= found <= SECONDS_MAX:
        raise place.refusal(f"is 1ms to {SECONDS_MAX / 60:.0f}m, not {place.shown}")
    return found


def _topic(place: Place, sources: Mapping[str, SourceSpec], secrets: Secrets) -> TopicSpec:
    keys = place.keys(TOPIC_KEYS)
    topic, pattern = _named(place, keys)
    source = _source(place, keys, sources)
    form: Any = keys["format"].one_of(get_args(said.Format)) if "format" in keys else "json"
    to = target(place, keys, form)
    wire: Any = keys["wire"].one_of(get_args(said.Wire)) if "wire" in keys else "auto"
    start, offsets = _start(keys["start"]) if "start" in keys else ("earliest", {})
    found = TopicSpec(
        source,
        topic,
        pattern,
        to,
        form,
        wire,
        key_format=_key_format(keys, form),
        schema=_schema(keys["schema"], secrets) if "schema" in keys else SchemaSpec(),
        key_schema=_schema(keys["key_schema"], secrets) if "key_schema" in keys else SchemaSpec(),
        start=start,
        start_offsets=offsets,
        transactions=_transactions(keys, form),
        unavailable=_unavailable(keys, form),
        line=place.line,
    )
    if found.transactions and any(table.truncate == "follow" for table in found.tables):
        raise place.refusal(
            "follows TRUNCATEs, which takes commits of its own, and has whole transactions: say one of them"
        )
    _check_schema(place, keys, found, sources[source])
    return found


def _named(place: Place, keys: Mapping[str, Place]) -> tuple[str, str]:
    if ("topic" in keys) == ("pattern" in keys):
        raise place.refusal("names a topic, or topics by a pattern: one of the two keys")
    if "topic" in keys:
        topic = keys["topic"].text()
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            shown = keys["topic"].shown
            raise keys["topic"].refusal(
                f"has 1 to 249 letters, digits, '.', '_' and '-', unlike {shown}: say pattern:?"
            )
        return topic, ""
    pattern = keys["pattern"].text()
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise keys["pattern"].refusal(f"is not a regular expression: {error}") from error
    return "", pattern


def _source(place: Place, keys: Mapping[str, Place], sources: Mapping[str, SourceSpec]) -> str:
    if "source" in keys:
        if "" in sources:
            raise keys["source"].refusal("names a source, but the file has no sources:")
        return keys["source"].one_of(tuple(sources))
    if len(sources) > 1:
        raise place.refusal(f"lacks 'source': one of {', '.join(sources)}")
    return next(iter(sources))


def _key_format(keys: Mapping[str, Place], form: str) -> Any:
    if "key_format" not in keys:
        return ""
    found = keys["key_format"].one_of(KEY_FORMATS)
    if form in said.CHANGES and found not in EVENT_KEY_FORMATS:
        raise keys["key_format"].refusal(
            f"is {' or '.join(EVENT_KEY_FORMATS)} for change events, whose keys have fields, not {found!r}"
        )
    return found


def _start(place: Place) -> tuple[str, dict[int, int]]:
    if not place.is_text:
        offsets = {}
        for key, (entry, at) in place.entries().items():
            if not key.isascii() or not key.isdecimal() or len(key) > 6:
                raise place.refusal("takes earliest, latest, a time, or partitions with their offsets", at)
            offsets[int(key)] = entry.whole(0, INT64_MAX)
        if not offsets:
            raise place.refusal("names no partition")
        return "offsets", offsets
    text = place.text()
    if text not in ("earliest", "latest") and micros_of(text) is None:
        raise place.refusal(
            f"is earliest, latest, a time such as 2026-11-20T10:00Z, or {{partition: offset}}, not {place.shown}"
        )
    return text, {}


def _schema(place: Place, secrets: Secrets) -> SchemaSpec:
    if place.is_text:
        return SchemaSpec(text=secrets.file_text(place) if place.text().startswith("file:") else place.text())
    keys = place.keys(SCHEMA_KEYS)
    ways = [key for key in ("text", "file", "subject") if key in keys]
    if len(ways) > 1:
        raise place.refusal(f"takes {ways[0]} or {ways[1]}, not both")
    if "version" in keys and "subject" not in keys and ways:
        raise keys["version"].refusal("is of a subject in the registry: name the subject")
    text = keys["text"].text() if "text" in keys else secrets.file_text(keys["file"]) if "file" in keys else ""
    return SchemaSpec(
        text,
        keys["subject"].text() if "subject" in keys else "",
        keys["version"].whole(1, (1 << 31) - 1) if "version" in keys else None,
        keys["message"].text() if "message" in keys else "",
    )


def _unavailable(keys: Mapping[str, Place], form: str) -> tuple[str, ...]:
    if "unavailable" not in keys:
        return ()
    place = keys["unavailable"]
    if form not in said.CHANGES:
        raise place.refusal("is the connector's unavailable.value.placeholder: say a debezium format")
    for text in place.texts():
        if text.startswith("hex:") and not _HEX.fullmatch(text):
            raise place.refusal(f"is a text, or hex: and an even number of hexadecimal digits, unlike {text!r}")
    return tuple(place.texts())


def _transactions(keys: Mapping[str, Place], form: str) -> str:
    if "transactions" not in keys:
        return ""
    if form not in said.CHANGES:
        raise keys["transactions"].refusal("is the topic of Debezium's transaction metadata: say a debezium format")
    text = keys["transactions"].text()
    if not _TOPIC.fullmatch(text):
        raise keys["transactions"].refusal(f"is the name of a topic, unlike {keys['transactions'].shown}")
    return text


def _check_schema(place: Place, keys: Mapping[str, Place], topic: TopicSpec, source: SourceSpec) -> None:
    if source.registry is not None:
        return
    if topic.transactions and topic.format == "debezium-avro":
        raise keys["transactions"].refusal("is in Avro like the events, and has its schemas in a registry: name that")
    if topic.format in _WITH_SCHEMA and not topic.schema.text:
        raise place.refusal(f"is {topic.format} and there is no schema: say registry: in the source, or schema:")
    if topic.format == "debezium-avro" and not topic.key_format and not topic.key_schema.text:
        raise place.refusal("is debezium-avro, whose keys are Avro, too: say registry: in the source, or key_schema:")
    if topic.key_format in _WITH_SCHEMA and not topic.key_schema.text:
        raise keys["key_format"].refusal(
            f"is {topic.key_format} and there is no schema of keys: say registry: in the source, or key_schema:"
        )
    if topic.wire == "confluent":
        raise keys["wire"].refusal("has schema ids of a registry: name it by registry: in the source")
    for key, schema in (("schema", topic.schema), ("key_schema", topic.key_schema)):
        if schema.subject or schema.version:
            raise keys[key].refusal("names a subject or version of a registry: name the registry in the source")
