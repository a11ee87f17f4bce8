"""No secret is ever shown: a server and its clients go through what can go wrong, and all they say is searched."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.cli.main import run_command
from lakestore.errors import LakestoreError
from lakestore_server.access.principals import hash_of
from tests.support.rights import token_of, write_auth

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])
SECONDS = 60
WRONG = "lakestore_wrong" + "wr0ng" * 8


CALLS: list[Callable[[ls.Lake], Any]] = [
    lambda lake: lake.create_table("shop.orders", SCHEMA, primary_key=["id"]),
    lambda lake: lake.table("shop.orders").upsert([{"id": 1}]),
    lambda lake: lake.table("shop.orders").scan().to_arrow(),
    lambda lake: lake.table("shop.absent"),
    lambda lake: lake.sql("SELECT * FROM shop.orders"),
    lambda lake: lake.tables(),
]


class Running:
    """A server in a process of its own, whose every word is kept."""

    def __init__(self, folder: Path, auth: Path) -> None:
        self._said = (folder / "said.txt").open("w+")
        command = [sys.executable, "-m", "lakestore", "serve", "--data", str(folder / "data"), "--auth", str(auth)]
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--http-port", "0"], stdout=subprocess.PIPE, stderr=self._said, text=True
        )
        assert self.process.stdout is not None
        self.first = self.process.stdout.readline()
        found = re.search(r"gRPC on ([\w.:]+),.*http://([\w.:]+)", self.first)
        assert found, self.first
        self.address, self.http = found[1], found[2]

    def stop(self) -> str:
        """Everything it ever said."""
        self.process.terminate()
        out, _ = self.process.communicate(timeout=SECONDS)
        self._said.seek(0)
        return self.first + out + self._said.read()

    def close(self) -> None:
        """Close the file of its words."""
        self._said.close()


@pytest.fixture
def auth(tmp_path: Path) -> Path:
    return write_auth(tmp_path / "auth.yaml", {"root": {"*": ["admin"]}, "report": {"shop.orders": ["read"]}})


@pytest.fixture
def running(tmp_path: Path, auth: Path) -> Iterator[Running]:
    server = Running(tmp_path, auth)
    yield server
    server.process.kill()
    server.process.wait(SECONDS)
    server.close()


def command(*words: str, token: str) -> str:
    """What a command says, run here: a process of its own would mostly import."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(said):
        patch.setenv("LAKESTORE_TOKEN", token)
        run_command(words)
    assert said.getvalue(), f"{words} said nothing"
    return said.getvalue()


def process(*words: str, token: str) -> str:
    """What a process says, of whatever kind."""
    environment = {**os.environ, "LAKESTORE_TOKEN": token}
    done = subprocess.run(
        [sys.executable, "-m", "lakestore", *words],
        capture_output=True, text=True, timeout=SECONDS, env=environment, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def client_words(address: str) -> Iterator[str]:
    """What a client's objects, answers and errors say."""
    for token in (token_of("root"), token_of("report"), WRONG):
        with ls.connect(address, token=token) as lake:
            yield repr(lake) + repr(lake.transport) + repr(lake.transport.credentials) + repr(vars(lake))
            for call in CALLS:
                try:
                    yield repr(call(lake))
                except LakestoreError as error:
                    yield repr(error) + repr(error.__cause__) + str(error)


def http_words(address: str) -> Iterator[str]:
    """What the HTTP port answers."""
    for token in (token_of("root"), WRONG):
        with httpx.Client(base_url=f"http://{address}", headers={"Authorization": f"Bearer {token}"}) as http:
            api = (f"/console/api/{part}" for part in ("status", "clients", "streams", "holds", "tables/shop.orders"))
            catalog = ("/iceberg/v1/config", "/iceberg/v1/namespaces/shop/tables/orders")
            for path in ("/", *api, "/metrics", *catalog, "/x"):
                yield str(http.get(path).headers) + http.get(path).text
            form = {"grant_type": "client_credentials", "client_id": "root", "client_secret": token}
            answer = http.post("/iceberg/v1/oauth/tokens", data=form)
            assert (answer.status_code == 200) == (token != WRONG)
            yield answer.text
            yield http.post("/iceberg/v1/oauth/tokens", content=f"grant_type={token}").text
            yield http.post("/console/api/session", json={"token": token}).text
            yield http.post("/console/api/query", json={"sql": f"SELECT * FROM '{token}'"}).headers.get("server", "")


def command_words(address: str, auth: Path, folder: Path) -> Iterator[str]:
    """What commands print."""
    for token in (token_of("root"), WRONG):
        for words in (["tables"], ["describe", "shop.orders"], ["status", "--json"], ["verify", "shop.orders"]):
            yield command(*words, "--server", address, token=token)
        for engine in ("spark", "duckdb", "trino", "pyiceberg", "clickhouse", "polars"):
            yield command("connect", engine, "--server", address, token=token)
        yield process("describe", "shop.orders", "--server", address, token=token)
    yield process("serve", "--print-config", "--data", str(folder / "x"), "--auth", str(auth), token=token_of("root"))
    broken = folder / "broken.yaml"
    for text in (f"principals: [{token_of('root')}", f"principals: {{root: {{tokens: [{token_of('root')}]}}}}"):
        broken.write_text(text)
        broken.chmod(0o600)
        yield process("serve", "--data", str(folder / "x"), "--auth", str(broken), token="")


def test_nothing_that_is_said_holds_a_secret(
    running: Running, auth: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said = [
        *client_words(running.address),
        *http_words(running.http),
        *command_words(running.address, auth, tmp_path),
    ]
    said += [running.stop(), caplog.text]
    secrets = [token_of("root"), token_of("report"), WRONG, hash_of(token_of("root")), "s3cr3t" * 3]
    key = (tmp_path / "data" / "access-token.key").read_bytes()
    secrets += [key.hex(), repr(key)[2:-1]]
    everything = "\n".join(said)
    assert "shop.orders" in everything
    found = [line for line in everything.splitlines() if any(secret in line for secret in secrets)]
    assert found == []
