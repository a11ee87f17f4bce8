"""Clients of one table, whose handle is taken once for each connection."""

from __future__ import annotations

import lakestore as ls


class OneTable:
    """A connection and the handle of its table."""

    def __init__(self, lake: ls.Lake, name: str) -> None:
        self._lake, self._name = lake, name
        self._held: ls.Table | None = None

    def close(self) -> None:
        """End the connection."""
        self._lake.close()

    @property
    def _table(self) -> ls.Table:
        if self._held is None:
            self._held = self._lake.table(self._name)
        return self._held
