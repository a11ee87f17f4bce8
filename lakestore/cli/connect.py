"""The command that prints how an engine opens this lake: the head, a cut of the past, and the tiered state."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from lakestore.cli.connection import command_credentials, json_option, open_lake, server_option
from lakestore.cli.output import emit_json, emit_text
from lakestore.client.credentials import addresses_of
from lakestore.errors import Denied, Invalid, Unavailable
from lakestore.model.times import moment_of
from lakestore.release import wheel_with

HTTP_PORT = 7341
PACKAGES = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
STORE_PACKAGE = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"
"""A package that Spark also needs if the warehouse is in S3."""
_COUNT = "SELECT count(*) FROM"
_WAREHOUSES = ("now", "earlier", "lake")
"""Catalog names in the examples: the head, a cut of the past, and the tiered state."""


@dataclass(frozen=True, slots=True)
class Store:
    """The S3 store of a warehouse."""

    gives_keys: bool
    """True if the catalog gives keys to engines that ask. Otherwise the lines contain KEY_ID and SECRET."""
    endpoint: str = ""
    """Its address; empty for AWS."""
    region: str = ""

    def properties(self) -> dict[str, str]:
        """The store as properties of Iceberg's FileIO, for an engine that brings its own key."""
        made = {"s3.access-key-id": "KEY_ID", "s3.secret-access-key": "SECRET"}
        if self.endpoint:
            made |= {"s3.endpoint": self.endpoint, "s3.path-style-access": "true"}
        return made | ({"client.region": self.region} if self.region else {})


_OWN_KEYS = "the server gives no keys of the store (engine_keys.give): replace KEY_ID and SECRET"


@dataclass(frozen=True, slots=True)
class EngineTarget:
    """The values that an engine's lines need."""

    server: str
    catalog: str
    table: str
    time: str
    is_open: bool
    """True if the catalog needs no token. Otherwise the lines contain PRINCIPAL and TOKEN as placeholders."""
    store: Store | None = None
    """The S3 store of the warehouse; None for a folder."""

    @property
    def tokens(self) -> str:
        return f"{self.catalog}/v1/oauth/tokens"

    def warehouse(self, name: str) -> str:
        """The warehouse behind a catalog name of the examples."""
        return f"at:{self.time}" if name == "earlier" else name


def _spark(of: EngineTarget) -> str:
    lines = [
        "# spark-sql, spark-shell, spark-submit or the Thrift server. A query sees the newest commits in `now`;",
        "# without cache-enabled=false Spark would go on with the table that it has seen first.",
        *([f"# {_OWN_KEYS}"] if of.store and not of.store.gives_keys else []),
        f"--packages {','.join((PACKAGES, STORE_PACKAGE) if of.store else (PACKAGES,))}",
        "--conf spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    ]
    for name in _WAREHOUSES:
        said = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "rest",
            ".uri": of.catalog,
            ".warehouse": of.warehouse(name),
            ".cache-enabled": "false",
        }
        if not of.is_open:
            auth = {"rest.auth.type": "oauth2", "oauth2-server-uri": of.tokens, "credential": "PRINCIPAL:TOKEN"}
            said |= {f".{key}": value for key, value in auth.items()}
        if of.store and of.store.gives_keys:
            said[".header.X-Iceberg-Access-Delegation"] = "vended-credentials"
        elif of.store:
            said |= {f".{key}": value for key, value in of.store.properties().items()}
        lines += [f"--conf spark.sql.catalog.{name}{key}={value}" for key, value in said.items()]
    space, table = of.table.split(".", 1)
    lines += [
        f"{_COUNT} now.{of.table};",
        f"{_COUNT} earlier.{of.table};            -- every table of the query at one cut",
        f"{_COUNT} now.{space}.`{table}@{of.time}`;  -- one table at a time or a token",
        f"{_COUNT} lake.{of.table};               -- what is tiered",
        "",
        f"# Python, every table of a query at one cut, and streams; {wheel_with('spark')}",
        "from lakestore.spark import session, attach",
        f'spark = session("{of.server}")',
        f'lake = attach(spark, "{of.server}")',
        f'lake.sql("{_COUNT} {of.table}").show()',
        f'spark.read.format("lakestore").option("server", "{of.server}").option("table", "{of.table}").load().count()',
    ]
    return "\n".join(lines)


_NO_CACHE = "SET enable_external_file_cache = false;  -- else DuckDB 1.5 may misread vectors that Java wrote"


