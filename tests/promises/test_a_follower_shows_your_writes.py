"""A read with a token at a follower sees the writes up to the token, however far behind the follower is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.model.token import position_of
from tests.support.replicas import LONG_LEASE_SECONDS, Replicas
from tests.support.waiting import until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
WAYS: dict[str, Callable[[ls.Lake, str, int], int]] = {
    "scan": lambda lake, token, _: lake.table("a.t").scan(at=token).count(),
    "look-up": lambda lake, token, count: (
        lake.table("a.t").lookup([{"id": n} for n in range(count)], at=token).num_rows
    ),
    "SQL": lambda lake, token, _: lake.sql("SELECT * FROM a.t", at=token).to_arrow().num_rows,
    "cut": lambda lake, token, _: lake.at(token).scan("a.t").count(),
    "changes": lambda lake, token, _: sum(b.table.num_rows for b in lake.table("a.t").changes("earliest", until=token)),
}
"""Name of a way to read to the number of rows that it sees at a token."""


class Behind:
    """A client of the leader and one of a follower, which hears nothing of the leader until `catch_up`."""

    def __init__(self, replicas: Replicas) -> None:
        number = replicas.leader()
        assert number is not None
        self._number = (number + 1) % 3
        self._replicas, self._all = replicas, ExitStack()
        self.leader = self._all.enter_context(ls.connect(replicas.address(number)))
        self.follower = self._all.enter_context(ls.connect(replicas.address(self._number)))
        self.engine = replicas.servers[self._number].engine

    def fall_behind(self) -> None:
        self._replicas.ends[self._number].is_cut = True

    def catch_up(self) -> None:
        self._replicas.ends[self._number].is_cut = False

    def __enter__(self) -> Behind:
        return self

    def __exit__(self, *_: object) -> None:
        self.catch_up()
        self._all.close()


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behind]:
    with Replicas(tmp_path, lease_seconds=LONG_LEASE_SECONDS) as replicas, Behind(replicas) as found:
        yield found


@pytest.mark.parametrize("way", WAYS)
def test_a_read_with_a_token_waits_for_the_write(behind: Behind, way: str) -> None:
    table = behind.leader.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2)
    token = table.upsert([{"id": 0, "v": "a"}])
    assert WAYS[way](behind.follower, str(token), 2) == 1
    behind.fall_behind()
    token = table.upsert([{"id": 1, "v": "b"}])
    assert behind.engine.view.lsn < position_of(token).lsn, "the follower is behind"
    seen: list[int] = []
    reader = threading.Thread(target=lambda: seen.append(WAYS[way](behind.follower, str(token), 2)))
    reader.start()
    reader.join(0.2)
    assert seen == [], "it answered before it had the write"
    behind.catch_up()
    until(lambda: seen, "the answer")
    reader.join()
    assert seen == [2]


def test_a_connection_that_reads_at_followers_sees_its_own_writes(tmp_path: Path) -> None:
    with Replicas(tmp_path) as replicas, ls.connect(replicas.addresses, reads="follower") as lake:
        table = lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1)
        for number in range(20):
            table.upsert([{"id": number, "v": "x"}])
            assert table.scan().count() == number + 1
            assert table.lookup([{"id": number}]).num_rows == 1
