"""Row TTL: exactly the rows whose time is over go, by ordinary deletes, whatever happens beside it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.errors import Unavailable
from lakestore.evolution import RenameColumn, SetOptions
from lakestore.limits import Limits
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.duties import expiry
from lakestore_server.duties.expiry import ExpiryBounds
from lakestore_server.host import worker
from lakestore_server.operate.metrics import text as metrics_text
from lakestore_server.read import exact_deletes, plan
from lakestore_server.state.view import TableState
from tests.support.log_start import compact, move_log_start
from tests.support.served import DAY, Served
from tests.support.waiting import until
from tests.support.world.clock import START_US

HOUR = 3600
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("v", pa.string())])
TTL = {"column": "at", "after": "1h"}
NAME = "t.k"


@pytest.fixture(name="served")
def _served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path / "data", expiry_check_seconds=DAY)
    yield served
    served.close()


def moment(served: Served, seconds: float = 0) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=served.clock.us + int(seconds * 1e6))


def put(served: Served, *rows: tuple[int, datetime | None], v: str = "x") -> None:
    served.lake.table(NAME).upsert([{"id": i, "at": at, "v": v} for i, at in rows])


def ids(served: Served) -> list[int]:
    """By scan, look-up and fold of the log, which say the same."""
    found = sorted(served.lake.table(NAME).scan().to_arrow().column("id").to_pylist())
    folded: dict[int, Any] = {}
    for batch in served.lake.table(NAME).changes("earliest", until="now", before_images=True):
        for row in batch.to_arrow().to_pylist():
            if row["__change"] in ("-D", "-U"):
                assert folded.pop(row["id"]) == (row["at"], row["v"]), "a delete or an update names the row before it"
            else:
                folded[row["id"]] = row["at"], row["v"]
    assert sorted(folded) == found
    assert sorted(served.lake.table(NAME).lookup([{"id": i} for i in range(-1, 50)]).column("id").to_pylist()) == found
    return found


def made(served: Served, **options: Any) -> None:
    served.lake.create_table(NAME, SCHEMA, primary_key=["id"], **{"buckets": 2, "ttl": TTL, **options})


def test_rows_go_at_their_moment_and_not_before(served: Served) -> None:
    made(served)
    put(
        served,
        (1, moment(served, -HOUR - 1)),
        (2, moment(served, -HOUR)),
        (3, moment(served, -HOUR) + timedelta(0, 0, 1)),
    )
    put(served, (4, moment(served, 100 * DAY)), (5, None), (6, datetime.min.replace(tzinfo=UTC)))
    put(served, (7, datetime.max.replace(tzinfo=UTC)))
    served.server.expiry.run_once()
    assert ids(served) == [3, 4, 5, 7]
    served.clock.us += 1
    served.server.expiry.run_once()
    assert ids(served) == [4, 5, 7]
    served.clock.advance(101 * DAY)
    served.server.expiry.run_once()
    assert ids(served) == [5, 7]


@pytest.mark.parametrize("seconds", [1, 10_000 * 366 * DAY])
@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.date32()])
def test_no_time_overflows(served: Served, kind: pa.DataType, seconds: int) -> None:
    edges = {1: pa.array([-(2**31), 0, 2**31 - 1], pa.int32()), 0: pa.array([-(2**63), 0, 2**63 - 1], pa.int64())}
    times = edges[int(pa.types.is_date(kind))].view(kind)
    schema = pa.schema([("id", pa.int64()), ("at", kind)])
    table = served.lake.create_table(NAME, schema, primary_key=["id"], ttl={"column": "at", "after": seconds})
    table.upsert(pa.table([pa.array([1, 2, 3]), times], schema=schema))
    served.server.expiry.run_once()
    left = [1, 2, 3] if seconds > 1 else [3]
    if seconds > 1:
        left = [2, 3]  # the first one lies before the whole span
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == left
    served.lake.snapshot()  # asks for the status, which says when the next one is due


def test_a_date_is_its_midnight_in_utc(served: Served) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    served.clock.us = START_US // (DAY * 1_000_000) * DAY * 1_000_000
    table = served.lake.create_table(NAME, schema, primary_key=["id"], ttl={"column": "day", "after": "2d"})
    today = date(1970, 1, 1) + timedelta(days=served.clock.us // (DAY * 1_000_000))
    table.upsert([{"id": days, "day": today - timedelta(days=days)} for days in range(4)])
    served.server.expiry.run_once()
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == [0, 1]
    for seconds, left in [(DAY - 1, [0, 1]), (1, [0])]:
        served.clock.advance(seconds)
        served.server.expiry.run_once()
        assert sorted(table.scan().to_arrow().column("id").to_pylist()) == left


def test_a_row_that_is_refreshed_between_finding_and_commit_stays(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(served)
    put(served, *((i, moment(served, -DAY)) for i in range(4)))
    engine = served.engine
    submit = engine.submit

    def late(work: Any) -> None:
        monkeypatch.setattr(engine, "submit", submit)
        put(served, (1, moment(served)), (2, moment(served, -2 * DAY)), v="newer")
        served.lake.table(NAME).delete([{"id": 3}])
        submit(work)

    monkeypatch.setattr(engine, "submit", late)
    served.server.expiry.run_once()
    assert 1 in ids(served)
    served.server.expiry.run_once()
    assert ids(served) == [1], "what was put in place of a row is judged by its own time"
    assert served.server.expiry.figures(served.state(NAME)) == expiry.Figures(2, served.clock.us + HOUR * 1_000_000)


def test_only_what_is_due_or_new_is_read_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    made(served, buckets=1)
    put(served, *((i, moment(served, i - HOUR)) for i in range(5)))
    looked: list[int] = []
    lookup = plan.of_keys

    def watched(engine: Engine, name: str, encode: Callable[[Any], Any], **said: Any) -> Any:
        found = lookup(engine, name, encode, **said)
        looked.append(len(found[1]))
        return found

    monkeypatch.setattr(plan, "of_keys", watched)
    for _ in range(3):
        served.server.expiry.run_once()
    assert looked == [1]
    served.checkpoint()
    served.clock.advance(2)
    served.server.expiry.run_once()
    assert looked == [1, 2], "a dead row is not asked for again, nor is one whose time has not come"


def test_many_rows_go_in_bounded_commits_and_blocks_are_told_apart(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_deletes, "BATCH_ROWS", 1000)
    made(served)
    count = 20_000
    due_ids = np.arange(count) % 5 == 0
    times = np.where(due_ids, served.clock.us - 2 * HOUR * 1_000_000, served.clock.us)
    at = pa.array(times).cast(pa.timestamp("us", tz="UTC"))
    served.lake.table(NAME).upsert(
        pa.table([pa.array(np.arange(count)), at, pa.nulls(count, pa.string())], SCHEMA.names)
    )
    served.checkpoint()
    before = served.engine.view.lsn
    served.server.expiry.run_once()
    assert 4 <= served.engine.view.lsn - before <= 6, "two or three of each bucket"
    assert served.lake.table(NAME).scan().count() == count * 4 // 5
    served.clock.advance(HOUR)
    served.server.expiry.run_once()
    assert served.lake.table(NAME).scan().count() == 0
    assert served.state(NAME).logs[0].at_head.live_sum == 0


def test_large_rows_go_in_commits_that_readers_can_be_shown(tmp_path: Path) -> None:
    served = Served(tmp_path / "data", expiry_check_seconds=DAY, limits=Limits(read_batch_bytes=1 << 20))
    made(served, buckets=1)
    for i in range(25):
        put(served, (i, moment(served, -DAY)), v="x" * 100_000)
    served.checkpoint()
    before = served.engine.totals.frames
    served.server.expiry.run_once()
    assert served.engine.totals.frames - before == 3
    assert ids(served) == []
    served.close()


def test_after_a_restart_everything_is_looked_at_once(served: Served) -> None:
    made(served)
    put(served, (1, moment(served, -HOUR + 5)), (2, moment(served, -HOUR + 50)))
    served.server.expiry.run_once()
    served.restart()
    served.clock.advance(10)
    served.server.expiry.run_once()
    assert ids(served) == [2]
    served.kill()
    served.start()
    assert ids(served) == [2]
    served.clock.advance(50)
    served.server.expiry.run_once()
    assert ids(served) == []


def test_a_clock_in_doubt_lets_no_row_expire(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Served(tmp_path / "data", believes_clock=False) as served:
        made(served)
        put(served, (1, moment(served)))
        served.clock.jump(5 * HOUR)
        with caplog.at_level(logging.WARNING):
            served.server.expiry.run_once()
        assert "row TTL, retention by age and the end of idle names wait" in caplog.text
        served.clock.advance(299)
        served.server.expiry.run_once()
        assert ids(served) == [1]
        served.clock.advance(1)
        served.server.expiry.run_once()
        assert ids(served) == []


def test_a_ttl_comes_goes_and_follows_its_column(served: Served) -> None:
    made(served, ttl=None)
    put(served, *((i, moment(served, -i * HOUR)) for i in range(5)))
    served.checkpoint()
    served.server.expiry.run_once()
    assert ids(served) == [0, 1, 2, 3, 4]
    table = served.lake.table(NAME)
    table.alter(ttl={"column": "at", "after": "3h"})
    served.server.expiry.run_once()
    assert ids(served) == [0, 1, 2]
    table.alter(RenameColumn("at", "seen"), SetOptions(ttl={"column": "seen", "after": "2h"}))
    served.server.expiry.run_once()
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == [0, 1]
    table.alter(ttl=None)
    served.clock.advance(DAY)
    served.server.expiry.run_once()
    assert served.server.expiry.figures(served.state(NAME)) is None
    assert table.scan().count() == 2


def test_a_column_younger_than_the_rows_has_their_initial_value(served: Served) -> None:
    table = served.lake.create_table(
        NAME, SCHEMA, primary_key=["id"], lake={"format_version": 3}, ttl={"column": "at", "after": "1h"}
    )
    table.upsert([{"id": 1, "at": None, "v": "x"}])
    table.delete([{"id": 1}])
    table.upsert([{"id": 2, "at": None, "v": "x"}])
    since = pa.field("since", pa.timestamp("us"), nullable=False)
    table.alter(add={"since": since}, default={"since": datetime(2020, 1, 1)})
    served.server.expiry.run_once()
    assert table.scan().count() == 1
    table.alter(ttl={"column": "since", "after": "1h"})
    served.server.expiry.run_once()
    assert table.scan().count() == 0


def test_rules_for_deletes_have_no_say(served: Served) -> None:
    made(served, deletes="ignore")
    put(served, (1, moment(served, -DAY)))
    served.server.expiry.run_once()
    assert ids(served) == []


def test_it_waits_while_nothing_may_be_written(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    made(served)
    put(served, (1, moment(served, -DAY)))
    engine = served.engine
    with monkeypatch.context() as patched:
        patched.setattr(engine, "is_disk_full", lambda: True)
        served.server.expiry.run_once()
        assert ids(served) == [1]
    with monkeypatch.context() as patched:
        patched.setattr(engine, "_draining", True)
        served.server.expiry.run_once()
    assert ids(served) == [1]
    with monkeypatch.context() as patched:

        def rebuilding(*_: object) -> None:
            raise Unavailable("the index is being rebuilt")

        patched.setattr(engine.index, "begin", rebuilding)
        served.server.expiry.run_once()
    assert ids(served) == [1]
    served.server.expiry.run_once()
    assert ids(served) == []


def test_a_table_that_is_dropped_or_altered_meanwhile_is_left_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = served.engine
    submit = engine.submit

    def before(change: Callable[[], object]) -> Callable[[Any], None]:
        def late(work: Any) -> None:
            monkeypatch.setattr(engine, "submit", submit)
            change()
            submit(work)

        return late

    made(served)
    put(served, (1, moment(served, -DAY)))
    monkeypatch.setattr(engine, "submit", before(lambda: served.lake.table(NAME).alter(ttl=None)))
    served.server.expiry.run_once()
    assert ids(served) == [1]
    served.lake.table(NAME).alter(ttl=TTL)
    monkeypatch.setattr(engine, "submit", before(lambda: served.lake.drop_table(NAME)))
    served.server.expiry.run_once()
    made(served)
    served.server.expiry.run_once()
    assert ids(served) == []


def test_status_and_metrics_say_what_expired_and_what_is_next(served: Served) -> None:
    made(served)
    put(served, (1, moment(served, -DAY)), (2, moment(served, -60)))
    served.server.expiry.run_once()
    [about] = json.loads(served.lake.transport.status(pb.StatusRequest()).status)["tables"]
    assert (about["ttl"], about["expired"]) == ("1h after at", 1)
    assert about["next_expiry_us"] == served.clock.us + (HOUR - 60) * 1_000_000
    served.clock.advance(HOUR)
    shown = metrics_text(served.server.sources).decode()
    assert f'lakestore_rows_expired_total{{table="{NAME}"}} 1.0' in shown
    assert f'lakestore_expiry_overdue_seconds{{table="{NAME}"}} 60.0' in shown


def test_figures_can_be_told_while_a_round_forgets_the_last_row() -> None:
    looks: list[int] = []

    class Bounds(ExpiryBounds):
        """Empty from the second look on."""

        def __getattribute__(self, name: str) -> Any:
            if name == "bounds":
                looks.append(1)
                return np.array([5] if len(looks) == 1 else [], dtype=np.int64)
            return super().__getattribute__(name)

    assert Bounds().next == 5
    assert looks == [1]


def test_the_duty_runs_by_itself(tmp_path: Path) -> None:
    served = Served(tmp_path / "data", expiry_check_seconds=0.1, limits=Limits())
    try:
        made(served)
        put(served, (1, moment(served, -DAY)))
        until(lambda: served.lake.table(NAME).scan().count() == 0, "the row to expire")
    finally:
        served.close()


def test_no_failure_ends_the_duty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    tried = expiry.Expiry._tried

    def failing(self: expiry.Expiry, state: TableState, now_us: int) -> bool:
        rounds.append(1)
        if len(rounds) == 1:
            raise pa.ArrowInvalid("a test says so")
        return tried(self, state, now_us)

    monkeypatch.setattr(expiry.Expiry, "_tried", failing)
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.01)
    served = Served(tmp_path / "data", expiry_check_seconds=0.05)
    made(served)
    put(served, (1, moment(served, -DAY)))
    until(lambda: not len(served.lake.table(NAME).lookup([{"id": 1}])), "the row to expire")
    assert ids(served) == []
    assert len(rounds) > 1
    served.close()


def test_what_lives_below_the_log_start_expires_too(served: Served) -> None:
    made(served)
    put(served, *((i, moment(served, -HOUR + i * 10)) for i in range(1, 8)))
    put(served, (1, moment(served)), (2, moment(served)))
    served.server.expiry.run_once()
    move_log_start(served.engine, NAME)
    compact(served.server)
    served.restart()
    served.clock.advance(45)
    served.server.expiry.run_once()
    found = served.lake.table(NAME).lookup([{"id": i} for i in range(10)])
    assert found.column("id").to_pylist() == [1, 2, 5, 6, 7]
    assert verify(served.lake.transport, NAME).problems() == []


def test_keys_of_any_length_expire(served: Served) -> None:
    schema = pa.schema([("id", pa.string()), ("n", pa.int32()), ("at", pa.timestamp("us"))])
    table = served.lake.create_table(NAME, schema, primary_key=["id", "n"], ttl={"column": "at", "after": "1h"})
    names = ["", "a\0", "b" * 700, "b" * 699 + "c"]
    now = moment(served).replace(tzinfo=None)
    table.upsert([{"id": name, "n": n, "at": now - timedelta(hours=2 * (n < 0))} for name in names for n in (-1, 1)])
    served.server.expiry.run_once()
    assert table.lookup([{"id": name, "n": n} for name in names for n in (-1, 1)]).column("n").to_pylist() == [1] * 4
    served.kill()
    served.start()
    assert verify(served.lake.transport, NAME).problems() == []
    assert served.lake.table(NAME).scan().count() == 4


@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(-5, 5)), unique_by=lambda row: row[0]), st.data())
def test_bounds_find_every_block_that_may_have_something_due(rows: list[tuple[int, int]], data: st.DataObject) -> None:
    """Against the rows themselves: counted in in parts, settled at rising and falling limits."""
    rows.sort()
    part, at = ExpiryBounds(), 0
    while at < len(rows):
        count = data.draw(st.integers(1, len(rows) - at))
        part.add(*columns_of(rows[at : at + count]))
        at += count
        limit = data.draw(st.integers(-6, 6))
        left = [row for row in rows[:at] if row[1] > limit]
        due_blocks = {offset // expiry.BLOCK_ROWS for offset, time in rows[:at] if time <= limit}
        for first, last in expiry.runs(part.until(limit), 3):
            assert last - first < 3
            due_blocks -= set(range(first, last + 1))
            part.settle(first, last, *columns_of([r for r in left if first <= r[0] // expiry.BLOCK_ROWS <= last]))
        rows[:at], at = left, len(left)
        assert not due_blocks
        assert part.next == min((time for _, time in left), default=None) or part.next is not None
        assert not len(part.until(limit))


def columns_of(rows: list[tuple[int, int]]) -> tuple[expiry.Ints, expiry.Ints]:
    table = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def test_blocks_whose_rows_are_gone_are_forgotten(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "BLOCK_ROWS", 2)
    monkeypatch.setattr(expiry, "BLOCK_ROWS", 2)
    monkeypatch.setattr(expiry, "SPARE_BLOCKS", 2)
    made(served, buckets=1)
    for _ in range(20):
        put(served, *((i, moment(served)) for i in range(2)))
        served.clock.advance(1)
        served.server.expiry.run_once()
    [part] = served.server.expiry._due.values()
    assert len(part.blocks) == 20
    move_log_start(served.engine, NAME)
    compact(served.server)
    put(served, (9, moment(served)))
    served.server.expiry.run_once()
    [part] = served.server.expiry._due.values()
    assert len(part.blocks) <= 6
    served.clock.advance(HOUR)
    served.server.expiry.run_once()
    assert served.lake.table(NAME).scan().count() == 0
