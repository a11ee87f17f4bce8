"""Reports: the words of processes beside the server about themselves, such as bridges. Kept in memory, for a while."""

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
"""Silence after which a process may have ended, so that what it lacked is another's: they report every five seconds."""
REPORTS_MAX, BYTES_MAX = 1_000, 4 << 20
"""Reports that are kept, and the bytes of their names and details as JSON; one principal may take a share of both."""
NAME_BYTES_MAX, DETAIL_BYTES_MAX = 1_024, 16 << 10


@dataclass(frozen=True, slots=True)
class Report:
    """The newest words of one process; counts are since it began."""

    name: str
    records: int
    bytes: int
    rejected: int
    lag: int
    """Records that it has not come to."""
    detail: dict[str, Any]
    """Fields as `reporters.DETAIL` types them."""

    def as_dict(self, seconds: float) -> dict[str, Any]:
        """The JSON form, with its age."""
        return {**asdict(self), "reported_seconds": round(seconds, 1)}


@dataclass(frozen=True, slots=True)
class _Entry:
    """A report in memory."""

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
        """Raise `Exhausted` if a report would pass its owner's share or the limit of all."""
        others = [entry for kept_name, entry in self._kept.items() if kept_name != name]
        own = [entry for entry in others if entry.owner == owner]
        if owner and (len(own) >= self._share[0] or sum(each.bytes for each in own) + size > self._share[1]):
            raise Exhausted(
                f"the processes of {owner} report all that one principal may: come again when some have ended"
            )
        if len(others) >= REPORTS_MAX:
            raise Exhausted(f"{REPORTS_MAX} processes report already: come again when some have ended")
        if sum(each.bytes for each in others) + size > BYTES_MAX:
            raise Exhausted(f"reports take {BYTES_MAX} bytes already: come again when some processes have ended")

    def now(self) -> Sequence[tuple[float, Report]]:
        """The ages in seconds of the reports that are kept, and the reports, by name."""
        with self._lock:
            self._forget()
            now = self._clock.monotonic()
            return [(now - entry.at, entry.report) for _, entry in sorted(self._kept.items())]

    def _forget(self) -> None:
        oldest = self._clock.monotonic() - KEPT_SECONDS
        self._kept = {name: entry for name, entry in self._kept.items() if entry.at >= oldest}


def _detail(text: str) -> dict[str, Any]:
    """The typed detail of a report; `Invalid` for a text that is too long, no JSON object, or of other types."""
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
        raise Invalid(f"fields of a report's detail have another type: {', '.join(wrong)}")
    return detail


def lags(reports: Iterable[tuple[float, Report]]) -> dict[str, int]:
    """Records that each thing at work has not come to, over its processes that have spoken lately, or its last one."""
    spoken: dict[str, list[tuple[float, int]]] = {}
    for age, report in reports:
        spoken.setdefault(thing_of(report.name), []).append((age, report.lag))
    return {name: _lag(each) for name, each in spoken.items()}


def _lag(spoken: Sequence[tuple[float, int]]) -> int:
    lately = [lag for age, lag in spoken if age <= SPOKEN_SECONDS]
    return sum(lately) if lately else min(spoken)[1]
