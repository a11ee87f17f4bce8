"""What a read may require: complete through a time, by commits and by feeds, or fresh; else `NotFresh`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakestore as ls
from lakestore import aio
from lakestore.client import snapshot
from lakestore.errors import Invalid, NotFresh
from lakestore.model.alteration import Requirement, feed_of
from lakestore.model.times import text_of
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore.wire.errors import error_fields, error_of_fields
from lakestore_server.state.commit_record import RegistersDrop, RegistersMove, RegistersOpen
from lakestore_server.state.registers import FEED_VALUES_MAX, Registers
from tests.support.seeds import examples
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
NAME, OTHER = "d.t", "d.other"
FEED = f"complete/{NAME}/etl"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("completeness"), ports=True) as opened:
        yield opened


@pytest.fixture
def table(served: Served) -> Iterator[ls.Table]:
    served.lake.create_table(OTHER, SCHEMA, primary_key=["id"], buckets=1)
    yield served.lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2)
    served.lake.drop_registers([FEED, f"complete/{NAME}/second"])
    for name in (NAME, OTHER):
        served.lake.drop_table(name)


def now(served: Served) -> datetime:
    return datetime.fromisoformat(text_of(served.engine.now_us()))


def after(served: Served, seconds: float = 1.0) -> datetime:
    """The time, and then so much more of it."""
    then = now(served)
    served.clock.advance(seconds)
    return then


def written(served: Served, key: int) -> str:
    served.clock.advance(1)
    return str(served.lake.table(NAME).upsert([{"id": key, "v": key}]))


Reads = dict[str, Callable[..., int]]


def reads(lake: ls.Lake) -> Reads:
    """Every way to read the table with something required: the number of its rows."""
    table = lake.table(NAME)
    count = f"SELECT count(*) AS n FROM {NAME}"

    def held(**required: Any) -> int:
        at = required.pop("at", None)
        taken = lake.snapshot(**required) if at is None else lake.at(at, **required)
        with taken as cut:
            return len(cut.scan(NAME).to_arrow())

    return {
        "scan": lambda **r: table.scan(at=r.pop("at", None), **r).to_arrow().num_rows,
        "count": lambda **r: table.scan(at=r.pop("at", None), **r).count(),
        "lookup": lambda **r: table.lookup([{"id": n} for n in range(9)], **r).num_rows,
        "lookup of one": lambda **r: table.lookup([{"id": 1}], **r).num_rows and table.scan(**r).count(),
        "sql": lambda **r: int(lake.sql(count, **r).to_pylist()[0]["n"]),
        "snapshot": held,
    }


def refused(read: Callable[..., int], **required: Any) -> NotFresh:
    with patch.object(snapshot, "REQUIRE_WAIT_SECONDS", 0.0), pytest.raises(NotFresh) as error:
        read(**required)
    return error.value


def test_a_head_is_complete_through_every_time_that_is_over(served: Served, table: ls.Table) -> None:
    written(served, 1)
    then = after(served)
    written(served, 2)
    for name, read in reads(served.lake).items():
        assert read(require_complete_through=then) == 2, name
        assert read(require_freshness="1s", require_complete_through=then.isoformat()) == 2, name
    ahead = now(served) + timedelta(minutes=1)
    for name, read in reads(served.lake).items():
        error = refused(read, require_complete_through=ahead)
        assert error.table == NAME, name
        assert error.complete_through is not None
        assert timedelta(0) <= now(served) - error.complete_through < timedelta(seconds=1), name
        assert "ahead of the server's clock" in error.message


def test_a_cut_of_the_past_is_complete_up_to_the_commit_that_it_lacks(served: Served, table: ls.Table) -> None:
    first = written(served, 1)
    then = after(served)
    second = written(served, 2)
    last = now(served)
    served.clock.advance(60)
    for name, read in reads(served.lake).items():
        assert read(at=first, require_complete_through=then) == 1, name
        assert read(at=second, require_complete_through=last + timedelta(seconds=30), require_freshness="5s") == 2
        error = refused(read, at=first, require_complete_through=last)
        assert error.complete_through is not None
        assert then < error.complete_through < last, name
        assert "lacks later commits" in error.message
        assert refused(read, at=first, require_freshness=5).table == NAME
        assert read(at=first, require_freshness=timedelta(hours=1)) == 1
    served.lake.table(OTHER).upsert([{"id": 1, "v": 1}])
    served.clock.advance(60)
    assert served.lake.at(second, require_freshness="5s").scan(NAME).count() == 2, "no commit to this table is missing"
    both = f"SELECT (SELECT count(*) FROM {NAME}) + (SELECT count(*) FROM {OTHER}) AS n"
    with pytest.raises(NotFresh) as lacking:
        served.lake.sql(both, at=second, require_freshness="5s")
    assert lacking.value.table == OTHER


def test_every_feed_has_to_come_to_the_time_in_a_commit_that_the_cut_has(served: Served, table: ls.Table) -> None:
    lake = served.lake
    then = after(served)
    early, late = then - timedelta(minutes=5), then - timedelta(minutes=1)
    with lake.registers([FEED]) as feed, lake.registers([f"complete/{NAME}/second"]) as second:
        for name, read in reads(lake).items():
            assert "has said no time" in refused(read, require_complete_through=early).message, name
        with second.commit({f"complete/{NAME}/second": "soon"}):
            pass
        with feed.commit({FEED: early.isoformat()}) as commit:
            commit.upsert(NAME, [{"id": 1, "v": 1}])
        assert "'soon', which is no time" in refused(reads(lake)["scan"], require_complete_through=early).message
        with second.commit({f"complete/{NAME}/second": then.isoformat()}):
            pass
        before = lake.snapshot().token
        with feed.commit({FEED: late.isoformat()}) as commit:
            commit.upsert(NAME, [{"id": 2, "v": 2}])
        for name, read in reads(lake).items():
            assert read(require_complete_through=late) == 2, name
            error = refused(read, require_complete_through=then)
            assert (error.table, error.complete_through) == (NAME, late), name
            assert FEED in error.message
            assert read(at=before, require_complete_through=early) == 1, name
            error = refused(read, at=before, require_complete_through=late)
            assert error.complete_through == early, name
        served.lake.table(OTHER).scan(require_complete_through=then).count()
    lake.drop_registers([FEED, f"complete/{NAME}/second"])
    assert reads(lake)["scan"](require_complete_through=then) == 2, "a feed that is over holds nothing back"


def test_feeds_are_known_again_after_a_crash_and_a_checkpoint(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        lake = served.lake
        lake.create_table(NAME, SCHEMA, primary_key=["id"])
        then = after(served)
        with lake.registers([FEED]) as feed, feed.commit({FEED: then.isoformat()}):
            pass
        for how in ("journal", "checkpoint"):
            if how == "checkpoint":
                served.checkpoint()
            served.kill()
            served.start()
            read = served.lake.table(NAME).scan
            assert read(require_complete_through=then).count() == 0
            with patch.object(snapshot, "REQUIRE_WAIT_SECONDS", 0.0), pytest.raises(NotFresh):
                read(require_complete_through=then + timedelta(microseconds=1)).count()


def test_a_read_of_the_head_waits_for_what_is_missing(served: Served, table: ls.Table) -> None:
    lake, then = served.lake, after(served)
    with lake.registers([FEED]) as feed:

        def fed() -> None:
            time.sleep(0.05)
            with feed.commit({FEED: then.isoformat()}) as commit:
                commit.upsert(NAME, [{"id": 7, "v": 7}])

        thread = threading.Thread(target=fed)
        thread.start()
        assert lake.table(NAME).scan(require_complete_through=then).count() == 1
        thread.join()

        over = threading.Event()

        def aged() -> None:
            while not over.wait(0.05):
                served.clock.advance(7)

        thread = threading.Thread(target=aged)
        thread.start()
        with lake.within(8), pytest.raises(NotFresh):
            lake.table(NAME).scan(require_complete_through=then + timedelta(microseconds=1)).count()
        over.set()
        thread.join()


def test_a_snapshot_that_demands_freshness_means_its_own_time(served: Served, table: ls.Table) -> None:
    written(served, 1)
    served.clock.advance(5)
    cut = served.lake.snapshot(require_freshness="2s")
    written(served, 2)
    served.clock.advance(3_600)
    assert cut.scan(NAME).count() == 1
    with served.lake.registers([FEED]), pytest.raises(NotFresh):
        cut.scan(NAME).count()


def test_asyncio_requires_alike(served: Served, table: ls.Table) -> None:
    token = written(served, 1)
    then = after(served)
    written(served, 2)
    late = now(served)
    served.clock.advance(5)

    async def run() -> None:
        async with aio.connect(served.server.about["grpc"]) as lake:
            found = await lake.table(NAME)
            async with await lake.snapshot(require_complete_through=late) as cut:
                assert await cut.scan(NAME).count() == 2
            with pytest.raises(Invalid, match="closed"):
                await cut.scan(NAME).count()
            assert (await lake.at(token).sql(f"SELECT count(*) AS n FROM {NAME}")).to_pylist() == [{"n": 1}]
            assert await found.scan(at=token, require_complete_through=then).count() == 1
            for read in (
                found.scan(at=token, require_complete_through=late).count(),
                found.lookup([{"id": 1}], at=token, require_complete_through=late),
                lake.sql(f"SELECT * FROM {NAME}", at=token, require_complete_through=late),
                lake.at(token, require_complete_through=late).scan(NAME).count(),
            ):
                with pytest.raises(NotFresh) as error:
                    await read
                assert error.value.complete_through is not None

    asyncio.run(run())


@pytest.mark.parametrize("freshness", ["", "soon", 0, -1, float("nan"), float("inf"), True, [], timedelta(0), "0s"])
def test_a_freshness_is_a_span_above_zero(freshness: Any) -> None:
    with pytest.raises(Invalid, match="require_freshness"):
        Requirement.of(freshness, None)


@pytest.mark.parametrize("through", ["yesterday", 5, datetime(2026, 1, 1), "AAAA"])
def test_complete_through_is_a_time(through: Any) -> None:
    with pytest.raises(Invalid):
        Requirement.of(None, through)


def test_spans_and_times_as_users_write_them() -> None:
    assert Requirement.of(None, None) is None
    spans = [Requirement.of(each, None) for each in ("60s", "1m", 60, 60.0, timedelta(minutes=1))]
    assert {found.freshness_us for found in spans if found} == {60_000_000}
    asked = Requirement.of(0.5, "1970-01-01T00:00:02Z")
    assert asked == Requirement(2_000_000, 500_000)
    assert Requirement.of(None, "1969-01-01T00:00Z") == Requirement(1), "a time that is asked for is asked for"
    assert asked.as_of(9_000_000) == Requirement(8_500_000, 0)


def test_an_older_server_is_not_asked_what_it_would_not_judge() -> None:
    plan = rpc.METHODS["Plan"]
    rpc.check_known(plan, pb.PlanRequest(tables=["d.t"]), 4, "0.2")
    with pytest.raises(Invalid, match="require"):
        rpc.check_known(plan, pb.PlanRequest(tables=["d.t"], require=pb.Requirement(freshness_us=1)), 4, "0.2")


def test_the_figures_of_an_error_come_over_the_wire() -> None:
    error = NotFresh("x")
    error.table, error.complete_through = NAME, datetime(2026, 1, 1, 0, 0, 0, 1, UTC)
    found = error_of_fields(error_fields(error))
    assert isinstance(found, NotFresh)
    assert (found.table, found.complete_through, found.message) == (NAME, error.complete_through, "x")
    error.complete_through = None
    again = error_of_fields(error_fields(error))
    assert isinstance(again, NotFresh)
    assert again.complete_through is None


def test_names_of_feeds() -> None:
    assert feed_of("complete/a.b/c") == ("a.b", "c")
    assert feed_of("ann/complete/a.b/c/d") == ("a.b", "c/d")
    for name in (
        "complete/a.b",
        "complete/ab/c",
        "x/y/complete/a.b/c",
        "incomplete/a.b/c",
        "bridge/a/-/complete/0",
        "",
    ):
        assert feed_of(name) is None, name


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["open", "move", "drop", "again"]), st.integers(0, 1)), max_size=200))
def test_feeds_say_at_a_commit_what_they_had_said_by_then_or_less(steps: list[tuple[str, int]]) -> None:
    registers, names = Registers(), [FEED, f"ann/complete/{NAME}/b"]
    said: dict[str, list[tuple[int, str]]] = {}
    for lsn, (verb, number) in enumerate(steps, start=1):
        name = names[number]
        if verb == "open":
            registers.apply(lsn, RegistersOpen((name,), lsn, ""))
            said.setdefault(name, [])
        elif verb == "move" and name in said:
            registers.apply(lsn, RegistersMove((name,), (f"{lsn:04}",), 0))
            said[name].append((lsn, f"{lsn:04}"))
        elif verb == "drop" and name in said:
            registers.apply(lsn, RegistersDrop((name,)))
            del said[name]
        elif verb == "again":
            registers = Registers(registers.frozen())
            said = {each: values[-1:] for each, values in said.items()}
        for at in range(0, lsn + 1, 7):
            found = dict(registers.said(NAME, at))
            assert found.keys() == said.keys()
            for each, values in said.items():
                known = [value for moved, value in values if moved <= at]
                assert found[each] <= (known[-1] if known else "")
        newest = {each: values[-1][1] if values else "" for each, values in said.items()}
        assert dict(registers.said(NAME, lsn)) == newest
    assert all(len(values) <= FEED_VALUES_MAX for feeds in registers._feeds.values() for values in feeds.values())
