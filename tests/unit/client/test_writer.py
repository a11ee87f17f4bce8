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
from lakestore.client import writer as client_writer
from lakestore.client.producer import Producer
from lakestore.client.writer import IN_FLIGHT_MAX, Writer
from lakestore.errors import Exhausted, Fenced, Internal, Invalid, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.commit_message import CommitMessage
from tests.support.served import Served
from tests.support.waiting import until

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
        self.commits = threading.Semaphore(0)
        """One permit for each commit that was sent."""
        self.sizes: list[int] = []
        """Approximate bytes of each commit that was sent."""
        self.sent: list[CommitMessage] = []
        self.failures: list[ls.LakestoreError] = []

    def write(self, requests: Iterator[CommitMessage]) -> Iterator[pb.CommitAnswer]:
        """As the server's, later."""
        for answer in self._transport.write(self._counted(requests)):
            assert self.open.wait(30)
            if self.failures:
                raise self.failures.pop(0)
            yield answer

    def _counted(self, requests: Iterator[CommitMessage]) -> Iterator[CommitMessage]:
        for request in requests:
            self.commits.release()
            self.sizes.append(request.nbytes)
            self.sent.append(request)
            yield request


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


@pytest.mark.parametrize("seconds", [3600.0, 0.0])
def test_small_rows_share_a_commit_while_another_is_unanswered(
    lake: ls.Lake, table: ls.Table, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(client_writer, "SHARE_SECONDS", seconds)
    gate: Any = Gate(lake.transport)
    with Writer(gate, table.definition, Producer()) as writer:
        for number in range(10):
            writer.append([{"id": number, "v": "x"}])
            if not number or not seconds:  # without a time to wait each row is a commit, as there is room in flight
                assert gate.commits.acquire(timeout=30)
            elif number == 1:
                assert not gate.commits.acquire(timeout=0.2), "the second row waits"
        gate.open.set()
    assert gate.commits.acquire(blocking=False) is bool(seconds)
    assert not gate.commits.acquire(blocking=False), "the nine rows behind the first share one"
    assert ids(table) == list(range(10))


@pytest.mark.parametrize("length", [1, 200_000])
def test_rows_of_several_calls_are_sent_as_one_batch(lake: ls.Lake, table: ls.Table, length: int) -> None:
    """A server stores one batch as it was sent; several would be copied into one and encoded again."""
    gate: Any = Gate(lake.transport)
    writer = Writer(gate, table.definition, Producer())
    for number in range(2 * IN_FLIGHT_MAX):  # so that some wait while the others are unanswered
        writer.append([{"id": number, "v": "x" * length}])
    gate.open.set()
    writer.close()
    assert ids(table) == list(range(2 * IN_FLIGHT_MAX))
    parts = [message.rows_of(0) or pa.py_buffer(message.request.changes[0].rows) for message in gate.sent]
    batches = [list(pa.ipc.open_stream(rows)) for rows in parts]
    assert [len(each) for each in batches] == [1] * len(gate.sent)
    assert any(each[0].num_rows > 1 for each in batches), "some calls share a commit"


def test_rows_that_cannot_be_encoded_end_the_writer(
    lake: ls.Lake, table: ls.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise pa.ArrowMemoryError("no room")

    monkeypatch.setattr(client_writer, "change_beside", refused)
    writer = Writer(lake.transport, table.definition, Producer())
    writer.append([{"id": 1, "v": "x"}])
    with lake.within(20), pytest.raises(Exhausted, match="cannot be encoded: no room"):
        writer.flush()
    assert len(writer.unconfirmed) == 1
    writer.close()
    assert not ids(table)


@pytest.mark.parametrize("given", [{"progress": 42}, {"progress": "\udcff.csv"}, {"keep": ["\ud800"]}])
def test_what_no_message_can_have_is_refused_at_the_call(lake: ls.Lake, given: dict[str, Any]) -> None:
    keyed = lake.create_table("a.keyed", SCHEMA, primary_key=["id"], buckets=1)
    with Writer(lake.transport, keyed.definition, Producer()) as writer:
        with pytest.raises(Invalid, match="takes text"):
            writer.upsert([{"id": 1, "v": "x"}], **given)
        writer.upsert([{"id": 2, "v": "x"}])
    assert ids(keyed) == [2]


@pytest.mark.parametrize("step", ["request", "_encoded", "_answered"])
def test_a_defect_of_the_writer_loses_no_row_and_ends_it(
    lake: ls.Lake, table: ls.Table, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a step fails")

    monkeypatch.setattr(Producer if step == "request" else Writer, step, broken)
    writer = Writer(lake.transport, table.definition, Producer())
    writer.append([{"id": 1, "v": "x"}])
    with lake.within(20), pytest.raises(Internal, match="a step fails") as failed:
        writer.flush()
    is_sent = step == "_answered"
    assert failed.value.applied == ("unknown" if is_sent else "no")
    assert len(writer.unconfirmed) == 1
    writer.close()
    assert ids(table) == [1] * is_sent


def test_a_commit_that_is_on_its_way_may_be_applied_when_the_next_cannot_be_encoded(
    lake: ls.Lake, table: ls.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate: Any = Gate(lake.transport)
    writer = Writer(gate, table.definition, Producer())
    writer.append([{"id": 1, "v": "x"}])
    assert gate.commits.acquire(timeout=30)

    def refused(*_: object) -> None:
        raise pa.ArrowMemoryError("no room")

    monkeypatch.setattr(client_writer, "change_beside", refused)
    writer.append([{"id": 2, "v": "x" * client_writer.SHARE_BYTES}])
    with lake.within(20), pytest.raises(Exhausted, match="no room") as failed:
        writer.flush()
    assert failed.value.applied == "unknown"
    gate.open.set()
    writer.close()
    until(lambda: [batch.column("id").to_pylist() for batch in writer.unconfirmed] == [[2]], "the answer to the first")
    assert ids(table) == [1]


def test_batches_with_dictionaries_stay_as_they_are() -> None:
    """Each batch of a stream may have dictionaries of its own."""
    batches = [pa.record_batch([pa.array([text]).dictionary_encode()], names=["v"]) for text in ("a", "b")]
    assert client_writer._joined(batches) == batches
    plain = [pa.record_batch([pa.array([text])], names=["v"]) for text in ("a", "b")]
    assert client_writer._joined(plain) == [pa.concat_batches(plain)]
    assert client_writer._joined(plain[:1])[0] is plain[0]


def test_what_cannot_grow_waits_for_nothing(lake: ls.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_writer, "SHARE_SECONDS", 3600.0)
    table = lake.create_table("a.keyed", SCHEMA, primary_key=["id"], buckets=1)
    gate: Any = Gate(lake.transport)
    with Writer(gate, table.definition, Producer()) as writer:
        for number in range(4):  # no two of them fit in one commit
            writer.upsert([{"id": number, "v": "x"}])
            writer.delete([{"id": number}])
        for _ in range(7):  # the last one might still grow
            assert gate.commits.acquire(timeout=30)
        assert not gate.commits.acquire(blocking=False)
        writer.upsert([{"id": 8, "v": "x" * client_writer.SHARE_BYTES}])
        assert gate.commits.acquire(timeout=30)
        assert gate.commits.acquire(timeout=30), "large enough by itself"
        gate.open.set()
    assert ids(table) == [8]


@pytest.mark.parametrize("row_bytes", [100_000, 2_000_000])
def test_buffered_rows_fit_a_server_that_takes_smaller_messages(
    lake: ls.Lake, table: ls.Table, monkeypatch: pytest.MonkeyPatch, row_bytes: int
) -> None:
    monkeypatch.setattr(client_writer, "IN_FLIGHT_MAX", 1)
    gate: Any = Gate(lake.transport)
    writer = Writer(gate, table.definition, Producer())
    for number in range(20):
        writer.append([{"id": number, "v": "x" * (row_bytes if number else 1)}])
        assert number or gate.commits.acquire(timeout=30)
    gate.server.message_bytes = 1 << 20
    gate.open.set()
    if row_bytes > 1 << 20:
        with pytest.raises(Invalid, match="one message of 1,048,576 has room for"):
            writer.close()
        assert ids(table) == [0]
        assert [batch["id"][0].as_py() for batch in writer.unconfirmed] == [*range(1, 20)]
        return
    writer.close()
    assert ids(table) == [*range(20)]
    assert row_bytes < max(gate.sizes) <= 1 << 19
    assert not writer._held_bytes


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
