"""Reports that other processes, for example bridges, send about themselves. Kept in memory for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from lakestore.errors import Exhausted, Invalid
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.tracing import DETAIL, detail_of, thing_of
from lakestore_server.host.clock import Clock
from lakestore_server.host.quota import share_of

KEPT_SECONDS = 60.0
SPOKEN_SECONDS = 15.0
"""A process that is silent for this long may be dead; its lag is counted to another process. Processes report every 5
s."""
REPORTS_MAX, BYTES_MAX = 1_000, 4 << 20
"""The most reports, and the most bytes of their names and details. One principal may use a share of both."""
NAME_BYTES_MAX, DETAIL_BYTES_MAX = 1_024, 16 << 10


@dataclass(frozen=True, slots=True)
class Report:
    """The newest report of one process; counts begin at its start."""

    name: str
    records: int
    bytes: int
    rejected: int
    lag: int
    """Records that the process has not read yet."""
    detail: dict[str, Any]
    """Fields with the types of `reporters.DETAIL`."""

    def as_dict(self, seconds: float) -> dict[str, Any]:
        """The JSON form; `seconds` is the report's age."""
        return {**asdict(self), "reported_seconds": round(seconds, 1)}


@dataclass(frozen=True, slots=True)
class _Entry:
    at: float
    owner: str
    bytes: int
    report: Report


class Reports:
    """The newest report of each process. Thread-safe."""

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._share = share_of(REPORTS_MAX, limits), share_of(BYTES_MAX, limits)
        self._kept: dict[str, _Entry] = {}

    def report(self, request: pb.ReportRequest) -> pb.ReportAnswer:
        """Replace the process's last report; `Invalid` for a malformed one, `Exhausted` beyond a limit or share."""
        if not 1 <= len(request.producer.encode()) <= NAME_BYTES_MAX:
            raise Invalid(f"a report has a name of 1 to {NAME_BYTES_MAX} bytes")
        detail = _detail(request.detail)
        made = Report(request.producer, request.records, request.bytes, request.rejected, request.lag, detail)
        size = len(orjson.dumps([made.name, detail]))
        with self._lock:
            self._forget()
            self._admit(made.name, request.owner, size)
            self._kept[made.name] = _Entry(self._clock.monotonic(), request.owner, size, made)
        return pb.ReportAnswer()

    def _admit(self, name: str, owner: str, size: int) -> None:
        others = [entry for kept_name, entry in self._kept.items() if kept_name != name]
        own = [entry for entry in others if entry.owner == owner]
        if owner and (len(own) >= self._share[0] or sum(each.bytes for each in own) + size > self._share[1]):
            raise Exhausted(
                f"the processes of {owner} use one principal's share of the reports: try again when some have ended"
            )
        if len(others) >= REPORTS_MAX:
            raise Exhausted(f"{REPORTS_MAX} processes report already: try again when some have ended")
        if sum(each.bytes for each in others) + size > BYTES_MAX:
            raise Exhausted(f"reports take {BYTES_MAX} bytes already: try again when some processes have ended")

    def now(self) -> Sequence[tuple[float, Report]]:
        """The kept reports with their ages in seconds, by name."""
        with self._lock:
            self._forget()
            now = self._clock.monotonic()
            return [(now - entry.at, entry.report) for _, entry in sorted(self._kept.items())]

    def _forget(self) -> None:
        oldest = self._clock.monotonic() - KEPT_SECONDS
        self._kept = {name: entry for name, entry in self._kept.items() if entry.at >= oldest}


def _detail(text: str) -> dict[str, Any]:
    data = text.encode()
    if len(data) > DETAIL_BYTES_MAX:
        raise Invalid(f"a report's detail has {DETAIL_BYTES_MAX} bytes at most, not {len(data)}")
    try:
        value = orjson.loads(data or b"{}")
    except orjson.JSONDecodeError as error:
        raise Invalid(f"a report's detail is JSON: {error}") from error
    if not isinstance(value, dict):
        raise Invalid(f"a report's detail is a JSON object, not {type(value).__name__}")
    detail = detail_of(value)
    if wrong := [name for name in DETAIL if name in value and name not in detail]:
        raise Invalid(f"fields of a report's detail have the wrong type: {', '.join(wrong)}")
    return detail


def lags(reports: Iterable[tuple[float, Report]]) -> dict[str, int]:
    """Unread records of each source: over its processes that reported lately, or in its last report."""
    spoken: dict[str, list[tuple[float, int]]] = {}
    for age, report in reports:
        spoken.setdefault(thing_of(report.name), []).append((age, report.lag))
    return {name: _lag(each) for name, each in spoken.items()}


def _lag(spoken: Sequence[tuple[float, int]]) -> int:
    lately = [lag for age, lag in spoken if age <= SPOKEN_SECONDS]
    return sum(lately) if lately else min(spoken)[1]
