"""Consumer processes that share a subscription while a producer writes: killed, paused, and the server killed."""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

import lakestore as ls
from lakestore.errors import Unavailable
from tests.support.consumer import SUBSCRIPTION, ConsumerProcess, Done
from tests.support.process import ServerProcess
from tests.support.waiting import until

NAME, BUCKETS, KEYS = "t.orders", 6, 60
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
SETTINGS = {"LAKESTORE_REBALANCE_SECONDS": "1"}


class Producer:
    """Upserts keys, each time with the next number of the key."""

    def __init__(self, lake: ls.Lake) -> None:
        self._table, self.rows = lake.table(NAME), 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        n = 0
        while not self._stop.wait(0.005):
            n += 1
            keys = [(n * 7 + i * 13) % KEYS for i in range(5)]
            self._table.upsert(pa.table({"id": keys, "n": [n] * 5}, schema=SCHEMA))
            self.rows += 5

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


@contextmanager
def working(server: ServerProcess, folder: Path, names: str) -> Iterator[dict[str, ConsumerProcess]]:
    """Consumers that read; all of them end with the block."""
    workers: dict[str, ConsumerProcess] = {}
    try:
        for name in names:
            workers[name] = ConsumerProcess(server.address, NAME, name, folder / name)
        yield workers
    finally:
        for worker in workers.values():
            worker.kill()


def reads(lake: ls.Lake) -> dict[str, set[int]]:
    try:
        found = [held for held in lake.subscriptions() if held.name == SUBSCRIPTION]
    except Unavailable:  # the server is killed and started in between
        return {}
    return {m.name: {bucket for _, bucket in m.buckets} for held in found for m in held.members}


def shared_by(lake: ls.Lake, names: str) -> bool:
    """Whether exactly these read, all buckets among them."""
    shares = reads(lake)
    return set(shares) == set(names) and set().union(*shares.values()) == set(range(BUCKETS)) and all(shares.values())


def check(lake: ls.Lake, workers: dict[str, ConsumerProcess], rows: int) -> list[Done]:
    """Every change was acknowledged by one consumer, and each key's changes were processed in their order."""
    done = [found for worker in workers.values() for found in worker.done()]
    sure = [found for found in done if found.sure]
    places = [(found.row.bucket, found.row.offset) for found in sure]
    assert len(places) == len(set(places)), "a change was acknowledged twice"
    told = set(places) | {(found.row.bucket, found.row.offset) for found in done}
    changes = list(lake.table(NAME).changes(until="now"))
    written = {
        place
        for batch in changes
        for place in zip(batch.table["__bucket"].to_pylist(), batch.table["__offset"].to_pylist(), strict=True)
    }
    assert len(written) == rows
    assert told == written, "a change was lost"
    by_key = defaultdict(list)
    for found in sorted(sure, key=lambda found: (found.time, found.row.offset)):
        by_key[found.row.key].append(found.row.n)
    assert len(by_key) == KEYS
    for key, numbers in by_key.items():
        assert numbers == sorted(numbers), f"the changes of key {key} were processed out of order"
    return done


def drained(lake: ls.Lake) -> bool:
    return all(held.behind == 0 for held in lake.subscriptions())


def test_consumers_that_are_killed_or_paused_lose_nothing_and_repeat_nothing_acknowledged(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", environment=SETTINGS) as server, ls.connect(server.address) as lake:
        lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=BUCKETS)
        with working(server, tmp_path, "abc") as workers:
            producer = Producer(lake)
            until(lambda: shared_by(lake, "abc") and workers["a"].done(), "three consumers")
            workers["a"].kill()
            until(lambda: shared_by(lake, "bc"), "two consumers")
            workers["b"].signal(signal.SIGSTOP)
            workers["d"] = ConsumerProcess(server.address, NAME, "d", tmp_path / "d")
            until(
                lambda: [len(share) for share in reads(lake).values()] == [2, 2, 2],
                "the paused one to give up a bucket",
            )
            workers["b"].signal(signal.SIGCONT)
            time.sleep(0.5)
            producer.stop()
            until(lambda: drained(lake), "everything to be acknowledged")
            assert [workers[name].code for name in "bcd"] == [None] * 3
            time.sleep(0.2)  # for what the last acknowledgement is followed by
            done = check(lake, workers, producer.rows)
        assert {found.member for found in done} == set("abcd")


def test_a_killed_server_finds_its_consumers_again_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", environment=SETTINGS)
    with ls.connect(server.address) as lake, working(server, tmp_path, "ab") as workers:
        lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=BUCKETS)
        producer = Producer(lake)
        for _ in range(2):
            until(lambda: shared_by(lake, "ab"), "two consumers")
            time.sleep(0.5)
            server.kill()
            server = ServerProcess(
                tmp_path / "data", port=server.port, http_port=server.http_port, environment=SETTINGS
            )
        until(lambda: shared_by(lake, "ab"), "both to come back")
        producer.stop()
        until(lambda: drained(lake), "everything to be acknowledged")
        time.sleep(0.2)
        check(lake, workers, producer.rows)
    server.kill()
