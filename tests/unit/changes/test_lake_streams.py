"""Streams that begin with a snapshot whose old rows are only in the lake: with a condition, and beside a busy table."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import lakestore as ls
from lakestore.cli.main import cli
from lakestore.limits import Limits
from lakestore_server.read.leases import Leases
from tests.support.log_tierer import LogTierer
from tests.support.served import SCHEMA, Served

NAME = "t.log"
CONDITIONS: dict[str, Callable[[int], bool]] = {
    "v > 25": lambda v: v > 25,
    "v IN (1, 7, 39, 41, 44)": lambda v: v in (1, 7, 39, 41, 44),
    "v < 5 OR v >= 43": lambda v: v < 5 or v >= 43,
    "v < 0": lambda v: False,
}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    running = Served(tmp_path, ports=True, limits=Limits(read_batch_bytes=400, changes_batch_rows=4))
    running.lake.create_table(NAME, SCHEMA, buckets=3, bucket_key=["v"], retention={"bytes": 1})
    yield running
    running.close()


@pytest.fixture(name="lake")
def _lake(served: Served) -> Iterator[ls.Lake]:
    with ls.connect(served.server.about["grpc"]) as connected:
        yield connected


def only_in_the_lake(served: Served) -> None:
    """40 rows that the log does not have any more, and 5 that it has."""
    for at in range(0, 40, 10):
        served.append(NAME, *range(at, at + 10))
    LogTierer(served.server, served.lake.transport).flush(NAME)
    served.run()
    served.append(NAME, *range(40, 45))
    assert sum(served.state(NAME).starts()) == 40


def meeting(condition: str, upto: int) -> list[int]:
    return [v for v in range(upto) if CONDITIONS[condition](v)]


def values(stream: Any) -> list[int]:
    return [row["v"] for batch in stream for row in batch.to_pylist()]


@pytest.mark.parametrize("where", CONDITIONS)
def test_a_condition_holds_for_rows_of_the_lake_and_of_the_log(served: Served, lake: ls.Lake, where: str) -> None:
    """Alone, by the command line, and shared by two of whom each reads its own buckets."""
    only_in_the_lake(served)
    table, wanted = lake.table(NAME), meeting(where, 45)
    stream = table.changes("snapshot", where=where, until="now")
    assert sorted(values(stream)) == wanted
    asked = [
        "changes",
        NAME,
        "--start",
        "snapshot",
        "--where",
        where,
        "--json",
        "--server",
        served.server.about["grpc"],
    ]
    said = CliRunner().invoke(cli, asked)
    assert said.exit_code == 0, said.output
    assert sorted(json.loads(line)["v"] for line in said.stdout.splitlines()) == wanted
    served.append(NAME, *range(45, 60))
    assert sorted(values(table.changes(stream.token, where=where, until="now"))) == meeting(where, 60)[len(wanted) :]
    got: dict[str, list[int]] = {"one": [], "two": []}
    both = threading.Barrier(2)

    def consume(member: str) -> None:
        options: dict[str, Any] = {"subscription": "s", "shared": True, "member": member, "until": "now"}
        with closing(table.changes("snapshot", where=where, **options)) as mine:
            both.wait(30)
            for batch in mine:
                got[member] += values([batch])
                batch.ack()

    threads = [threading.Thread(target=consume, args=(member,)) for member in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = sorted({*got["one"], *got["two"]})
    assert found == meeting(where, 60)


def test_none_is_missing_and_none_comes_twice_while_the_table_goes_on(served: Served, lake: ls.Lake) -> None:
    """Rows come, go into the lake and leave the log between any two batches of the snapshot, and behind it."""
    only_in_the_lake(served)
    tierer, last = LogTierer(served.server, served.lake.transport), 45
    stream = lake.table(NAME).changes("snapshot")
    found = values([next(stream)])
    starts = [sum(served.state(NAME).starts())]
    while len(found) < last:
        if last < 90:
            served.append(NAME, last, last + 1, last + 2)
            last += 3
            tierer.flush(NAME)
            served.checkpoint()
            served.run()
            starts.append(sum(served.state(NAME).starts()))
        found += values([next(stream)])
    stream.close()
    assert sorted(found) == list(range(last))
    assert len(set(starts)) > 1, "the log moved on under the stream"
    lately = [v for v in found if v >= 60]
    assert lake.table(NAME).scan().count() == last
    assert lately


def test_a_snapshot_that_no_head_can_have_is_refused(
    served: Served, lake: ls.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no usable snapshot in the lake the next head is no better than this one: the server once tried for ever."""
    only_in_the_lake(served)
    monkeypatch.setattr(Leases, "is_retired", lambda *_: True)
    with closing(lake.table(NAME).changes("snapshot", until="now")) as stream, pytest.raises(ls.PositionExpired):
        assert stream.next(60.0) is not None, "the server says nothing"
