"""The pipelined writer: a bounded window, failures told once and truthfully, nothing applied after one."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client import retry
from lakestore.client.producer import Producer
from lakestore.client.writer import Writer
from lakestore.errors import Exhausted, Fenced, Invalid, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture(name="lake")
def _lake() -> Iterator[ls.Lake]:
    with tempfile.TemporaryDirectory() as folder, ls.open(folder) as lake:
        yield lake


@pytest.fixture(name="table")
def _table(lake: ls.Lake) -> ls.Table:
    return lake.create_table("a.b", SCHEMA, buckets=1)


class Gate:
    """A transport whose write streams wait until they are let through, or fail."""

    def __init__(self, transport: Any) -> None:
        self.server = pb.HelloAnswer()
        self._transport = transport
        self.open = threading.Event()
        self.failures: list[ls.LakestoreError] = []

    def write(self, requests: Iterator[pb.CommitRequest]) -> Iterator[pb.CommitAnswer]:
        """As the server's, later."""
        for answer in self._transport.write(requests):
            assert self.open.wait(30)
            if self.failures:
                raise self.failures.pop(0)
            yield answer


def ids(table: ls.Table) -> list[int]:
    found: list[int] = table.scan().to_arrow()["id"].to_pylist()
    return found


def test_a_full_window_refuses_in_time_and_takes_rows_again_when_answers_come(lake: ls.Lake, table: ls.Table) -> None:
    gate: Any = Gate(lake.transport)
    writer = Writer(gate, table.definition, Producer(), window_bytes=100)
    writer.append([{"id": 1, "v": "x" * 200}])
    with lake.within(0.05), pytest.raises(Exhausted, match="window is full") as refused:
        writer.append([{"id": 2, "v": "x"}])
    assert refused.value.applied == "no"
    with lake.within(0.05), pytest.raises(Unavailable, match="flush again"):
        writer.flush()
    gate.open.set()
    writer.append([{"id": 3, "v": "x"}])
    writer.close()
    assert ids(table) == [1, 3]
    assert not writer.unconfirmed


def test_after_a_failure_nothing_behind_it_is_applied_and_it_is_told_once(table: ls.Table) -> None:
    writer = table.writer()
    writer.append([{"id": 1, "v": "a"}])
    writer.flush()
    writer.append(pa.table({"id": [2], "wrong": ["b"]}))
    for i in range(3, 50):
        try:
            writer.append([{"id": i, "v": "c"}])
        except Invalid:
            break
    else:
        with pytest.raises(Invalid, match="wrong"):
            writer.flush()
    with pytest.raises(Invalid, match="wrong") as again:
        writer.append([{"id": 50, "v": "c"}])
    assert again.value.applied == "no"
    left = [row["id"] for batch in writer.unconfirmed for row in batch.to_pylist()]
    assert left == list(range(2, 2 + len(left)))
    writer.close()
    assert ids(table) == [1]


def test_a_refusal_after_a_lost_answer_is_unknown(lake: ls.Lake, table: ls.Table) -> None:
    gate: Any = Gate(lake.transport)
    gate.open.set()
    gate.failures = [Unavailable("lost", applied="unknown"), Fenced("another one took over")]
    writer = Writer(gate, table.definition, Producer())
    writer.append([{"id": 1, "v": "a"}])
    with pytest.raises(Fenced) as failed:
        writer.flush()
    assert failed.value.applied == "unknown"
    assert [batch.num_rows for batch in writer.unconfirmed] == [1]
    writer.close()
    assert ids(table) == [1]


def test_pauses_grow_with_jitter_and_heed_the_server() -> None:
    now, slept = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    backoff = retry.Backoff(10.0, clock=lambda: now[0], sleep=sleep, chance=lambda: 0.5)
    while backoff.wait(Unavailable("not now")):
        pass
    assert slept == sorted(slept)
    assert sum(slept) <= 10.0
    backoff.reset()
    slept.clear()
    assert backoff.wait(Exhausted("full", retry_after=2.0))
    assert 2.0 <= slept[0] <= 3.0
    assert not backoff.wait(Invalid("wrong"))
    assert not backoff.wait(Exhausted("full", retry_after=60.0))


def test_a_deadline_holds_for_pauses_and_inner_blocks(lake: ls.Lake) -> None:
    with lake.within(0.05), lake.within(60.0):
        assert retry.seconds_to_deadline(100.0) <= 0.05
        assert not retry.Backoff().wait(Exhausted("full", retry_after=1.0))
    assert retry.seconds_to_deadline(100.0) == 100.0


def test_rows_that_overflow_when_unfolded_end_a_writer_with_a_reason(served: Served) -> None:
    table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"])
    many = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), pa.array(["x" * 1_000_000]))
    opened = table.writer()
    opened.upsert(pa.table({"id": range(3000), "v": many}))
    with pytest.raises(Invalid, match="column 'v'"):
        opened.flush()