def _duckdb(of: EngineTarget) -> str:
    lines, auth = ["INSTALL iceberg; LOAD iceberg;", _NO_CACHE], "AUTHORIZATION_TYPE 'none'"
    if of.store:
        lines.insert(1, "INSTALL httpfs; LOAD httpfs;")
    if not of.is_open:
        lines += [
            "CREATE SECRET lakestore (TYPE ICEBERG, CLIENT_ID 'PRINCIPAL', CLIENT_SECRET 'TOKEN',",
            f"    OAUTH2_SERVER_URI '{of.tokens}');",
        ]
        auth = "SECRET lakestore"
    if of.store and not of.store.gives_keys:
        lines += [f"-- {_OWN_KEYS}", *_duckdb_secret(of.store)]
        auth += ", ACCESS_DELEGATION_MODE 'none'"
    lines += [
        f"ATTACH '{of.warehouse(name)}' AS {name} (TYPE ICEBERG, ENDPOINT '{of.catalog}', {auth});"
        for name in _WAREHOUSES
    ]
    lines += [
        f"{_COUNT} now.{of.table};",
        f"{_COUNT} earlier.{of.table};  -- every table at one cut",
        f"{_COUNT} lake.{of.table};     -- what is tiered",
        "-- ATTACH 'now-v3' in place of 'now' reads faster where many rows are new.",
    ]
    return "\n".join(lines)


def _duckdb_secret(store: Store) -> list[str]:
    """The secret of a store that engines enter by their own key."""
    region = f", REGION '{store.region}'" if store.region else ""
    scheme, _, host = store.endpoint.partition("://")
    where = f",\n    ENDPOINT '{host}', URL_STYLE 'path', USE_SSL {str(scheme == 'https').lower()}" if host else ""
    return [f"CREATE SECRET store (TYPE s3, KEY_ID 'KEY_ID', SECRET 'SECRET'{region}{where});"]


def _trino_store(store: Store) -> list[str]:
    lines = ["fs.native-s3.enabled=true"]
    if store.region:
        lines.append(f"s3.region={store.region}")
    if store.endpoint:
        lines += [f"s3.endpoint={store.endpoint}", "s3.path-style-access=true"]
    if store.gives_keys:
        return [*lines, "iceberg.rest-catalog.vended-credentials-enabled=true"]
    return [*lines, f"# {_OWN_KEYS}", "s3.aws-access-key=KEY_ID", "s3.aws-secret-key=SECRET"]


def _trino(of: EngineTarget) -> str:
    lines = []
    for name in _WAREHOUSES:
        lines += [
            f"# etc/catalog/{name}.properties",
            "connector.name=iceberg",
            "iceberg.catalog.type=rest",
            f"iceberg.rest-catalog.uri={of.catalog}",
            f"iceberg.rest-catalog.warehouse={of.warehouse(name)}",
        ]
        if not of.is_open:
            lines += [
                "iceberg.rest-catalog.security=OAUTH2",
                f"iceberg.rest-catalog.oauth2.server-uri={of.tokens}",
                "iceberg.rest-catalog.oauth2.credential=PRINCIPAL:TOKEN",
            ]
        lines += _trino_store(of.store) if of.store else ("fs.native-local.enabled=true", "local.location=/")
    lines += [
        f"-- {_COUNT} now.{of.table};",
        f"-- {_COUNT} earlier.{of.table};  every table at one cut",
        f"-- {_COUNT} lake.{of.table};     what is tiered",
    ]
    return "\n".join(lines)


def _loaded(of: EngineTarget) -> list[str]:
    lines, more = ["from pyiceberg.catalog import load_catalog"], dict[str, str]()
    auth = ""
    if not of.is_open:
        auth, more = ',\n    credential="PRINCIPAL:TOKEN"', {"oauth2-server-uri": of.tokens}
    if of.store and not of.store.gives_keys:
        lines.append(f"# {_OWN_KEYS}")
        more |= of.store.properties()
    if more:
        auth += f", **{json.dumps(more)}"
    lines += [
        f'{name} = load_catalog("{name}", type="rest", uri="{of.catalog}", warehouse="{of.warehouse(name)}"{auth})'
        for name in _WAREHOUSES
    ]
    return lines


def _pyiceberg(of: EngineTarget) -> str:
    lines = [
        '# pip install "pyiceberg[pyarrow]"; load a table again, or refresh it, to see newer rows',
        *_loaded(of),
    ]
    lines += [f'{name}.load_table("{of.table}").scan().to_arrow()' for name in _WAREHOUSES]
    return "\n".join(lines)


