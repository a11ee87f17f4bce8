"""The board: the status for the console, with a revision for each table, so that a page is sent only changes.

A revision grows with each look that found a change. Times are absolute and not ages, so an idle server has no changes.
The status is read at most once in `LOOK_SECONDS` for all pages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lakestore_server.host.clock import Clock
from lakestore_server.journals.replicas import REPORT_SECONDS
from lakestore_server.operate.status import ServedTable, ServerStatus, StatusReader

LOOK_SECONDS = 0.5
GONE_MAX = 10_000
"""Removed tables that are remembered. A page that last asked before the oldest is sent everything."""
SILENT_SECONDS = 3 * REPORT_SECONDS
"""A server of a shared journal that was not heard for three of its reports may be gone."""
_AGES = ("uptime_seconds", "checkpoint_age_seconds", "token", "queries")
Row = tuple[Any, ...]
COLUMNS = (
    "name",
    "keyed",
    "buckets",
    "rows",
    "log_start",
    "tier_point",
    "head",
    "hot",
    "hot_since_us",
    "freshness_seconds",
    "last_commit_us",
    "stored_rows",
    "segments",
    "segment_bytes",
    "lake_files",
    "lake_delete_files",
    "lake_deleted_rows",
    "problem",
    "held_by",
)
"""The figures of a row, in order."""
HELD_BY = COLUMNS.index("held_by")


def row_of(served: ServedTable) -> Row:
    """The list row of a table: sums over its buckets, and its first problem."""
    table, lake, decision = served.table, served.lake, served.decision
    trouble = served.tier_problem
    return (
        table.name,
        table.keyed,
        table.buckets,
        table.rows,
        sum(table.log_start),
        sum(table.tier_point),
        sum(table.head),
        table.hot,
        table.hot_since_us,
        table.freshness_seconds,
        table.last_commit_us,
        table.stored_rows,
        table.segments,
        table.segment_bytes,
        lake.files if lake else None,
        lake.delete_files if lake else None,
        lake.deleted_rows if lake else None,
        served.lake_ahead or (trouble.problem if trouble and trouble.failures else ""),
        tuple(decision.holders()) if decision else (),
    )


def server_of(status: ServerStatus) -> dict[str, Any]:
    """The server's part, without figures that change with time alone."""
    said = {name: value for name, value in status.server().items() if name not in _AGES}
    said["clock"] = {name: value for name, value in said["clock"].items() if name in ("state", "holds", "note")}
    said["memory"] = {name: value for name, value in said["memory"].items() if name != "parts"}
    replicas = said["journal"]["replicas"]
    said["journal"]["replicas"] = [
        {"address": each["address"], "role": each["role"], "lsn": each["lsn"], "is_silent": _is_silent(each)}
        for each in replicas
    ]
    said["reports"] = [
        {name: value for name, value in each.items() if name != "reported_seconds"} for each in said["reports"]
    ]
    return said


def _is_silent(replica: Mapping[str, Any]) -> bool:
    return bool(replica["heard_seconds"] > SILENT_SECONDS)


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to one page."""

    revision: int
    is_whole: bool
    """True if `rows` are all tables and replace the page's rows."""
    server: Mapping[str, Any]
    rows: tuple[Row, ...]
    gone: tuple[str, ...]
    """Removed tables."""

    @property
    def is_empty(self) -> bool:
        """True if the page has everything already."""
        return not (self.is_whole or self.rows or self.gone or self.server)


class Board:
    """The status of one server for all its pages. Thread-safe."""

    def __init__(self, status: StatusReader, clock: Clock) -> None:
        self._status, self._clock, self._lock = status, clock, threading.Lock()
        self._looked = float("-inf")
        self._revision = 0
        self._rows: dict[str, tuple[int, Row]] = {}
        """Table name to its row and the revision of its last change."""
        self._gone: dict[str, int] = {}
        self._forgotten = 0
        """The newest revision whose removed tables are forgotten."""
        self._server: tuple[int, dict[str, Any]] = (0, {})

    def page(self, since: int, sees: Callable[[str], bool]) -> Page:
        """The changes since a revision among the tables that a viewer sees; everything if the revision is unknown."""
        with self._lock:
            if self._clock.monotonic() - self._looked >= LOOK_SECONDS:
                self._look()
            is_whole = not self._forgotten < since <= self._revision
            first = 0 if is_whole else since
            at, server = self._server
            return Page(
                self._revision,
                is_whole,
                server if at > first else {},
                tuple(row for at, row in self._rows.values() if at > first and sees(row[0])),
                () if is_whole else tuple(name for name, at in self._gone.items() if at > first and sees(name)),
            )

    def _look(self) -> None:
        status = self._status.now()
        rows = {served.table.name: row_of(served) for served in status.tables}
        server, revision = server_of(status), self._revision + 1
        gone = self._rows.keys() - rows.keys()
        changed = [name for name, row in rows.items() if self._rows.get(name, (0, None))[1] != row]
        if changed or gone or server != self._server[1]:
            self._revision = revision
        if server != self._server[1]:
            self._server = revision, server
        for name in gone:
            del self._rows[name]
            self._gone[name] = revision
        for name in changed:
            self._rows[name] = revision, rows[name]
            self._gone.pop(name, None)
        while len(self._gone) > GONE_MAX:
            name = next(iter(self._gone))
            self._forgotten = max(self._forgotten, self._gone.pop(name))
        self._looked = self._clock.monotonic()
