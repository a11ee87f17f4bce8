"""The duty that fills the history: it samples the status and then renews the lake's figures."""

from __future__ import annotations

import logging

from lakestore_server.changes.subscriptions import behind
from lakestore_server.commit.engine import Engine
from lakestore_server.host.clock import Clock
from lakestore_server.host.worker import Worker
from lakestore_server.operate.calls import Calls
from lakestore_server.operate.history import SAMPLE_SECONDS, History, Kind, Series
from lakestore_server.operate.reports import lags
from lakestore_server.operate.status import ServedTable, ServerStatus, StatusReader
from lakestore_server.state.view import View

log = logging.getLogger("lakestore.console")


class Sampler:
    """One sample at a time, in its own thread or by `run_once`."""

    def __init__(self, engine: Engine, status: StatusReader, calls: Calls, clock: Clock) -> None:
        self.history = History(engine.limits.history_bytes)
        self._engine, self._status, self._calls, self._clock = engine, status, calls, clock
        self._last = self._totals()
        self._duty = Worker(
            supervisor=engine.supervisor,
            name="history",
            work=self.run_once,
            failed=_failed,
            every=SAMPLE_SECONDS,
            first=0.0,
        )

    def start(self) -> None:
        self._duty.start()

    def close(self) -> None:
        self._duty.close()

    def run_once(self) -> None:
        """One sample; then the lake is looked at, for the next sample."""
        view, now_us = self._engine.view, self._engine.now_us()
        status = self._status.at(view)
        tables = {served.table.uuid: _table(served) for served in status.tables}
        self.history.add(now_us, self._server(status, now_us), tables, _streams(view, status))
        self._status.lakes.look(view)

    def _totals(self) -> tuple[float, int, int, int]:
        totals = self._engine.totals
        return self._clock.monotonic(), totals.frames, totals.rows, totals.bytes

    def _server(self, status: ServerStatus, now_us: int) -> list[float]:
        last, self._last = self._last, self._totals()
        seconds = max(self._last[0] - last[0], 1e-3)
        lags = (served.table.hot_seconds(now_us) for served in status.tables)
        return [
            *((now - before) / seconds for now, before in zip(self._last[1:], last[1:], strict=True)),
            status.journal_bytes,
            status.disk_free_bytes,
            sum(served.table.hot for served in status.tables),
            max(lags, default=0.0),
            sum(self._calls.running().values()),
        ]


def _table(served: ServedTable) -> list[float]:
    table, lake = served.table, served.lake
    return [
        table.rows,
        table.hot,
        table.hot_since_us,
        lake.files if lake else 0,
        lake.delete_files if lake else 0,
        lake.deleted_rows if lake else 0,
        max(table.stored_rows - table.rows, 0) if table.keyed else 0,
        table.segments,
    ]


def _streams(view: View, status: ServerStatus) -> dict[Series, float]:
    """The unread changes and records of each subscription and bridge."""
    found: dict[Series, float] = {}
    for name, held in view.subscriptions.items():
        found[Series(Kind.SUBSCRIPTION, name)] = behind(view, held)
    for name, lag in lags(status.reports).items():
        found[Series(Kind.BRIDGE, name)] = lag
    return found


def _failed(error: Exception) -> None:
    log.error("a sample for the console failed and will be taken again: %s", error)
