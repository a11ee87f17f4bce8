"""Times as positions: a read as of a time, a stream from a time on, and what a server cannot know any more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from lakestore.errors import Invalid, PositionExpired
from lakestore.model import times as moments
from lakestore.union.cut import Cut
from tests.support.kept import DAY, SCHEMA, Kept

NAME, OTHER = "t.log", "t.other"


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    running = Kept(tmp_path)
    for name in (NAME, OTHER):
        running.lake.create_table(name, SCHEMA, buckets=2, retention="1d")
    running.clock.advance(1)
    yield running
    running.close()


def now(kept: Kept) -> datetime:
    return moments.moment_of(kept.clock.us)


def values(kept: Kept, at: object, name: str = NAME) -> list[int]:
    return sorted(kept.lake.table(name).scan(at=at).to_arrow()["v"].to_pylist())  # type: ignore[arg-type]


def test_a_read_as_of_a_time_is_the_last_commit_at_or_before_it(kept: Kept) -> None:
    before = now(kept)
    times = []
    for i in range(5):
        kept.append(NAME, i)
        times.append(now(kept))
    kept.clock.advance(10)
    assert values(kept, before) == []
    for i, time in enumerate(times):
        assert values(kept, time) == list(range(i + 1))
        assert values(kept, time - timedelta(microseconds=1)) == list(range(i))
        assert values(kept, time + timedelta(milliseconds=500)) == list(range(i + 1))
        assert values(kept, time.replace(tzinfo=None)) == list(range(i + 1)), "without a zone it is UTC"
        assert values(kept, time.astimezone(timezone(timedelta(hours=5)))) == list(range(i + 1))
        assert values(kept, time.isoformat().replace("+00:00", "Z")) == list(range(i + 1))
        assert kept.lake.table(NAME).scan(at=time).count() == i + 1
        assert kept.lake.at(time).sql(f"SELECT count(*) AS n FROM {NAME}").to_pylist() == [{"n": i + 1}]


def test_two_commits_same_ms(kept: Kept) -> None:
    """Commits of one microsecond are before a time together or not at all."""
    table = kept.lake.table(NAME)
    for i in range(3):
        table.append([{"v": i}])
    time = now(kept)
    kept.append(NAME, 3)
    assert values(kept, time) == [0, 1, 2]
    assert values(kept, time - timedelta(microseconds=1)) == []
    assert kept.values(NAME, time.isoformat()) == [0, 1, 2, 3]
    assert kept.values(NAME, (time + timedelta(microseconds=1)).isoformat()) == [3]


def test_tables_of_one_query_are_read_at_one_cut(kept: Kept) -> None:
    times = []
    for i in range(4):
        with kept.lake.commit() as both:
            both.append(NAME, [{"v": i}])
            both.append(OTHER, [{"v": i}])
        times.append(now(kept))
        kept.append(OTHER if i % 2 else NAME, 100 + i)
        kept.clock.advance(1)
    for time in times:
        found = kept.lake.at(time).sql(
            f"SELECT (SELECT count(*) FROM {NAME} WHERE v < 100) = (SELECT count(*) FROM {OTHER} WHERE v < 100) AS same"
        )
        assert found.to_pylist() == [{"same": True}]


def test_the_future_is_refused_for_a_read_and_the_end_for_a_stream(kept: Kept) -> None:
    kept.append(NAME, 1)
    ahead = now(kept) + timedelta(hours=1)
    with pytest.raises(Invalid, match="ahead of the server's clock"):
        values(kept, ahead)
    with pytest.raises(Invalid, match="ahead of the server's clock"):
        values(kept, now(kept))
    assert kept.values(NAME, ahead.isoformat()) == []


def test_a_time_before_the_table_is_refused(kept: Kept) -> None:
    with pytest.raises(Invalid, match="did not exist at"):
        values(kept, datetime(2020, 1, 1, tzinfo=UTC))


def test_a_time_before_the_log_start_is_refused_and_never_less_than_asked(kept: Kept) -> None:
    kept.append(NAME, 0)
    first = now(kept)
    kept.append(NAME, 1)
    last = now(kept)
    kept.append(OTHER, 7)
    kept.tier(NAME)
    kept.clock.advance(2 * DAY)
    kept.run()
    assert sum(kept.state(NAME).starts()) == 2
    for time in (first, last - timedelta(microseconds=1)):
        with pytest.raises(PositionExpired, match="starts at 2026-"):
            values(kept, time)
        told = f"and {time.isoformat()} was asked for: choose a later time, or start at 'snapshot'"
        with pytest.raises(PositionExpired, match=re.escape(told)):
            kept.values(NAME, time.isoformat())
    with pytest.raises(PositionExpired):
        kept.values(NAME, last.isoformat())
    assert kept.values(NAME, (last + timedelta(microseconds=1)).isoformat()) == []
    assert values(kept, first, OTHER) == []
    assert kept.values(OTHER, first.isoformat()) == [7]


def test_a_stream_from_a_time_survives_a_restart(kept: Kept) -> None:
    kept.append(NAME, 0)
    time = now(kept)
    kept.append(NAME, 1)
    kept.restart()
    assert kept.values(NAME, time.isoformat()) == [0, 1]
    assert values(kept, time) == [0]


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "12:00"])
def test_what_is_no_position_is_refused_with_an_example(kept: Kept, text: str) -> None:
    with pytest.raises(Invalid, match="neither a position token nor a time"):
        kept.lake.at(text)
    with pytest.raises(Invalid, match="is not 'earliest', 'latest', 'snapshot', a token or a time"):
        kept.lake.table(NAME).changes(text)
    with pytest.raises(Invalid, match="is not 'now', a token or a time that has been"):
        kept.lake.table(NAME).changes(until=text)


def test_a_time_is_no_question_to_a_server_without_tables(tmp_path: Path) -> None:
    empty = Kept(tmp_path)
    asked = now(empty)
    empty.clock.advance(1)
    with Cut(empty.lake.transport, [], at=moments.position_text(asked)) as cut:
        assert not cut.plan.tables
    empty.close()
