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
from tests.support.served import DAY, SCHEMA, Served

NAME, OTHER = "t.log", "t.other"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    running = Served(tmp_path)
    for name in (NAME, OTHER):
        running.lake.create_table(name, SCHEMA, buckets=2, retention="1d")
    running.clock.advance(1)
    yield running
    running.close()


def now(served: Served) -> datetime:
    return moments.moment_of(served.clock.us)


def values(served: Served, at: object, name: str = NAME) -> list[int]:
    return sorted(served.lake.table(name).scan(at=at).to_arrow()["v"].to_pylist())  # type: ignore[arg-type]


def test_a_read_as_of_a_time_is_the_last_commit_at_or_before_it(served: Served) -> None:
    before = now(served)
    times = []
    for i in range(5):
        served.append(NAME, i)
        times.append(now(served))
    served.clock.advance(10)
    assert values(served, before) == []
    for i, time in enumerate(times):
        assert values(served, time) == list(range(i + 1))
        assert values(served, time - timedelta(microseconds=1)) == list(range(i))
        assert values(served, time + timedelta(milliseconds=500)) == list(range(i + 1))
        plain = time.replace(tzinfo=None).isoformat()
        assert values(served, plain) == list(range(i + 1)), "a text without a zone is UTC"
        assert values(served, time.astimezone(timezone(timedelta(hours=5)))) == list(range(i + 1))
        assert values(served, time.isoformat().replace("+00:00", "Z")) == list(range(i + 1))
        assert served.lake.table(NAME).scan(at=time).count() == i + 1
        assert served.lake.at(time).sql(f"SELECT count(*) AS n FROM {NAME}").to_pylist() == [{"n": i + 1}]


def test_two_commits_same_ms(served: Served) -> None:
    """Commits of one microsecond are before a time together or not at all."""
    table = served.lake.table(NAME)
    for i in range(3):
        table.append([{"v": i}])
    time = now(served)
    served.append(NAME, 3)
    assert values(served, time) == [0, 1, 2]
    assert values(served, time - timedelta(microseconds=1)) == []
    assert served.values(NAME, time.isoformat()) == [0, 1, 2, 3]
    assert served.values(NAME, (time + timedelta(microseconds=1)).isoformat()) == [3]


def test_tables_of_one_query_are_read_at_one_cut(served: Served) -> None:
    times = []
    for i in range(4):
        with served.lake.commit() as both:
            both.append(NAME, [{"v": i}])
            both.append(OTHER, [{"v": i}])
        times.append(now(served))
        served.append(OTHER if i % 2 else NAME, 100 + i)
        served.clock.advance(1)
    for time in times:
        found = served.lake.at(time).sql(
            f"SELECT (SELECT count(*) FROM {NAME} WHERE v < 100) = (SELECT count(*) FROM {OTHER} WHERE v < 100) AS same"
        )
        assert found.to_pylist() == [{"same": True}]


def test_the_future_is_refused_for_a_read_and_the_end_for_a_stream(served: Served) -> None:
    served.append(NAME, 1)
    ahead = now(served) + timedelta(hours=1)
    with pytest.raises(Invalid, match="ahead of the server's clock"):
        values(served, ahead)
    with pytest.raises(Invalid, match="ahead of the server's clock"):
        values(served, now(served))
    assert served.values(NAME, ahead.isoformat()) == []


def test_a_time_before_the_table_is_refused(served: Served) -> None:
    with pytest.raises(Invalid, match="did not exist at"):
        values(served, datetime(2020, 1, 1, tzinfo=UTC))


def test_changes_until_a_time_before_a_table_are_none_of_it(served: Served) -> None:
    served.append(NAME, 1)
    served.clock.advance(60)
    before, young = now(served), "t.young"
    served.clock.advance(60)
    served.lake.create_table(young, SCHEMA, buckets=2)
    served.append(NAME, 2)
    served.append(young, 3)

    def told(names: list[str], start: str) -> list[int]:
        stream = served.lake.changes(names, start, until=before.isoformat())
        return [value for batch in stream for value in batch.to_arrow().column("v").to_pylist()]

    for start in ("earliest", (before - timedelta(seconds=30)).isoformat()):
        assert told([young], start) == []
    assert told([NAME, young], "earliest") == [1]


def test_a_time_before_the_log_start_is_refused_and_never_less_than_asked(served: Served) -> None:
    served.append(NAME, 0)
    first = now(served)
    served.append(NAME, 1)
    last = now(served)
    served.append(OTHER, 7)
    served.tier(NAME)
    served.clock.advance(2 * DAY)
    served.run()
    assert sum(served.state(NAME).starts()) == 2
    for time in (first, last - timedelta(microseconds=1)):
        with pytest.raises(PositionExpired, match="starts at 2026-"):
            values(served, time)
        told = f"and {time.isoformat()} was asked for: choose a later time, or start at 'snapshot'"
        with pytest.raises(PositionExpired, match=re.escape(told)):
            served.values(NAME, time.isoformat())
    with pytest.raises(PositionExpired):
        served.values(NAME, last.isoformat())
    assert served.values(NAME, (last + timedelta(microseconds=1)).isoformat()) == []
    assert values(served, first, OTHER) == []
    assert served.values(OTHER, first.isoformat()) == [7]


def test_a_stream_from_a_time_survives_a_restart(served: Served) -> None:
    served.append(NAME, 0)
    time = now(served)
    served.append(NAME, 1)
    served.restart()
    assert served.values(NAME, time.isoformat()) == [0, 1]
    assert values(served, time) == [0]


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "12:00"])
def test_what_is_no_position_is_refused_with_an_example(served: Served, text: str) -> None:
    with pytest.raises(Invalid, match="neither a position token nor a time"):
        served.lake.at(text)
    with pytest.raises(Invalid, match="is not 'earliest', 'latest', 'snapshot', a token or a time"):
        served.lake.table(NAME).changes(text)
    with pytest.raises(Invalid, match="is not 'now', a token or a time that has been"):
        served.lake.table(NAME).changes(until=text)


def test_a_time_is_no_question_to_a_server_without_tables(tmp_path: Path) -> None:
    empty = Served(tmp_path)
    asked = now(empty)
    empty.clock.advance(1)
    with Cut(empty.lake.transport, [], at=moments.position_text(asked)) as cut:
        assert not cut.plan.tables
    empty.close()
