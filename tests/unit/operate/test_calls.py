"""Calls and the log: a drain waits for what runs and refuses the rest; refusals are counted; secrets never show."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from lakestore.errors import Invalid, Unavailable
from lakestore.model.settings import option
from lakestore.wire import rpc
from lakestore_server.host import event_log
from lakestore_server.host.histogram import Histogram
from lakestore_server.operate.calls import Calls
from tests.support.world.clock import HandClock

METHODS = rpc.METHODS


@dataclass(frozen=True)
class LogSettings:
    """What the log asks for."""

    log_format: str = option("json")
    """Format."""
    log_level: str = option("info")
    """Level."""
    key: str = option("hunter2", secret=True)
    """Secret."""


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What is logged, as JSON lines."""
    root, ours = logging.root, logging.getLogger("lakestore")
    before = root.handlers[:], root.level, ours.level
    said = io.StringIO()
    event_log.configure(LogSettings(), said)
    yield said
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def events(said: io.StringIO) -> list[dict[str, Any]]:
    """The lines, read back."""
    return [json.loads(line) for line in said.getvalue().splitlines()]


def test_a_drain_waits_for_what_runs_and_refuses_what_comes() -> None:
    calls = Calls(HandClock())
    entered, go_on = threading.Event(), threading.Event()

    def slow(_: object) -> str:
        entered.set()
        assert go_on.wait(60)
        return "answered"

    verb = calls.watched(METHODS["Lookup"], slow)
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(verb(None)))
    thread.start()
    assert entered.wait(60)
    assert not calls.drain(0.01)
    with pytest.raises(Unavailable, match="try again"):
        verb(None)
    assert calls.running() == {"Lookup": 1}
    go_on.set()
    assert calls.drain(60)
    thread.join()
    assert answers == ["answered"]


def test_a_change_stream_ends_with_a_reason_to_try_again() -> None:
    calls = Calls(HandClock())
    woken = threading.Event()

    class Somebody:
        """Who listens."""

        def is_active(self) -> bool:
            """Always."""
            return True

        def add_callback(self, _: Callable[[], None], /) -> bool:
            """Never called back."""
            return True

    def follow(_: object, listener: Any) -> Iterator[int]:
        assert listener.add_callback(woken.set)
        yield 1
        assert woken.wait(60), "a stream that waits is woken"
        while listener.is_active():
            yield 2

    stream = calls.watched(METHODS["Changes"], follow)(None, Somebody())
    assert next(stream) == 1
    assert not calls.drain(0.0)
    assert woken.is_set()
    with pytest.raises(Unavailable, match="try again"):
        next(stream)
    assert calls.drain(0.0)


def test_a_stream_that_its_reader_leaves_is_no_refusal() -> None:
    calls = Calls(HandClock())
    stream = calls.watched(METHODS["Fetch"], lambda _: iter([1, 2, 3]))(None)
    next(stream)
    stream.close()
    assert calls.running() == {}
    assert list(calls.seconds()) == [("Fetch", "cancelled")]


def test_refusals_are_counted_and_logged_now_and_then(lines: io.StringIO) -> None:
    clock = HandClock()
    calls = Calls(clock)

    def refuse(_: object) -> None:
        raise Invalid("column x is wrong")

    verb = calls.watched(METHODS["Commit"], refuse)
    for _ in range(100):
        with pytest.raises(Invalid):
            verb(None)
        clock.advance(1)
    said = events(lines)
    assert [line["fields"]["count"] for line in said] == [1, 60]
    assert said[0]["fields"] == {"method": "Commit", "code": "Invalid", "count": 1, "newest": "column x is wrong"}
    assert calls.seconds()["Commit", "Invalid"].count == 100


def test_a_slow_call_is_logged(lines: io.StringIO) -> None:
    clock = HandClock()
    calls = Calls(clock, slow_seconds=1.0)

    def wait(seconds: float) -> None:
        clock.advance(seconds)

    verb = calls.watched(METHODS["Lookup"], wait)
    verb(0.5)
    verb(2.5)
    (line,) = events(lines)
    assert (line["event"], line["level"]) == ("slow call", "warning")
    assert line["fields"] == {"method": "Lookup", "code": "ok", "seconds": 2.5}


def test_every_line_has_one_schema_and_no_secret(lines: io.StringIO) -> None:
    log = logging.getLogger("lakestore.test")
    event_log.event(log, logging.INFO, "started", key="hunter2", number=1)
    log.warning("the key hunter2 is %s", "wrong")
    log.debug("not said")
    try:
        raise ValueError("hunter2")
    except ValueError:
        log.exception("a call failed")
    said = events(lines)
    assert "hunter2" not in lines.getvalue()
    assert [line["event"] for line in said] == ["started", "the key ******** is wrong", "a call failed"]
    assert all(list(line) == ["time", "level", "logger", "event", "fields"] for line in said)
    assert "ValueError" in said[2]["fields"]["traceback"]


def test_a_line_of_text_stays_one_line() -> None:
    record = logging.LogRecord("lakestore.x", logging.INFO, "", 0, "a\nb", None, None)
    record.lakestore_fields = {"what": "two words", "n": 1}
    line = event_log.Formatter(as_json=False).format(record)
    assert line.endswith('info x a b what="two words" n=1')


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.add(value)
    assert histogram.buckets() == [("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0)]
    assert (histogram.count, histogram.total) == (4, 12.0)
