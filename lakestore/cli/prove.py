"""Commands that prove and explain: verify, connect."""

from __future__ import annotations

import json
from typing import Any

import click

from lakestore.cli.output import emit, emit_json
from lakestore.cli.server import connected, json_option, server_option
from lakestore.errors import Unavailable

HTTP_PORT = 7341


@click.command()
@click.argument("table")
@click.option("--rows-only", is_flag=True, help="Compare row numbers and counts only, not the values of all columns.")
@server_option
@json_option
@click.pass_context
def verify(context: click.Context, table: str, rows_only: bool, server: str, as_json: bool) -> None:
    """Check TABLE: log fold = index = lake + hot, per bucket, at one cut. The exit code is 1 if not."""
    from lakestore.verify import verify as compare

    with connected(server) as lake:
        lake.table(table)
        found = compare(lake.transport, table, values=not rows_only)
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
                   "buckets": rows, "problems": found.problems()})  # fmt: skip
    else:
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
--conf spark.sql.catalog.lake.cache-enabled=false
-- SELECT count(*) FROM lake.{table}""",
    "duckdb": """\
INSTALL iceberg; LOAD iceberg;
ATTACH 'lake' AS lake (TYPE ICEBERG, ENDPOINT '{catalog}', AUTHORIZATION_TYPE 'none');
SELECT count(*) FROM lake.{table};""",
    "trino": """\
# etc/catalog/lake.properties
connector.name=iceberg
iceberg.catalog.type=rest
iceberg.rest-catalog.uri={catalog}
fs.native-local.enabled=true
local.location=/
-- SELECT count(*) FROM lake.{table};""",
    "pyiceberg": """\
# pip install "pyiceberg[pyarrow]"
from pyiceberg.catalog import load_catalog
lake = load_catalog("lake", type="rest", uri="{catalog}")
lake.load_table("{table}").scan().to_arrow()""",
}
PACKAGES = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


@click.command()
@click.argument("engine", type=click.Choice(list(_LINES)))
@click.option("--http", help=f"Host and port of the catalog.  [default: the server's host and {HTTP_PORT}]")
@click.option("--table", default="shop.orders", show_default=True, help="The table in the example.")
@server_option
@json_option
def connect(engine: str, http: str | None, table: str, server: str, as_json: bool) -> None:
    """Print the lines that open this lake in ENGINE."""
    catalog = f"http://{http or _http_of(server)}/iceberg"
    lines = _LINES[engine].format(server=server, catalog=catalog, table=table, packages=PACKAGES)
    emit_json({"engine": engine, "catalog": catalog, "lines": lines.splitlines()}) if as_json else click.echo(lines)


def _http_of(server: str) -> str:
    """The catalog's host and port as the server says, else the default port of its host."""
    from lakestore.v1 import lakestore_pb2 as pb

    host = server.rsplit(":", 1)[0]
    try:
        with connected(server) as lake:
            said = str(json.loads(lake.transport.status(pb.StatusRequest()).status)["http"])
    except Unavailable:
        return f"{host}:{HTTP_PORT}"
    return f"{host}:{said.rsplit(':', 1)[1]}"


COMMANDS = (verify, connect)
