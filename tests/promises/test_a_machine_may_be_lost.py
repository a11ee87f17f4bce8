"""The leader of three servers is killed by kill -9 and loses its disk: the next leader answers each acknowledged commit
once, and so does the server that begins again on an empty disk in its place."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from jepsen.system.kafka import KafkaProcess
from lakestore.errors import LakestoreError
from lakestore_server.journals.kafka_log import Admin, KafkaTopic
from tests.promises.test_acknowledged_is_durable import LOG, SCHEMA, fold
from tests.support.kafka_servers import KafkaServers
from tests.support.process import ServerProcess
from tests.support.seeds import serial
from tests.support.waiting import until

pytestmark = pytest.mark.kafka
LOSSES = 2
KEYS = 50


class Machines(KafkaServers):
    """Three servers, each with a disk of its own."""

    def leader(self) -> ServerProcess:
        """The server that leads, once one does."""
        with ls.connect(self.addresses) as lake:
            lake.tables()
            return next(server for server in self.servers if server.address == lake.transport.address)

    def lose(self, server: ServerProcess) -> None:
        """kill -9, and the disk is gone with the machine."""
        server.kill()
        shutil.rmtree(server.data)


@pytest.fixture
def machines(kafka: KafkaProcess, tmp_path: Path) -> Iterator[Machines]:
    topic = KafkaTopic(kafka.address, serial("machines"))
    Admin(topic).create(replicas=1)
    with Machines(f"kafka://{topic.bootstrap}/{topic.topic}", tmp_path, "abc") as found:
        yield found


class Writer:
    """Commits a row of the log and one of the keyed table, again and again; `acknowledged` counts the answers."""

    def __init__(self, lake: ls.Lake, number: int) -> None:
        self._lake, self.number = lake, number
        self.acknowledged = 0
        self.error: LakestoreError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                n = self.acknowledged + 1
                with self._lake.commit() as commit:
                    commit.append("t.log", pa.table({"producer": [self.number], "n": [n]}, schema=LOG))
                    commit.upsert(
                        "t.state", pa.table({"id": [self.number * KEYS + n % KEYS], "version": [n]}, schema=SCHEMA)
                    )
                self.acknowledged = n
        except LakestoreError as error:
            self.error = error

    def end(self) -> None:
        """After the commit that is under way."""
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()
        assert self.error is None, self.error


def wait(writers: list[Writer], count: int) -> list[int]:
    """Until each has so many more commits acknowledged; the numbers that they have then."""
    began = [writer.acknowledged for writer in writers]

    def is_done() -> bool:
        assert [writer.error for writer in writers] == [None] * len(writers)
        return all(w.acknowledged >= b + count for w, b in zip(writers, began, strict=True))

    until(is_done, "more commits", 60)
    return [writer.acknowledged for writer in writers]


def check_log(lake: ls.Lake, acknowledged: list[int]) -> list[tuple[int, int]]:
    """Each acknowledged commit is in the log once, without a gap; the log's rows."""
    _, records = fold(lake, "t.log")
    rows = sorted((producer, n) for _, producer, n in records)
    assert len(set(rows)) == len(rows), "a commit was applied twice"
    for number, done in enumerate(acknowledged):
        numbers = [n for producer, n in rows if producer == number]
        assert numbers == list(range(1, len(numbers) + 1)), "a commit is missing"
        assert len(numbers) >= done, "an acknowledged commit is lost"
    return rows


def check(lake: ls.Lake, acknowledged: list[int]) -> None:
    """The log has each commit, and the keyed table is what the log says."""
    rows = check_log(lake, acknowledged)
    newest = {number * KEYS + n % KEYS: n for number, n in rows}
    scanned = lake.table("t.state").scan().to_arrow().to_pylist()
    assert {row["id"]: row["version"] for row in scanned} == newest
    assert len(scanned) == len(newest)


def test_every_acknowledged_commit_is_answered_by_the_next_leader(machines: Machines) -> None:
    with ls.connect(machines.addresses) as lake:
        lake.create_table("t.state", SCHEMA, primary_key=["id"], buckets=2)
        lake.create_table("t.log", LOG, buckets=1)
        writers = [Writer(lake, number) for number in range(2)]
        for _ in range(LOSSES):
            wait(writers, 20)
            lost = machines.leader()
            machines.lose(lost)
            check_log(lake, wait(writers, 2))
            assert machines.leader() is not lost
            machines.start_again(lost)
        for writer in writers:
            writer.end()
        acknowledged = [writer.acknowledged for writer in writers]
        check(lake, acknowledged)
        head = lake.snapshot().token
    for server in machines.servers:  # each of them has all of it on its own disk, those that began again too
        with ls.connect(server.address) as one:
            one.table("t.log").scan(at=head).count()
            check(one, acknowledged)
