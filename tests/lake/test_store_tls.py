"""A store that speaks TLS by an authority of its own: server, tierer, union reads, PyIceberg, polars and DuckDB.

Each part is a process of its own, because the libraries read SSL_CERT_FILE once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from lakestore.cli.main import cli
from lakestore.java import java_home
from tests.support.certificates import Authority
from tests.support.guarded_store import GuardedStore
from tests.support.process import ServerProcess

pytestmark = pytest.mark.spark

ROWS = 20
WRITE = """
import sys, pyarrow as pa, lakestore as ls
with ls.connect(sys.argv[1]) as lake:
    table = lake.create_table("shop.orders", pa.schema([("id", pa.int64())]), primary_key=["id"])
    table.upsert([{"id": number} for number in range(20)])
"""
READ = """
import sys, lakestore as ls
from lakestore.union.verify import verify
with ls.connect(sys.argv[1]) as lake:
    print(lake.table("shop.orders").scan().to_arrow().num_rows, verify(lake.transport, "shop.orders").same)
"""
DUCKDB = """
import sys, duckdb
from duckdb_extensions import import_extension
with duckdb.connect() as connection:
    for name in ("avro", "httpfs", "iceberg"):
        import_extension(name, con=connection)
    if len(sys.argv) > 1:
        connection.execute(f"SET ca_cert_file = '{sys.argv[1]}'")
    print([connection.execute(part).fetchall() for part in sys.stdin.read().split(";") if part.strip()][-3:])
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[GuardedStore, Path]]:
    """The store, and the certificate of its authority."""
    (tmp_path / "an authority").mkdir()
    authority = Authority(tmp_path / "an authority")
    with GuardedStore(tls=authority.sign("store")) as made:
        yield made, authority.cert


def ran(variables: Mapping[str, str], *command: str, text: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SSL_"))}
    return subprocess.run(
        [sys.executable, *command], env={**environment, **variables}, input=text, capture_output=True, text=True
    )


def output(*call: object, **more: str) -> str:
    done = ran(*call, **more)  # type: ignore[arg-type]
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout


def printed(address: str, engine: str) -> str:
    said = CliRunner().invoke(cli, ["connect", engine, "--server", address, "--table", "shop.orders"])
    assert said.exit_code == 0, said.output
    return said.output


def trust_store(authority: Path) -> Path:
    """The certificate in the form that Java reads."""
    made = authority.with_suffix(".p12")
    options = ["-importcert", "-noprompt", "-alias", "store", "-file", authority, "-keystore", made]
    command = [java_home() / "bin" / "keytool", *options, "-storetype", "PKCS12", "-storepass", "changeit"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return made


def test_every_part_trusts_the_authority_that_it_is_told(store: tuple[GuardedStore, Path], tmp_path: Path) -> None:
    made, authority = store
    trusting = {**made.environment, "SSL_CERT_FILE": str(authority)}
    java = f"-Djavax.net.ssl.trustStore='{trust_store(authority)}' -Djavax.net.ssl.trustStorePassword=changeit"
    server = ServerProcess(tmp_path / "data", arguments=["--warehouse", made.warehouse], environment=trusting)
    try:
        output(trusting, "-c", WRITE, server.address)
        tier = ("-m", "lakestore", "tier", "--once", "--server", server.address)
        output({**trusting, "JAVA_TOOL_OPTIONS": java, "JAVA_HOME": str(java_home())}, *tier)
        assert any(key.endswith(".parquet") for key in made.store.objects.keys()), "the rows are in the store"
        assert output(trusting, "-c", READ, server.address).split() == [str(ROWS), "True"]
        away = ran(made.environment, "-c", READ, server.address)
        assert "Unavailable: the object store does not answer for s3://" in away.stderr
        assert "set SSL_CERT_FILE" in away.stderr
        only_authority = {"SSL_CERT_FILE": str(authority)}
        for engine in ("pyiceberg", "polars"):
            *head, now, earlier, lake = printed(server.address, engine).splitlines()
            lines = [*head, *(f"print(len({line}))" for line in (now, earlier, lake))]
            assert output(only_authority, "-c", "\n".join(lines)).split() == [str(ROWS)] * 3, engine
        text = re.sub(r"--.*|INSTALL \w+; ", "", printed(server.address, "duckdb"))
        assert output({}, "-c", DUCKDB, str(authority), text=text).strip() == str([[(ROWS,)]] * 3)
        assert "certificate" in ran(only_authority, "-c", DUCKDB, text=text).stderr, "DuckDB goes by its setting alone"
    finally:
        server.kill()
