"""Subscriptions, snapshots and writers whose connection or server goes in mid-stream: every row once, in its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from jepsen.system.proxy import Proxy
from lakestore.client.changes import ChangeBatch
from tests.support.process import ServerProcess
from tests.support.seeds import seeded, serial
from tests.support.waiting import until

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
ROWS, COMMITS, BUCKETS = 600, 6, 2
SETTINGS = "limits:\n  read_batch_bytes: 1500\n"
"""Many small messages, so that cuts fall between them and into them."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for the tests that do not kill it; each has a table and a subscription of its own."""
    folder = tmp_path_factory.mktemp("cuts")
    file = folder / "server.yaml"
    file.write_text(SETTINGS)
    with ServerProcess(folder / "data", arguments=["--config", str(file)]) as running:
        yield running


def filled(server: ServerProcess, name: str) -> None:
    """A table of `ROWS` keys in several commits."""
    with ls.connect(server.address) as lake:
        table = lake.create_table(name, SCHEMA, primary_key=["id"], buckets=BUCKETS)
        each = ROWS // COMMITS
        for i in range(COMMITS):
            table.upsert([{"id": i * each + j, "v": "x" * 20} for j in range(each)])


def ids(batch: ChangeBatch) -> list[int]:
    found: list[int] = batch.table["id"].to_pylist()
    return found


@pytest.mark.parametrize("start", ["earliest", "snapshot"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_stream_that_is_cut_again_and_again_gives_every_row_once(
    server: ServerProcess, start: str, seed: int
) -> None:
    name = f"a.{serial('b').replace('.', '_')}"
    filled(server, name)
    chance = seeded(seed)
    with ls.connect(server.address) as direct:
        whole = [i for batch in direct.table(name).changes(start, until="now") for i in ids(batch)]
    assert sorted(whole) == list(range(ROWS))
    with Proxy(server.address) as proxy, ls.connect(proxy.address) as lake:
        got: list[int] = []
        for batch in lake.table(name).changes(start, until="now"):
            got += ids(batch)
            if chance.random() < 0.3:
                proxy.cut_after = chance.randrange(1, 6_000)
        assert got == whole


@pytest.mark.parametrize("start", ["earliest", "snapshot"])
@pytest.mark.parametrize("late", [0, pytest.param(1, marks=pytest.mark.long), 3])
def test_a_subscription_that_is_cut_gives_every_row_once_and_keeps_what_was_acknowledged(
    server: ServerProcess, start: str, late: int
) -> None:
    """The consumer acknowledges some batches late: also those that it got before the connection was cut."""
    name = f"a.{serial('b').replace('.', '_')}"
    filled(server, name)
    chance = seeded(late)
    got: list[int] = []
    acknowledged = 0
    with Proxy(server.address) as proxy, ls.connect(proxy.address) as lake:
        waiting: list[tuple[ChangeBatch, int]] = []
        for batch in lake.table(name).changes(start, subscription=name):
            got += ids(batch)
            waiting.append((batch, len(got)))
            if len(waiting) > late:
                done, acknowledged = waiting.pop(0)
                done.ack()
            if len(got) >= ROWS * 2 // 3:
                break
            if chance.random() < 0.3:
                proxy.cut()
        assert len(set(got)) == len(got), "rows came twice"
    with ls.connect(server.address) as lake:
        (kept,) = (each for each in lake.subscriptions() if each.name == name)
        assert kept.token == done.token, "the position is that of the last acknowledgement"
        rest = [i for batch in lake.table(name).changes(subscription=name, until="now") for i in ids(batch)]
    assert sorted(set(got) | set(rest)) == list(range(ROWS)), "a row is missing"
    assert len(rest) == len(set(rest))
    if done.snapshot:
        assert sorted(got[:acknowledged] + rest) == list(range(ROWS)), "the next consumer begins behind that batch"


def test_an_acknowledged_stream_of_a_killed_server_goes_on_once(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    filled(server, "a.b")
    with ls.connect(server.address) as lake:
        stream = lake.table("a.b").changes(subscription="mine")
        got: list[int] = []
        while len(got) < ROWS:
            got += ids(next(stream))
        server.kill()
        with ServerProcess(tmp_path / "data", port=server.port, http_port=server.http_port) as again:
            with ls.connect(again.address) as other:
                other.table("a.b").upsert([{"id": ROWS, "v": "after"}])
            batch = next(stream)
            assert sorted([*got, *ids(batch)]) == list(range(ROWS + 1))
            batch.ack()
            assert lake.subscriptions()[0].behind == 0
            stream.close()


KILLS, WRITTEN = 1, 1_000


@pytest.mark.slow
def test_a_writer_whose_server_is_killed_in_mid_stream_writes_every_row_once_in_order(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    port, http_port = server.port, server.http_port
    with ls.connect(server.address) as lake:
        table = lake.create_table("a.log", SCHEMA, buckets=1)
        with table.writer() as writer:
            for kill in range(KILLS):
                for i in range(kill * WRITTEN // KILLS, (kill + 1) * WRITTEN // KILLS):
                    writer.append([{"id": i, "v": "x" * 50}])
                until(lambda: writer.token, "a first answer")
                server.kill()
                server = ServerProcess(tmp_path / "data", port=port, http_port=http_port)
            writer.flush()
            assert writer.unconfirmed == []
    server.kill()
    with ServerProcess(tmp_path / "data") as last, ls.connect(last.address) as lake:
        batches = lake.table("a.log").changes(until="now")
        assert [i for batch in batches for i in ids(batch)] == list(range(WRITTEN))