def _polars(of: EngineTarget) -> str:
    lines = ['# pip install polars "pyiceberg[pyarrow]"', "import polars as pl", *_loaded(of)]
    if of.store:
        # without the package polars_iceberg, polars takes no key and no address from the table
        lines += [
            "def scan(table):",
            '    store = {key: value for key, value in table.io.properties.items() if key.startswith("s3.")}',
            "    return pl.scan_iceberg(table, storage_options=store)",
        ]
    scan = "scan" if of.store else "pl.scan_iceberg"
    lines += [f'{scan}({name}.load_table("{of.table}")).collect()' for name in _WAREHOUSES]
    return "\n".join(lines)


def _clickhouse(of: EngineTarget) -> str:
    if of.store:
        raise Invalid("ClickHouse is not known to read a warehouse in S3 by a catalog: take DuckDB or another engine")
    lines, auth = ["SET allow_database_iceberg = 1;"], ""
    if not of.is_open:
        auth = f",\n    catalog_credential = 'PRINCIPAL:TOKEN', oauth_server_uri = '{of.tokens}'"
    lines += [
        f"CREATE DATABASE {name} ENGINE = DataLakeCatalog('{of.catalog}')\n    SETTINGS catalog_type = 'rest',"
        f" warehouse = '{of.warehouse(name)}', vended_credentials = 0{auth};"
        for name in _WAREHOUSES
    ]
    lines += [
        f"{_COUNT} now.`{of.table}`;",
        f"{_COUNT} earlier.`{of.table}`;  -- every table at one cut",
        f"{_COUNT} lake.`{of.table}`;     -- what is tiered",
        "-- Files of the server's machine are read only if they lie below `user_files_path`.",
    ]
    return "\n".join(lines)


LINES: Mapping[str, Callable[[EngineTarget], str]] = {
    "spark": _spark,
    "duckdb": _duckdb,
    "trino": _trino,
    "pyiceberg": _pyiceberg,
    "clickhouse": _clickhouse,
    "polars": _polars,
}
"""Engine to its lines. Replace PRINCIPAL and TOKEN. Lakestore's own clients read LAKESTORE_TOKEN."""


@click.command()
@click.argument("engine", type=click.Choice(list(LINES)))
@click.option("--http", help=f"Host and port of the catalog.  [default: the server's host and {HTTP_PORT}]")
@click.option("--table", help="The table in the example.  [default: the first of the lake, else shop.orders]")
@server_option
@json_option
def connect(engine: str, http: str | None, table: str | None, server: str, as_json: bool) -> None:
    """Print the lines that open this lake in ENGINE: its head, a past cut, what is tiered."""
    found = catalog_of(server)
    catalog = f"{found.scheme}://{http or found.host}/iceberg"
    target = EngineTarget(server, catalog, table or found.table, found.time, found.is_open, found.store)
    lines = LINES[engine](target)
    emit_json({"engine": engine, "catalog": catalog, "lines": lines.splitlines()}) if as_json else emit_text(lines)


@dataclass(frozen=True, slots=True)
class CatalogPlace:
    """Address of a server's Iceberg catalog."""

    scheme: str
    host: str
    is_open: bool
    """True if the catalog needs no token."""
    time: str
    store: Store | None = None
    """The S3 store of the warehouse. None if the server does not answer."""
    table: str = "shop.orders"
    """The lake's first table that is not a dead-letter or proposals table."""


def catalog_of(server: str) -> CatalogPlace:
    """The catalog's address from the server, otherwise the default address."""
    from lakestore.v1 import lakestore_pb2 as pb

    host = addresses_of(server)[0].rsplit(":", 1)[0]
    credentials = command_credentials(server)
    is_open = credentials.token is None
    scheme = "https" if credentials.pem else "http"
    try:
        with open_lake(server) as lake:
            said = json.loads(lake.transport.status(pb.StatusRequest()).status)
            host = lake.transport.address.rsplit(":", 1)[0]
            tables = [table.name for table in lake.tables() if "__" not in table.name]
    except (Unavailable, Denied) as error:
        is_open = is_open and not isinstance(error, Denied)
        return CatalogPlace(scheme, f"{host}:{HTTP_PORT}", is_open, _text(datetime.now(UTC)))
    http = f"{host}:{said['http'].rsplit(':', 1)[1]}"
    time = _text(moment_of(said["clock"]["time_us"]))
    return CatalogPlace(said["scheme"], http, is_open, time, _store_of(said), *sorted(tables)[:1])


def _store_of(status: Mapping[str, Any]) -> Store | None:
    """The store in a server's status. A server of an older release gives no keys and does not name the address."""
    if not str(status["warehouse"]).startswith("s3"):
        return None
    gives = status.get("engine_keys", "never") != "never"
    return Store(gives, status.get("store_endpoint", ""), status.get("store_region", ""))


def _text(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


COMMANDS = (connect,)
