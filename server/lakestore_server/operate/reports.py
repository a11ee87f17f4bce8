"""Reports: the words of processes beside the server about themselves, such as bridges. Kept in memory, for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from lakestore.errors import Exhausted, Invalid
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.reporters import thing_of
from lakestore_server.host.clock import Clock

KEPT_SECONDS = 60.0
SPOKEN_SECONDS = 15.0
"""Silence after which a process may have ended, so that what it lacked is another's: they report every five seconds."""
REPORTS_MAX, NAME_CHARS_MAX, DETAIL_BYTES_MAX = 1_000, 1_024, 16 << 10


@dataclass(frozen=True, slots=True)
class Report:
    """The newest words of one process; counts are since it began."""

    name: str
    records: int
    bytes: int
    rejected: int
    lag: int
    """Records that it has not come to."""
    detail: Any
    """JSON of its own."""

    def as_dict(self, seconds: float) -> dict[str, Any]:
        """The JSON form, with its age."""
        return {**asdict(self), "reported_seconds": round(seconds, 1)}


class Reports:
    """All of them. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._kept: dict[str, tuple[float, Report]] = {}

    def report(self, request: pb.ReportRequest) -> pb.ReportAnswer:
        """Keep a report in place of the one before; `Invalid` for one that is no JSON or too long."""
        if not request.producer or len(request.producer) > NAME_CHARS_MAX:
            raise Invalid(f"a report has a name of 1 to {NAME_CHARS_MAX} characters")
        if len(request.detail) > DETAIL_BYTES_MAX:
            raise Invalid(f"a report's detail has {DETAIL_BYTES_MAX} characters at most, not {len(request.detail)}")
        try:
            detail = orjson.loads(request.detail or "null")
        except orjson.JSONDecodeError as error:
            raise Invalid(f"a report's detail is JSON: {error}") from error
        made = Report(request.producer, request.records, request.bytes, request.rejected, request.lag, detail)
        with self._lock:
            self._forget()
            if len(self._kept) >= REPORTS_MAX and made.name not in self._kept:
                raise Exhausted(f"{REPORTS_MAX} processes report already: come again when some have ended")
            self._kept[made.name] = (self._clock.monotonic(), made)
        return pb.ReportAnswer()

    def now(self) -> Sequence[tuple[float, Report]]:
        """The ages in seconds of the reports that are kept, and the reports, by name."""
        with self._lock:
            self._forget()
            now = self._clock.monotonic()
            return [(now - at, report) for _, (at, report) in sorted(self._kept.items())]

    def _forget(self) -> None:
        oldest = self._clock.monotonic() - KEPT_SECONDS
        self._kept = {name: held for name, held in self._kept.items() if held[0] >= oldest}


def lags(reports: Iterable[tuple[float, Report]]) -> dict[str, int]:
    """Records that each thing at work has not come to, over its processes that have spoken lately, or its last one."""
    spoken: dict[str, list[tuple[float, int]]] = {}
    for age, report in reports:
        spoken.setdefault(thing_of(report.name), []).append((age, report.lag))
    return {name: _lag(each) for name, each in spoken.items()}


def _lag(spoken: Sequence[tuple[float, int]]) -> int:
    lately = [lag for age, lag in spoken if age <= SPOKEN_SECONDS]
    return sum(lately) if lately else min(spoken)[1]
