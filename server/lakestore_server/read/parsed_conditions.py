"""Conditions in SQL as filters, cached in parsed form: a query's goes to every bucket, a stream's to every message."""

from __future__ import annotations

import threading
from collections import OrderedDict

from lakestore.model.columns import Column
from lakestore.model.table import Table
from lakestore.rows import condition_text
from lakestore.rows.condition import RowFilter

CONDITIONS_KEPT = 1_024
"""Parsed conditions in the cache of the process, each for one version of a table."""
CHARS_KEPT = 4 * condition_text.CHARS_MAX
"""Characters of all cached conditions; parsed they take about ten times as many bytes."""


class ParsedConditions:
    """The most recently parsed conditions, within the bounds and at least one. Thread-safe."""

    def __init__(self, most: int, chars_max: int) -> None:
        self._most, self._chars_max = most, chars_max
        self._lock = threading.Lock()
        self._filters: OrderedDict[tuple[str, str, tuple[Column, ...]], RowFilter] = OrderedDict()
        self.chars = 0
        """Characters of the cached texts."""

    def filter_of(self, text: str, name: str, columns: tuple[Column, ...]) -> RowFilter:
        """The filter of a condition's text on a table with these columns."""
        key = text, name, columns
        with self._lock:
            if key in self._filters:
                self._filters.move_to_end(key)
                return self._filters[key]
        made = condition_text.parse(text, Table(name, columns))
        with self._lock:
            self.chars += 0 if key in self._filters else len(text)
            self._filters[key] = made
            while len(self._filters) > self._most or (self.chars > self._chars_max and len(self._filters) > 1):
                (gone, *_), _ = self._filters.popitem(last=False)
                self.chars -= len(gone)
        return made


PARSED = ParsedConditions(CONDITIONS_KEPT, CHARS_KEPT)
"""The conditions of all reads and streams of this process."""
