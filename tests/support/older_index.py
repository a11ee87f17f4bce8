"""The key index as earlier releases wrote it: entries in LMDB, whatever their keys are."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest.mock import patch

import lmdb

from lakestore_server.index.entry import ABSENT, STORED_STRUCT, Ints, ServedTables, check_of_one
from lakestore_server.index.keys import IndexKeys
from lakestore_server.index.lmdb_store import MAP_BYTES, MARK
from lakestore_server.index.merged_keys import MergedKeys
from lakestore_server.index.overlay import Overlay


def put(folder: Path, parts: Iterable[tuple[IndexKeys, Ints]], lsn: int) -> None:
    """Merge entries into LMDB of a folder, which then stands at `lsn`, as those releases did."""
    with lmdb.open(str(folder), map_size=MAP_BYTES) as env, env.begin(write=True) as txn:
        for keys, values in parts:
            for key, value in zip(keys.listed(), values.tolist(), strict=True):
                if value == ABSENT:
                    txn.delete(key)
                else:
                    txn.put(key, STORED_STRUCT.pack(value, check_of_one(key, value)))
        txn.put(MARK, struct.pack("<q", lsn))


def _write(self: MergedKeys, entries: Overlay, lsn: int, tables: ServedTables) -> None:
    self._runs.add([], lsn)
    parts = [(keys, values) for keys, values in entries.parts() if len(keys) and tables.serves(keys.prefix)]
    put(self._lmdb._folder, parts, lsn)
    self.lsn = lsn
    self._lmdb.forget_highest()


@contextlib.contextmanager
def entries_in_lmdb() -> Iterator[None]:
    """Checkpoints put all keys into LMDB, and nothing is lifted out of it."""
    with patch.object(MergedKeys, "_write", _write), patch.object(MergedKeys, "work", lambda *_: False):
        yield
