"""Each limit is reached: what lies beyond it is refused with its name or its number, or let go, and the rest works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.writer import change as wire_change
from lakestore.errors import Exhausted, Invalid, LakestoreError, LimitReached, NotFound
from lakestore.limits import DEFAULT, WIDEST, Limits
from lakestore.model import settings
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.host.quota import Quota
from lakestore_server.main import Server
from lakestore_server.operate.status import StatusVerbs
from lakestore_server.settings import Settings
from tests.support.one_try import one_try
from tests.support.served import Served
from tests.support.waiting import refusal, until

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
KEYED = pa.schema([("id", pa.string()), ("v", pa.int64())])


@contextmanager
def lake_with(folder: Path, limits: Limits) -> Iterator[ls.Lake]:
    with Served(folder / "data", limits=limits) as served:
        yield served.lake


@contextmanager
def connected(folder: Path, limits: Limits) -> Iterator[ls.Lake]:
    """The same over gRPC."""
    with (
        Served(folder / "data", limits=limits, ports=True) as served,
        ls.connect(served.server.about["grpc"]) as lake,
    ):
        yield lake


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": i, "v": "x"} for i in ids]


@pytest.mark.parametrize("value", [-1, 1 << 62, 1.5, True, "8", None])
def test_a_value_that_is_none_is_refused_by_name(value: Any) -> None:
    with pytest.raises(Invalid, match="queue_bytes"):
        Limits(queue_bytes=value)


def test_settings_change_limits_and_refuse_what_does_not_exist(tmp_path: Path) -> None:
    def read(text: str) -> Settings:
        given = settings.read(Settings, file="server.yaml", text=text, environment={}, flags={"data": str(tmp_path)})
        return given.settings()

    assert read("limits:\n  tables: 7\n").limits == replace(DEFAULT, tables=7)
    for wrong in ("limits:\n  tabels: 7\n", "limits:\n  tables: 0\n", "limits:\n  tables: many\n", "limits: 7\n"):
        with pytest.raises(Invalid, match=r"limits|tables"):
            read(wrong)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (Limits(batch_memory_bytes=1 << 10), "1024 bytes"),
        (Limits(batch_rows=50), "50 rows"),
        (Limits(commit_changes=1), "1 to 1 changes"),
    ],
)
def test_commits_that_are_too_large_are_refused_whole(tmp_path: Path, limits: Limits, says: str) -> None:
    with lake_with(tmp_path, limits) as lake:
        table = lake.create_table("a.b", SCHEMA, primary_key=["id"])
        table.upsert(rows(1))

        def large() -> None:
            with lake.commit() as commit:
                commit.upsert("a.b", rows(*range(500)))
                commit.upsert("a.b", rows(1))

        with pytest.raises(Invalid, match=says):
            large()
        assert table.scan().count() == 1


@pytest.mark.parametrize(
    ("limits", "schema", "options", "says"),
    [
        (Limits(columns=1), SCHEMA, {}, "1 to 1 columns"),
        (Limits(name_chars=3), pa.schema([("long", pa.int64())]), {}, "1 to 3 characters"),
        (Limits(buckets=2), SCHEMA, {"buckets": 3}, "buckets must be 1 to 2"),
    ],
)
def test_definitions_that_are_too_large_are_refused(
    tmp_path: Path, limits: Limits, schema: pa.Schema, options: dict[str, Any], says: str
) -> None:
    with lake_with(tmp_path, limits) as lake:
        with pytest.raises(Invalid, match=says):
            lake.create_table("a.b", schema, **options)
        assert lake.tables() == []


def test_a_server_that_takes_more_than_the_default_is_not_second_guessed_by_the_client(tmp_path: Path) -> None:
    with lake_with(tmp_path, Limits(buckets=5_000)) as lake:
        assert lake.create_table("a.b", SCHEMA, buckets=5_000).definition.buckets == 5_000


@pytest.mark.parametrize("opened", [lake_with, connected])
def test_one_table_more_is_refused_at_once(
    tmp_path: Path, opened: Callable[[Path, Limits], AbstractContextManager[ls.Lake]]
) -> None:
    with opened(tmp_path, Limits(tables=1)) as lake, lake.within(300):
        lake.create_table("a.b", SCHEMA)
        with pytest.raises(LimitReached, match=r"1 tables, its limit$"):
            lake.create_table("a.c", SCHEMA)
        lake.drop_table("a.b")
        with pytest.raises(LimitReached, match="1 of them dropped ones: `lakestore drop NAME --now`"):
            lake.create_table("a.c", SCHEMA)
        lake.undrop("a.b")
        lake.drop_table("a.b", purge=True)
        until(lambda: not lake.dropped_tables(), "the removal")
        lake.create_table("a.c", SCHEMA)


def test_a_long_key_is_refused_and_one_kept_under_wider_limits_still_opens(tmp_path: Path) -> None:
    with Served(tmp_path / "data", limits=Limits(key_bytes=2_000)) as served:
        lake = served.lake
        table = lake.create_table("a.b", KEYED, primary_key=["id"])
        table.upsert([{"id": "k" * 2_000, "v": 1}])
        with pytest.raises(Invalid, match="2001 bytes is longer than 2000"):
            table.upsert([{"id": "k" * 2_001, "v": 1}])
        served.server.close(checkpoint=False)
    with Served(tmp_path / "data", limits=Limits(key_bytes=8)) as served:
        lake = served.lake
        table = lake.table("a.b")
        assert table.lookup([{"id": "k" * 2_000}]).num_rows == 1
        with pytest.raises(Invalid, match="longer than 8"):
            table.upsert([{"id": "k" * 2_000, "v": 2}])


@pytest.mark.parametrize("how", ["key", "condition", "expiry"])
def test_rows_under_keys_longer_than_a_lowered_limit_can_go(tmp_path: Path, how: str) -> None:
    long = "k" * 700
    options: dict[str, Any] = {"ttl": {"column": "at", "after": "1s"}} if how == "expiry" else {}
    with Served(tmp_path / "data") as served:
        columns = {"id": "string", "v": "int64", "at": "timestamp"}
        table = served.lake.create_table("a.b", columns, primary_key=["id"], **options)
        table.upsert([{"id": long, "v": 1, "at": datetime(2000, 1, 1)}, {"id": "short", "v": 2, "at": None}])
    with Served(tmp_path / "data", limits=Limits(key_bytes=64)) as served:
        table = served.lake.table("a.b")
        if how == "key":
            table.delete([{"id": long}])
        elif how == "condition":
            table.delete(where="v = 1")
        else:
            served.server.expiry.run_once()
        assert table.scan().to_arrow()["id"].to_pylist() == ["short"]


def test_what_a_producer_attaches_and_its_name_are_bounded(tmp_path: Path) -> None:
    with lake_with(tmp_path, Limits(progress_bytes=3, name_chars=10)) as lake:
        table = lake.create_table("a.b", SCHEMA)
        writer = table.writer(producer="p")
        writer.append(rows(1), progress="four")
        with pytest.raises(Invalid, match="longer than 3 bytes"):
            writer.flush()
        with pytest.raises(Invalid, match="more than 10"):
            table.writer(producer="p" * 11)


def test_an_answer_that_is_no_longer_kept_is_an_error(tmp_path: Path) -> None:
    with lake_with(tmp_path, Limits(producer_answers=16)) as lake:
        table = lake.create_table("a.b", SCHEMA)
        for _ in range(17):
            table.append(rows(1))
        producer = lake._connection.producers._idle[0]

        def again(sequence: int) -> pb.CommitAnswer:
            request = pb.CommitRequest(producer=producer.name, sequence=sequence)
            data = wire_change("a.b", pb.APPEND, [pa.RecordBatch.from_pylist(rows(1), schema=SCHEMA)])
            request.changes.append(data)
            return lake.transport.commit(request)

        assert again(2).results[0].inserted == 1
        with pytest.raises(Invalid, match="too old"):
            again(1)
        assert table.scan().count() == 17


@pytest.mark.parametrize(
    "limits", [Limits(queue_commits=1, queue_wait_ms=0), Limits(queue_bytes=1024, queue_wait_ms=0)]
)
def test_a_full_queue_is_exhausted_at_once_with_a_hint(
    tmp_path: Path, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Served(tmp_path / "data", limits=limits) as served:
        lake = served.lake
        table = lake.create_table("a.b", SCHEMA)
        engine = served.engine
        begun, go_on = threading.Event(), threading.Event()
        launch = engine.loop._launch

        def slow(*made: Any) -> None:
            begun.set()
            assert go_on.wait(30)
            launch(*made)

        monkeypatch.setattr(engine.loop, "_launch", slow)
        first = threading.Thread(target=table.append, args=(rows(1),))
        first.start()
        assert begun.wait(30)
        second = threading.Thread(target=table.append, args=(rows(2),))
        second.start()
        while not len(engine.loop.queue):
            begun.wait(0.001)
        with pytest.raises(Exhausted, match="queue is full") as refused:
            engine.await_room()
        assert 0 < refused.value.retry_after <= 5
        assert refused.value.applied == "no"
        go_on.set()
        table.append(rows(3))
        first.join(30)
        second.join(30)
        assert table.scan().count() == 3


def test_memory_for_decoding_is_bounded_and_one_large_request_still_goes_in() -> None:
    permits = Quota(Limits(in_flight_bytes=1 << 20).in_flight_bytes, 0.0, "no memory")
    with permits.taken(1 << 19), permits.taken(1 << 19):
        with pytest.raises(Exhausted, match="no memory") as refused, permits.taken(1):
            pass
        assert refused.value.retry_after > 0
    with permits.taken(1 << 30):
        assert permits.held == 1 << 20
    assert permits.held == 0


def test_the_urgent_have_permits_of_their_own_and_take_no_others_before_those() -> None:
    permits = Quota(100, 0.0, "no memory", beyond=25)
    with permits.taken(90) as claim:
        with permits.taken(20, is_urgent=True), permits.taken(5, is_urgent=True):
            claim(10)
            assert permits.held == 125
            with pytest.raises(Exhausted), permits.taken(1, is_urgent=True):
                pass
            with pytest.raises(Exhausted), permits.taken(1):
                pass
            claim(50)  # who has all that there are has enough
        assert permits.held == 100
    with permits.taken(30, is_urgent=True):
        with pytest.raises(Exhausted), permits.taken(96):
            pass
        with permits.taken(95):
            assert permits.held == 125
    with permits.taken(100), pytest.raises(Exhausted), permits.taken(1):
        pass
    assert permits.held == 0


def test_a_frame_takes_no_more_than_a_group(tmp_path: Path) -> None:
    with Served(tmp_path / "data", limits=Limits(group_bytes=1)) as served:
        lake = served.lake
        table = lake.create_table("a.b", SCHEMA)
        engine = served.engine
        before = engine.view.lsn
        with table.writer() as writer:
            writer.append(rows(1))
            writer.flush()
            writer.append(rows(2))
        assert engine.view.lsn == before + 2


@pytest.mark.parametrize("limits", [Limits(journal_checkpoint_bytes=1024), Limits(overlay_checkpoint_keys=5)])
def test_a_checkpoint_begins_beyond_the_journal_or_the_keys_in_memory(tmp_path: Path, limits: Limits) -> None:
    with lake_with(tmp_path, limits) as lake:
        table = lake.create_table("a.b", SCHEMA, primary_key=["id"])
        for i in range(20):
            table.upsert(rows(i))
        until(lambda: list((tmp_path / "data").glob("segments/*/*.seg")), "the checkpoint")
        assert table.lookup([{"id": 3}]).num_rows == 1


def test_commits_wait_for_a_checkpoint_when_the_journal_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits(journal_bytes=2048, journal_checkpoint_bytes=1024, queue_wait_ms=0)
    with Served(tmp_path / "data", limits=limits) as served:
        lake = served.lake
        engine = served.engine
        engine.loop.on_checkpoint_due(lambda: None)
        table = lake.create_table("a.b", SCHEMA)
        while engine.loop.durable_state.size.untrimmed < 2048:
            table.append(rows(1))
        with pytest.raises(Exhausted, match="queue is full") as refused:
            engine.await_room()
        assert refused.value.retry_after == 1.0
        served.checkpoint()
        table.append(rows(1))


def test_merged_keys_are_kept_in_memory_up_to_a_number(tmp_path: Path) -> None:
    for keys, kept in ((1, 0), (100, 1)):
        with Served(tmp_path / str(keys) / "data", limits=Limits(index_cache_keys=keys)) as served:
            lake = served.lake
            table = lake.create_table("a.b", pa.schema([("id", pa.string())]), primary_key=["id"])
            table.upsert([{"id": "a"}, {"id": "b"}, {"id": "c"}])
            numbers = lake.create_table("a.numbers", SCHEMA, primary_key=["id"])
            numbers.upsert(rows(1, 2, 3))
            engine = served.engine
            served.checkpoint()
            assert [len(overlay) for overlay in engine.index._older] == [3] * kept, "runs need no cache"
            assert table.lookup([{"id": "b"}]).num_rows == numbers.lookup([{"id": 2}]).num_rows == 1


def test_dead_sets_are_remembered_up_to_their_bytes(tmp_path: Path) -> None:
    with Served(tmp_path / "data", limits=Limits(dead_cache_bytes=0)) as served:
        table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"], buckets=3)
        table.upsert(rows(*range(30)))
        table.upsert(rows(*range(20)))
        table.upsert(rows(*range(10)))
        assert table.scan().to_arrow().num_rows == 30
        dead = served.verbs("Plan")._dead
        assert len(dead._sets) == 1
        assert dead._bytes == next(iter(dead._sets.values())).nbytes > 0


def test_dead_sets_are_remembered_up_to_a_number(tmp_path: Path) -> None:
    with Served(tmp_path / "data", limits=Limits(dead_cache_ranges=1)) as served:
        table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"], buckets=3)
        table.upsert(rows(*range(30)))
        table.upsert(rows(*range(10)))
        assert table.scan().to_arrow().num_rows == 30
        assert len(served.verbs("Plan")._dead._sets) == 1


def test_segments_are_merged_up_to_a_number_of_rows(tmp_path: Path) -> None:
    with Served(tmp_path / "data", limits=Limits(segment_rows=4)) as served:
        lake = served.lake
        table = lake.create_table("a.b", SCHEMA, buckets=1)
        for _ in range(4):
            table.append(rows(1, 2))
            served.checkpoint()
        assert len(list((tmp_path / "data").glob("segments/*/*.seg"))) == 2
        assert table.scan().count() == 8


def test_rows_are_refused_below_the_free_space_and_reads_go_on(tmp_path: Path) -> None:
    with Served(tmp_path / "data", limits=Limits()) as served:
        lake = served.lake
        lake.create_table("a.b", SCHEMA).append(rows(1))
    with Served(tmp_path / "data", limits=Limits(disk_free_bytes=1 << 50)) as served:
        lake = served.lake
        with pytest.raises(Exhausted, match="free") as refused:
            served.engine.await_room()
        assert refused.value.retry_after > 0
        assert lake.table("a.b").scan().count() == 1


def test_streams_hold_whole_commits_of_about_the_wanted_rows(tmp_path: Path) -> None:
    with lake_with(tmp_path, Limits(changes_batch_rows=4, fetch_batch_rows=3)) as lake:
        table = lake.create_table("a.b", SCHEMA, buckets=1)
        for _ in range(5):
            table.append(rows(1, 2))
        assert [len(batch) for batch in table.changes(until="now")] == [4, 4, 2]
        assert max(batch.num_rows for batch in table.scan().to_batches()) <= 3


def test_one_read_too_many_is_told_to_come_again(tmp_path: Path) -> None:
    with lake_with(tmp_path, Limits(leases=1, lease_seconds=10)) as lake:
        lake.create_table("a.b", SCHEMA)

        def plan(seconds: int) -> pb.PlanAnswer:
            return lake.transport.plan(pb.PlanRequest(tables=["a.b"], lease_seconds=seconds))

        held = plan(10).lease
        refused = refusal(lambda: plan(10), "1 reads", 1.0)
        assert isinstance(refused, Exhausted)
        assert refused.retry_after > 0
        lake.transport.release_lease(pb.LeaseRequest(lease=held))
        with pytest.raises(Invalid, match="1 to 10 seconds"):
            plan(11)
        assert plan(10).lease


def test_an_idempotency_key_is_forgotten_for_a_newer_one(tmp_path: Path) -> None:
    with Served(tmp_path / "data", limits=Limits(idempotency_keys=2)) as served:
        lake = served.lake
        state = served.engine.loop.state
        assert served.engine.limits.idempotency_keys == 2
        lake.create_table("a.b", SCHEMA)
        state.idempotency.update(dict.fromkeys(["one", "two", "three"]))
        lake.create_table("a.c", SCHEMA)
        assert list(state.idempotency) == ["two", "three"]


def test_a_message_beyond_the_limit_is_refused_and_the_next_one_is_not(tmp_path: Path) -> None:
    with connected(tmp_path, Limits(message_bytes=1 << 20)) as lake:
        table = lake.create_table("a.b", SCHEMA)
        with pytest.raises(Invalid, match="one message of 1,048,576 has room for 983,040"):
            table.append([{"id": 1, "v": "x" * (2 << 20)}])
        table.append(rows(1))


def test_one_stream_too_many_is_told_to_come_again(tmp_path: Path) -> None:
    with connected(tmp_path, Limits(threads=8, streams=1)) as lake:
        table = lake.create_table("a.b", SCHEMA)
        table.append(rows(1))
        first = lake.transport.changes(pb.ChangesRequest(tables=["a.b"]))
        assert next(first).table == "a.b"
        with pytest.raises(Exhausted, match="1 streams") as refused:
            next(lake.transport.changes(pb.ChangesRequest(tables=["a.b"])))
        assert refused.value.retry_after > 0
        table.append(rows(2))


def test_a_call_beyond_the_threads_is_told_to_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, begun = threading.Event(), threading.Semaphore(0)
    head = StatusVerbs.head

    def slow(verbs: StatusVerbs, request: pb.HeadRequest) -> pb.HeadAnswer:
        begun.release()
        goes_on.wait(30)
        return head(verbs, request)

    monkeypatch.setattr(StatusVerbs, "head", slow)
    with connected(tmp_path, Limits(threads=8)) as lake, ThreadPoolExecutor(8) as pool:
        lake.tables()
        running = [pool.submit(lake.transport.head, pb.HeadRequest()) for _ in range(8)]
        try:
            assert all(begun.acquire(timeout=30) for _ in running)
            with pytest.raises(Exhausted, match="at its limit of calls") as refused:
                one_try(lake).status(pb.StatusRequest())
            assert refused.value.retry_after > 0
        finally:
            goes_on.set()
        assert all(call.result(30).token for call in running)
        lake.transport.status(pb.StatusRequest())


def test_a_body_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    httpx = pytest.importorskip("httpx")
    server = Server(Settings(data=tmp_path / "data", port=0, http_port=0, limits=Limits(http_body_bytes=1024)))
    try:
        server.start()
        place = f"http://{server.about['http']}/iceberg/v1/namespaces"
        answer = httpx.post(place, content=b" " * 2_000, headers={"content-type": "application/json"})
        assert answer.status_code == 400
        assert "1024" in answer.text
        assert httpx.get(place).status_code == 200
    finally:
        server.close()


def test_limits_that_cannot_work_together_are_refused() -> None:
    with pytest.raises(Invalid, match="journal_checkpoint_bytes"):
        Limits(journal_bytes=1 << 20, journal_checkpoint_bytes=1 << 20)
    assert WIDEST.columns > DEFAULT.columns


def test_a_name_that_is_far_too_long_is_cut_short_in_the_error(tmp_path: Path) -> None:
    """A name that a table could have is shown whole."""
    long, name = "x" * 5_000, "a." + "y" * 255
    with Served(tmp_path) as served:
        lake = served.lake
        table = lake.create_table("a.t", SCHEMA)
        tried: list[Callable[[], object]] = [
            lambda: lake.table(f"a.{long}"),
            lambda: lake.create_table(f"a.{long}", SCHEMA),
            lambda: lake.drop_table(f"a.{long}"),
            lambda: lake.undrop(f"a.{long}"),
            lambda: table.rename(f"a.{long}"),
            lambda: lake.create_database(long),
            lambda: lake.drop_database(long),
            lambda: lake.drop_subscription(long),
            lambda: lake.drop_producer(long),
            lambda: lake.sql(f"SELECT * FROM a.{long}"),
            lambda: table.append(pa.table({long: [1]})),
        ]
        for call in tried:
            with pytest.raises(LakestoreError) as error:
                call()
            assert len(error.value.message) < 700
        with pytest.raises(NotFound, match=name):
            lake.table(name)
