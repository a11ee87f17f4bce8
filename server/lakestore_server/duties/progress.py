"""The duty of `lakestore.progress`: it writes how far the feeds of tables with a contract are.

- A table with feeds has a row for each, and one with an empty feed for the table: its slowest feed holds it back.
- Feeds only go forward, so a stored time is a lower bound at every later cut.
- Rows are a function of the feeds, but for `since`, which stays with its row: a restart reads it back.
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from typing import Any

from lakestore.errors import LakestoreError
from lakestore.model import times
from lakestore.model.system_tables import PROGRESS
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.system_rows import delete_rows, upsert_rows
from lakestore_server.host.worker import Worker
from lakestore_server.state.chunk import CHANGE, DELETE
from lakestore_server.state.view import TableState, View

log = logging.getLogger("lakestore.progress")
Key = tuple[str, str]
"""A table's name and a register's; the register is empty in the table's own row."""
Row = dict[str, Any]
WHOLE = ""
"""The feed in the row of a whole table."""
_NEVER = datetime.min.replace(tzinfo=UTC)
_VALUES = ("complete_through", "held_back_by")


class Progress:
    """One round at a time, in its own thread or by `run_once`."""

    def __init__(self, engine: Engine, check_seconds: float) -> None:
        self._engine = engine
        self._running = threading.Lock()
        self._rows: dict[Key, Row] | None = None
        """The rows of the table; None if they must be read."""
        self._duty = Worker(
            supervisor=engine.supervisor, name="progress", work=self.run_once, failed=_failed, every=check_seconds
        )
        self._duty.start()

    def close(self) -> None:
        """Stop after the commit that is in flight."""
        self._duty.close()

    def run_once(self) -> None:
        """Write the rows that changed and delete rows of feeds that are gone."""
        with self._running:
            view, uuid = self._engine.view, self._engine.view.names.get(PROGRESS)
            if uuid is None or not view.tables[uuid].table.is_system or not self._engine.is_leading:
                self._rows = None  # there is no contract yet, or another server writes
                return
            before = _stored(view.tables[uuid]) if self._rows is None else self._rows
            self._rows = None
            now = times.moment_of(self._engine.now_us())
            wanted = {key: _kept(row, before.get(key), now) for key, row in self._present(view).items()}
            upsert_rows(self._engine, PROGRESS, [row for key, row in wanted.items() if row != before.get(key)])
            delete_rows(self._engine, PROGRESS, [before[key] for key in before.keys() - wanted.keys()])
            self._rows = wanted

    def _present(self, view: View) -> dict[Key, Row]:
        registers, found = self._engine.loop.state.registers, dict[Key, Row]()
        for name, uuid in view.names.items():
            if view.tables[uuid].table.contract is None:
                continue
            feeds = {feed: _moment(value) for feed, value in registers.said(name, view.lsn)}
            if not feeds:
                continue
            for feed, through in feeds.items():
                found[name, feed] = _row(name, feed, through, None)
            slowest = min(feeds, key=lambda feed: (feeds[feed] or _NEVER, feed))
            found[name, WHOLE] = _row(name, WHOLE, feeds[slowest], slowest)
        return found


def _row(table: str, feed: str, through: datetime | None, held_back_by: str | None) -> Row:
    return {"table": table, "feed": feed, "complete_through": through, "held_back_by": held_back_by}


def _kept(row: Row, before: Row | None, now: datetime) -> Row:
    """The row with the time since which it says the same."""
    same = before is not None and all(row[name] == before[name] for name in _VALUES)
    return row | {"since": before["since"] if before is not None and same else now}


def _moment(value: str) -> datetime | None:
    micros = times.micros_of(value) if value else None
    return None if micros is None else times.moment_of(micros)


def _stored(state: TableState) -> dict[Key, Row]:
    """The live rows of the table."""
    (bucket,), found = state.logs, dict[Key, Row]()
    for _, batch, schema_id in bucket.stored(0, bucket.head):
        table = state.table
        arrays = state.versions.projection(schema_id, table).columns(batch, table.columns)
        deleted = (batch.column(CHANGE).to_numpy() == DELETE).tolist()
        for number, is_deleted in enumerate(deleted):
            row = {column.name: array[number].as_py() for column, array in zip(table.columns, arrays, strict=True)}
            if is_deleted:
                found.pop((row["table"], row["feed"]), None)
            else:
                found[row["table"], row["feed"]] = row
    return found


def _failed(error: Exception) -> None:
    if isinstance(error, LakestoreError):
        log.info("the progress of feeds is written later: %s", error.message)
    else:
        log.error("a round of progress failed and will be tried again: %s", error)
