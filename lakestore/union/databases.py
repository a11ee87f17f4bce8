"""Databases of DuckDB in memory. Making one takes 7.5 ms of processor time, so an idle one answers the next query.

1. A database answers one query at a time. It has the views of its last query, whose names no other query sees: `Views`.
   The state of random numbers belongs to the connection, which ends with a query that uses them.
2. Its settings are locked when it is made. A query gets a database with exactly its settings, or a new one.
3. It is kept only if the result was read to its end. After an error or an early end the old query may still run, or
   DuckDB may have given the database up.
4. A fork of the process closes the idle databases before, because DuckDB's threads do not exist in the child.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from lakestore.rows import literals
from lakestore.union.views import ViewList, Views

IDLE_MAX = 2
"""The most databases that are kept. Each has DuckDB's threads, which sleep, and about 3 MB."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The settings of a database."""

    settings: tuple[tuple[str, str], ...]
    zone: str
    is_lossless: bool
    """Whether results have extension types of Arrow."""


class Database:
    """A database that a query has for itself until `give_back` or `close`."""

    def __init__(self, engine: Any, kind: Kind) -> None:
        self.kind = kind
        self._engine, self._root = engine, engine.connect(config=dict(kind.settings))
        self._root.execute(f"SET GLOBAL TimeZone = {literals.text_literal(kind.zone)}")
        if kind.is_lossless:
            self._root.execute("SET GLOBAL arrow_lossless_conversion = true")
        self._root.execute("SET lock_configuration = true")
        self._begin()

    def _begin(self) -> None:
        self.connection = self._root.cursor()
        self.views = Views(self.connection)
        self.is_read = False
        """Whether the result was read to its end: set by its reader."""

    def give_back(self, *, keeps_connection: bool = True) -> None:
        """Keep the database for another query, with its views if it keeps its connection.

        It is closed if its result was not read to the end, or if DuckDB refuses to drop a view.
        """
        with ExitStack() as failing:
            failing.callback(self.close)
            if not self.is_read:
                return
            self.views.leave_rows()
            self.is_read = False
            if keeps_connection or self.drop_views():
                if not keeps_connection:
                    self.connection.close()
                    self._begin()
                failing.pop_all()
                _keep(self)

    def drop_views(self) -> bool:
        """Drop all views. False if DuckDB refuses it: the database is closed then."""
        with ExitStack() as failing:
            failing.callback(self.close)
            with suppress(self._engine.Error):
                self.views.show(ViewList(), ())
                failing.pop_all()
                return True
        return False

    def close(self) -> None:
        """End the database with its query."""
        for connection in (self.connection, self._root):
            with suppress(self._engine.Error):
                connection.close()


class _Idle:
    """The databases that are kept, the oldest first."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything, with a new lock: the parent of a fork may hold the old one."""
        self.lock, self.databases = threading.Lock(), list[Database]()

    def before_fork(self) -> None:
        """Close the databases. The lock is held until the fork is over, so no thread keeps another one."""
        self.lock.acquire()
        while self.databases:
            self.databases.pop().close()

    def after_fork(self) -> None:
        """Go on in the parent."""
        self.lock.release()


_IDLE = _Idle()
# A database that answers a query of another thread at the fork is in frames of that thread, which the child never ends.
os.register_at_fork(before=_IDLE.before_fork, after_in_parent=_IDLE.after_fork, after_in_child=_IDLE.clear)


def idle_or_new(engine: Any, kind: Kind, views: ViewList) -> Database:
    """An idle database of this kind, or a new one. It has exactly these views, or none."""
    with _IDLE.lock:
        fitting = [database for database in reversed(_IDLE.databases) if database.kind == kind]
        match = max(fitting, key=lambda database: database.views.present == views, default=None)
        if match is not None:
            _IDLE.databases.remove(match)
    if match is not None and (match.views.present == views or match.drop_views()):
        return match
    return Database(engine, kind)


def _keep(database: Database) -> None:
    with _IDLE.lock:
        _IDLE.databases.append(database)
        oldest = _IDLE.databases.pop(0) if len(_IDLE.databases) > IDLE_MAX else None
    if oldest is not None:
        oldest.close()
