"""Databases of DuckDB in memory. Making one takes 7.5 ms of processor time, so an idle one answers the next query.

1. A database answers one query at a time, over a connection of its own. Temporary views and the seed of random numbers
   end with that connection.
2. Its settings are locked when it is made. A query gets a database with exactly its settings, or a new one.
3. It is kept only if everything that the query made was dropped. A database that DuckDB has given up refuses the drop.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lakestore.rows import literals

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
        self.connection = self._root.cursor()

    def give_back(self, drops: Sequence[str]) -> None:
        """Drop with these statements everything that the query made, and keep the database for another query."""
        self.connection.close()
        try:
            for statement in drops:
                self._root.execute(statement)
            self.connection = self._root.cursor()
        except self._engine.Error:
            self.close()
        else:
            _keep(self)

    def close(self) -> None:
        """End the database with its query."""
        with suppress(self._engine.Error):
            self.connection.close()
        self._root.close()


_LOCK = threading.Lock()
_IDLE: dict[int, list[Database]] = {}
"""By process: after a fork the child leaves the parent's databases alone, whose threads it does not have."""


def idle_or_new(engine: Any, kind: Kind) -> Database:
    """An idle database of this kind, or a new one."""
    with _LOCK:
        idle = _IDLE.setdefault(os.getpid(), [])
        match = next((each for each in reversed(idle) if each.kind == kind), None)
        if match is not None:
            idle.remove(match)
            return match
    return Database(engine, kind)


def _keep(database: Database) -> None:
    with _LOCK:
        idle = _IDLE.setdefault(os.getpid(), [])
        idle.append(database)
        oldest = idle.pop(0) if len(idle) > IDLE_MAX else None
    if oldest is not None:
        oldest.close()
