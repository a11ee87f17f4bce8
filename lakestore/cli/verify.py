"""Commands that prove and explain: verify, connect."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import click

from lakestore.cli.connection import connected, json_option, server_option, shown
from lakestore.cli.output import emit, emit_json, size
from lakestore.errors import Denied, Unavailable

HTTP_PORT = 7341


@click.command()
@click.argument("table")
@click.option("--rows-only", is_flag=True, help="Compare row numbers and counts only, not the values of all columns.")
@click.option("--deep", is_flag=True, help="First read every stored byte of the server against its checksum.")
@server_option
@json_option
@click.pass_context
def verify(context: click.Context, table: str, rows_only: bool, deep: bool, server: str, as_json: bool) -> None:
    """Check TABLE: log fold = index = lake + hot, per bucket, at one cut. The exit code is 1 if not."""
    from lakestore.union.verify import verify as compare

    with connected(server) as lake:
        lake.table(table)
        found = compare(lake.transport, table, values=not rows_only, deep=deep)
    rows: list[dict[str, Any]] = [
        {
            "bucket": check.bucket,
            "head": check.head,
            **{f"{name} rows": side.rows for name, side in check.sides.items()},
            "sum": f"{check.sides['read'].offsets:016x}",
            "same": check.same,
        }
        for check in found.buckets
    ]
    if as_json:
        emit_json({"table": table, "token": found.token, "same": found.same, "values": found.compared_values,
                   "bytes_checked": found.bytes_checked, "buckets": rows, "problems": found.problems()})  # fmt: skip
    else:
        if deep:
            click.echo(f"{table}: {size(found.bytes_checked)} checked, {len(found.damage) or 'nothing'} damaged")
        if rows:
            emit(rows, as_json=False)
        what = "rows and values" if found.compared_values else "rows"
        click.echo(f"{table}: {what} agree" if found.same else f"{table}: DIFFERENT", err=not found.same)
    for problem in found.problems():
        click.echo(f"lakestore: {problem}", err=True)
    context.exit(0 if found.same else 1)


_LINES = {
    "spark": """\
# pip install "lakestore[spark]"; every table of a query at one cut, always as fresh as the server
from lakestore.spark import session, attach
spark = session("{server}")
lake = attach(spark, "{server}")
lake.sql("SELECT count(*) FROM {table}").show()

# plain Iceberg, the tiered state alone; for spark-sql, spark-submit or spark-shell:
--packages {packages}
--conf spark.sql.extensions=org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions
--conf spark.sql.catalog.lake=org.apache.iceberg.spark.SparkCatalog
--conf spark.sql.catalog.lake.type=rest
--conf spark.sql.catalog.lake.uri={catalog}
--conf spark.sql.catalog.lake.cache-enabled=false{auth}
-- SELECT count(*) FROM lake.{table}""",
    "duckdb": """\
INSTALL iceberg; LOAD iceberg;
{auth}
SELECT count(*) FROM lake.{table};""",
    "trino": """\
# etc/catalog/lake.properties
connector.name=iceberg
iceberg.catalog.type=rest
iceberg.rest-catalog.uri={catalog}{auth}
fs.native-local.enabled=true
local.location=/
-- SELECT count(*) FROM lake.{table};""",
    "pyiceberg": """\
# pip install "pyiceberg[pyarrow]"
from pyiceberg.catalog import load_catalog
lake = load_catalog("lake", type="rest", uri="{catalog}"{auth})
lake.load_table("{table}").scan().to_arrow()""",
}
PACKAGES = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


_OPEN = {
    "spark": "",
    "duckdb": "ATTACH 'lake' AS lake (TYPE ICEBERG, ENDPOINT '{catalog}', AUTHORIZATION_TYPE 'none');",
    "trino": "",
    "pyiceberg": "",
}
_WITH_TOKEN = {
    "spark": """
--conf spark.sql.catalog.lake.rest.auth.type=oauth2
--conf spark.sql.catalog.lake.oauth2-server-uri={catalog}/v1/oauth/tokens
--conf spark.sql.catalog.lake.credential=PRINCIPAL:TOKEN""",
    "duckdb": """\
CREATE SECRET lakestore (TYPE ICEBERG, CLIENT_ID 'PRINCIPAL', CLIENT_SECRET 'TOKEN',
    OAUTH2_SERVER_URI '{catalog}/v1/oauth/tokens');
ATTACH 'lake' AS lake (TYPE ICEBERG, ENDPOINT '{catalog}', SECRET lakestore);""",
    "trino": """
iceberg.rest-catalog.security=OAUTH2
iceberg.rest-catalog.oauth2.server-uri={catalog}/v1/oauth/tokens
iceberg.rest-catalog.oauth2.credential=PRINCIPAL:TOKEN""",
    "pyiceberg": """,
    credential="PRINCIPAL:TOKEN", **{{"oauth2-server-uri": "{catalog}/v1/oauth/tokens"}}""",
}
"""Put your own for PRINCIPAL and TOKEN; ours take LAKESTORE_TOKEN."""


@click.command()
@click.argument("engine", type=click.Choice(list(_LINES)))
@click.option("--http", help=f"Host and port of the catalog.  [default: the server's host and {HTTP_PORT}]")
@click.option("--table", help="The table in the example.  [default: the first of the lake, else shop.orders]")
@server_option
@json_option
def connect(engine: str, http: str | None, table: str | None, server: str, as_json: bool) -> None:
    """Print the lines that open this lake in ENGINE."""
    found = _catalog_of(server)
    catalog = f"{found.scheme}://{http or found.host}/iceberg"
    auth = (_OPEN if found.is_open else _WITH_TOKEN)[engine].format(catalog=catalog)
    lines = _LINES[engine].format(
        server=server, catalog=catalog, table=table or found.table, packages=PACKAGES, auth=auth
    )
    emit_json({"engine": engine, "catalog": catalog, "lines": lines.splitlines()}) if as_json else click.echo(lines)


@dataclass(frozen=True, slots=True)
class _Catalog:
    """The address of a server's Iceberg catalog."""

    scheme: str
    host: str
    """Host and port."""
    is_open: bool
    """Whether the catalog asks for no token."""
    table: str = "shop.orders"
    """A table of the lake, if there is one, that keeps no dead letters or proposals of another."""


def _catalog_of(server: str) -> _Catalog:
    """The catalog's address as the server says it, else the default one."""
    from lakestore.v1 import lakestore_pb2 as pb

    host = server.rsplit(":", 1)[0]
    credentials = shown(server)
    is_open = credentials.token is None
    scheme = "https" if credentials.pem else "http"
    try:
        with connected(server) as lake:
            said = json.loads(lake.transport.status(pb.StatusRequest()).status)
            tables = [table.name for table in lake.tables() if "__" not in table.name]
    except (Unavailable, Denied) as error:
        return _Catalog(scheme, f"{host}:{HTTP_PORT}", is_open and not isinstance(error, Denied))
    http = f"{host}:{said['http'].rsplit(':', 1)[1]}"
    return _Catalog(said["scheme"], http, is_open, *sorted(tables)[:1])


COMMANDS = (verify, connect)
