"""A clock in doubt deletes nothing, and a folder that a wrong clock has stamped finds its way back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.cli.main import run_command
from lakestore.errors import Invalid
from lakestore.limits import Limits
from lakestore.model.times import text_of
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.duties.retention import decide
from lakestore_server.operate.metrics import text as metrics_text
from tests.support.served import DAY, SCHEMA, Served
from tests.support.world.clock import START_US

YEAR = 365 * DAY
LOG, KEYED = "t.log", "t.keyed"
TTL_SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])


@pytest.fixture(name="served")
def _served(tmp_path: Path) -> Iterator[Served]:
    """A server whose clock has stood, with a log that keeps an hour and rows that live for thirty days."""
    served = Served(tmp_path / "data", believes_clock=False, subscription_idle_seconds=DAY)
    served.lake.create_table(LOG, SCHEMA, buckets=1, retention="1h")
    served.lake.create_table(KEYED, TTL_SCHEMA, primary_key=["id"], ttl={"column": "at", "after": "30d"})
    served.lake.table(KEYED).upsert([{"id": 1, "at": now(served)}])
    served.append(LOG, 1)
    served.tier(LOG)
    for batch in served.lake.table(LOG).changes("earliest", until="now", subscription="idle"):
        batch.ack()
    served.checkpoint()
    settle(served)
    yield served
    served.close()


def now(served: Served) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=served.clock.us)


def settle(served: Served) -> None:
    """The clock stands for long enough."""
    served.engine.time.read()
    served.clock.advance(301)
    assert served.engine.time.read().may_delete


def duties(served: Served) -> tuple[int, bool, list[int]]:
    """(rows that live by TTL, whether the subscription is there, the log), after a round of every duty."""
    served.run()
    served.server.expiry.run_once()
    return (
        served.lake.table(KEYED).scan().count(),
        "idle" in served.engine.view.subscriptions,
        served.values(LOG),
    )


def at_time(served: Served, us: int) -> list[int]:
    """The log as it was then."""
    stream = served.lake.table(LOG).changes("earliest", until=text_of(us))
    return [value for batch in stream for value in batch.to_arrow().column("v").to_pylist()]


def clock_of(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(served.lake.transport.status(pb.StatusRequest()).status)["clock"]
    return found


HELD = (1, True, [1])
GONE: tuple[int, bool, list[int]] = (0, False, [])


@pytest.mark.parametrize("starts", [False, True])
def test_a_clock_far_ahead_deletes_nothing_before_it_has_stood(served: Served, starts: bool) -> None:
    served.clock.jump(2 * YEAR)
    if starts:
        served.restart()
    assert duties(served) == HELD
    said = clock_of(served)
    assert (said["state"], said["offset_seconds"] > YEAR) == ("ahead", True)
    assert said["holds"] == ["row TTL", "retention by age", "idle subscriptions", "tombstones"]
    assert "`lakestore clock --accept`" in said["note"]
    assert b"lakestore_clock_confirmed 0.0" in metrics_text(served.server.sources)
    served.append(LOG, 2)
    assert served.engine.view.time_us < START_US + DAY * 1_000_000
    served.clock.advance(290)
    assert duties(served) == (1, True, [1, 2])
    served.clock.jump(-2 * YEAR)
    settle(served)
    assert duties(served) == (1, True, [1, 2]), "it never was two years later"


@pytest.mark.parametrize("accepts", [False, True])
def test_what_waited_goes_once_the_clock_is_believed(served: Served, accepts: bool) -> None:
    served.clock.jump(2 * YEAR)
    assert duties(served) == HELD
    if accepts:
        said = json.loads(served.lake.transport.accept_clock(pb.AcceptClockRequest()).clock)
        assert (said["state"], said["offset_seconds"], said["holds"]) == ("confirmed", 0.0, [])
    else:
        served.clock.advance(301)
    assert duties(served) == GONE
    served.append(LOG, 2)
    assert served.engine.view.time_us == served.clock.us


def test_after_a_start_rows_are_stamped_by_the_clock_at_once_and_deleted_by_it_later(served: Served) -> None:
    served.close()
    served.clock.advance(2 * DAY)
    served.start()
    served.append(LOG, 2)
    assert served.engine.view.time_us == served.clock.us
    assert duties(served) == (1, True, [1, 2])
    assert clock_of(served)["state"] == "started"
    decision = served.server.retention.decision(served.state(LOG).table.uuid)
    assert decision is not None
    assert decision.holders() == ["clock"]
    settle(served)
    assert duties(served) == (1, False, [2])


def test_retention_by_size_waits_for_no_clock(served: Served) -> None:
    served.lake.table(LOG).alter(retention={"bytes": 1})
    served.clock.jump(-YEAR)
    served.run()
    assert served.values(LOG) == []


def test_times_name_what_was_there_then_through_jumps_and_back(served: Served) -> None:
    right = []
    for n in range(2, 8):
        served.clock.advance(30)
        right.append((served.clock.us, [*range(1, n)]))
        served.clock.jump(10 * YEAR if n % 2 else 0)
        served.append(LOG, n)
        served.clock.jump(-10 * YEAR if n % 2 else 0)
    served.clock.advance(1)
    for at, values in right:
        assert at_time(served, at) == values
    with pytest.raises(Invalid, match="ahead of the server's clock"):
        at_time(served, served.clock.us + 60_000_000)


@pytest.fixture(name="ahead")
def _ahead(tmp_path: Path) -> Iterator[Served]:
    """A folder that release 0.2 left: a clock ten years ahead has stamped a commit and an acknowledgement."""
    served = Served(tmp_path / "data", subscription_idle_seconds=DAY)
    served.lake.create_table(LOG, SCHEMA, buckets=1, retention="1h")
    served.append(LOG, 1)
    served.clock.jump(10 * YEAR)
    served.append(LOG, 2)
    for batch in served.lake.table(LOG).changes("earliest", until="now", subscription="idle"):
        batch.ack()
    served.tier(LOG)
    served.checkpoint()
    served.clock.jump(-10 * YEAR)
    served.close()
    limits = Limits(clock_confirm_seconds=240)
    other = Served(tmp_path / "data", believes_clock=False, limits=limits, subscription_idle_seconds=DAY)
    other.clock.us = served.clock.us
    yield other
    other.close()


def test_a_folder_stamped_years_ahead_goes_on(ahead: Served) -> None:
    wrong = ahead.engine.view.time_us
    assert clock_of(ahead)["state"] == "behind"
    ahead.append(LOG, 3)
    assert ahead.engine.view.time_us - wrong < 10_000_000
    ahead.clock.advance(238)
    assert clock_of(ahead)["state"] == "behind"
    ahead.clock.advance(2)
    said = clock_of(ahead)
    assert said["state"] == "confirmed"
    assert said["stamps_ahead_seconds"] > 9 * YEAR
    assert "stamps are right again from 2036" in said["note"]
    before = ahead.engine.view.time_us
    times = []
    for n in range(4, 8):
        ahead.clock.advance(3_600)
        ahead.append(LOG, n)
        ahead.checkpoint()
        times.append(ahead.clock.us)
    assert ahead.engine.view.time_us == before + 4, "a microsecond a commit"
    ahead.tier(LOG)
    ahead.restart()
    assert clock_of(ahead)["state"] == "started", "the time of the last commit is known, beside its stamp"
    for at, n in zip(times, range(4, 8), strict=True):
        ahead.clock.advance(1)
        assert at_time(ahead, at) == [*range(1, n + 1)]
    settle(ahead)
    ahead.run()
    held = ahead.server.retention.decision(ahead.state(LOG).table.uuid)
    assert held is not None
    assert held.holders() == ["subscription idle"]
    view, now_us = ahead.engine.view, ahead.clock.us
    wanted = decide(ahead.state(LOG), now_us, [], view.marks).lsn
    ends = [int(chunk.index.lsn[-1]) for chunk in ahead.state(LOG).logs[0].chunks]
    assert wanted == ends[-2], "an hour is kept, as ages go by the time"
    assert "idle" in ahead.engine.view.subscriptions, "it began to be idle when the time was known"
    ahead.clock.advance(DAY + 60)
    ahead.run()
    ahead.run()
    assert ahead.values(LOG) == []
    assert "idle" not in ahead.engine.view.subscriptions
    ahead.clock.advance(10 * YEAR)
    settle(ahead)
    ahead.append(LOG, 8)
    assert ahead.engine.view.time_us == ahead.clock.us
    assert clock_of(ahead)["note"] == ""


def test_marks_are_found_again_by_recovery(ahead: Served) -> None:
    settle(ahead)
    ahead.append(LOG, 3)
    marks = ahead.engine.view.marks
    assert len(marks) == 1
    ahead.kill()
    ahead.start()
    assert ahead.engine.view.marks == marks
    ahead.restart()
    assert ahead.engine.view.marks == marks


def test_producers_are_not_forgotten_by_a_clock_in_doubt(tmp_path: Path) -> None:
    def known() -> int:
        return len(served.engine.loop.state.producers.frozen().known)

    with Served(tmp_path / "data", believes_clock=False) as served:
        served.lake.create_table(LOG, SCHEMA)
        served.append(LOG, 1)
        served.close()
        served.clock.jump(6 * DAY)
        served.start()
        served.append(LOG, 2)
        assert served.engine.view.time_us == served.clock.us
        assert known() == 2, "a retry of the first one may still come"
        served.kill()
        served.start()
        assert known() == 2
        settle(served)
        served.append(LOG, 3)
        assert known() == 1 + (served.engine.limits.unnamed_producer_seconds > 301)


def test_the_command_shows_the_clock_and_accepts_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Served(tmp_path / "data", believes_clock=False, ports=True) as served:
        served.clock.jump(-YEAR)
        at = ["--server", served.server.about["grpc"]]
        assert run_command(["clock", *at]) == 0
        said = capsys.readouterr().out
        assert "behind, for" in said
        assert "-31,536,000.000 s" in said
        assert "row TTL, retention by age" in said
        assert "believed once it has stood for 300 s" in said
        assert run_command(["clock", "--accept", *at]) == 0
        assert "confirmed, for" in capsys.readouterr().out
        assert run_command(["status", *at]) == 0
        assert "confirmed" in capsys.readouterr().out
