"""Large requests give way to small commits that somebody waits for: for a moment, and not for those that come later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore_server.commit import precedence
from lakestore_server.commit.precedence import Courtesy, Precedence
from lakestore_server.commit.producers import Writes
from lakestore_server.commit.request import Request
from tests.support.served import Served

LONG = 20.0


def begun(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_large_request_waits_until_the_small_commits_under_way_are_answered() -> None:
    between = Precedence()
    first, second = between.under_way(), between.under_way()
    first.__enter__()
    second.__enter__()
    waiting = begun(lambda: between.answered(LONG))
    second.__exit__(None, None, None)
    waiting.join(0.1)
    assert waiting.is_alive(), "the first one is not answered yet"
    later = between.under_way()
    later.__enter__()
    first.__exit__(None, None, None)
    waiting.join(LONG)
    assert not waiting.is_alive(), "one that came later does not count"


def test_nobody_waits_where_no_small_commit_is_under_way() -> None:
    between = Precedence()
    with between.under_way():
        pass
    began = time.monotonic()
    between.answered(LONG)
    assert time.monotonic() - began < LONG / 2


def test_a_small_commit_that_fails_is_over() -> None:
    between = Precedence()
    with suppress(InterruptedError), between.under_way(), between.coming():
        assert between.is_coming
        raise InterruptedError
    assert not between.is_coming
    between.answered(LONG)


def test_requests_that_are_taken_together_wait_a_limited_time_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precedence, "GIVEN_SECONDS_MAX", 0.2)
    between = Precedence()
    with between.under_way():
        courtesy, began = Courtesy(between), time.monotonic()
        for _ in range(100):
            courtesy.give_way()
        took = time.monotonic() - began
    assert 0.2 <= took < LONG / 2


def test_large_commits_give_way_and_small_ones_are_seen_before_they_are_queued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, seen = list[float](), list[tuple[bool, int]]()
    answered = Precedence.answered

    def noted_wait(way: Precedence, seconds: float) -> None:
        given.append(seconds)
        answered(way, seconds)

    monkeypatch.setattr(Precedence, "answered", noted_wait)
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    with Served(tmp_path / "data") as served:
        way, submit = served.engine.loop.precedence, Writes._submit

        def noted(writes: Writes, sent: object) -> Request:
            before = way.is_coming, len(way._under_way)
            queued: Request = submit(writes, sent)  # type: ignore[arg-type]
            seen.extend([before, (way.is_coming, len(way._under_way))])
            return queued

        monkeypatch.setattr(Writes, "_submit", noted)
        table = served.lake.create_table("d.t", schema, primary_key=["id"])
        table.upsert([{"id": 1, "v": "small"}])
        assert (given, seen) == ([], [(True, 1), (True, 1)])
        table.upsert(pa.table({"id": range(2_000), "v": ["large" * 20] * 2_000}, schema))
        assert len(given) == 2, "before it is decoded, and before its keys are looked up"
        assert seen[2:] == [(False, 0), (False, 0)]
        assert not way.is_coming
        assert not way._under_way
