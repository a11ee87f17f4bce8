"""The key index as releases before 0.3 wrote it: keys that are numbers in LMDB, beside keys of bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

from lakestore_server.index.entry import ServedTables
from lakestore_server.index.merged_keys import MergedKeys
from lakestore_server.index.overlay import Overlay


def _write(self: MergedKeys, entries: Overlay, lsn: int, tables: ServedTables) -> None:
    self._runs.add([], lsn)
    parts = [(keys, values) for keys, values in entries.parts() if len(keys) and tables.serves(keys.prefix)]
    self.lsn = self._lmdb.merge(parts, lsn)
    self._lmdb.forget_highest()


@contextlib.contextmanager
def numbers_in_lmdb() -> Iterator[None]:
    """Checkpoints put all keys into LMDB, and nothing is lifted out of it."""
    with patch.object(MergedKeys, "_write", _write), patch.object(MergedKeys, "work", lambda *_: False):
        yield
