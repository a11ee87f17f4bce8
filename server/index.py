"""The key index: key bytes -> live offset.

LMDB stands at the last checkpoint; what came after is in memory, newest first: the overlay that commits
write to, the frozen overlay that a checkpoint is merging, and merged ones kept as a cache. Derived data: it can be
rebuilt from the logs. The overlay lock is held for dictionary look-ups only, never over I/O.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lakestore.errors import Corrupt, Unavailable
from lakestore.limits import DEFAULT
from lakestore.server import index_worker as worker

Ints = npt.NDArray[np.int64]
ABSENT = worker.ABSENT
_MISS = -3
_STAGE_KEYS = 20_000
PREFIX_BYTES = 4


class IndexProcess:
    """A worker process and the pipe to it; one request at a time."""

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-E", worker.__file__, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, op: int, keys: Sequence[bytes] = (), values: Ints | None = None, lsn: int = 0) -> tuple[int, bytes]:
        """(index LSN, answer) of one request."""
        blob = b"".join(keys)
        width = len(keys[0]) if keys and len(blob) == len(keys) * len(keys[0]) else 0
        lengths = b""
        if keys and (not width or any(len(key) != width for key in keys)):
            width = 0
            lengths = np.fromiter(map(len, keys), dtype=np.uint32, count=len(keys)).tobytes()
        head = worker.REQUEST.pack(op, len(keys), width, len(blob), lsn)
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise Unavailable("the index process is closed")
        with self._lock:
            try:
                stdin.write(b"".join((head, lengths, blob, values.tobytes() if values is not None else b"")))
                stdin.flush()
                answer_lsn, size = worker.REPLY.unpack(worker.read_exactly(stdout, worker.REPLY.size))
                data = worker.read_exactly(stdout, size)
            except (EOFError, OSError, ValueError) as error:
                raise Unavailable("the index process has ended: restart the server") from error
        if answer_lsn == worker.FAILED:
            raise Unavailable(f"the key index cannot be read or written ({data.decode()}): free space on the disk")
        return answer_lsn, data

    def close(self) -> None:
        """End the process."""
        with self._lock:
            if self._process.stdin:
                self._process.stdin.close()
            self._process.wait()
            if self._process.stdout:
                self._process.stdout.close()


@dataclass(frozen=True, slots=True)
class Reading:
    """Look-ups begun under the overlay lock, to be finished outside it."""

    keys: Sequence[bytes]
    values: Ints
    older: tuple[dict[bytes, int], ...]
    lsn_max: int
    """LMDB may have moved on to here and still answer as of the moment of the reading."""


class Index:
    """Owned by the commit loop; `begin` and `finish` serve readers."""

    def __init__(self, folder: Path, cache_keys_max: int = DEFAULT.index_cache_keys) -> None:
        self._cache_keys_max = cache_keys_max
        self._finder = IndexProcess(folder)
        self._merger = IndexProcess(folder)
        self.lock = threading.Lock()
        self._overlay: dict[bytes, int] = {}
        self._older: tuple[dict[bytes, int], ...] = ()
        self._frozen: dict[bytes, int] | None = None
        self._highest: dict[bytes, tuple[int, bytes]] = {}
        self._highest_lock = threading.Lock()
        self._frozen_lsn = self._merged_lsn = self._finder.ask(worker.LSN)[0]

    @property
    def lsn(self) -> int:
        """What LMDB stands at; -1 when it is empty."""
        return self._merged_lsn

    @property
    def overlay_keys(self) -> int:
        """Keys not yet handed to a checkpoint."""
        return len(self._overlay)

    def find(self, keys: Sequence[bytes]) -> Ints:
        """Live offsets for the commit loop."""
        return self.finish(self.begin(keys))

    def begin(self, keys: Sequence[bytes]) -> Reading:
        """The part of a look-up that must be atomic; readers call it under `lock`."""
        values = np.fromiter(map(self._overlay.get, keys, repeat(_MISS)), dtype=np.int64, count=len(keys))
        return Reading(keys, values, self._older, self._frozen_lsn)

    def finish(self, reading: Reading) -> Ints:
        """The rest of a look-up: frozen overlays, then LMDB."""
        values = reading.values
        for overlay in reading.older:
            missing = np.flatnonzero(values == _MISS)
            if not len(missing):
                return values
            keys = [reading.keys[i] for i in missing.tolist()] if len(missing) < len(values) else reading.keys
            values[missing] = np.fromiter(map(overlay.get, keys, repeat(_MISS)), dtype=np.int64, count=len(keys))
        missing = np.flatnonzero(values == _MISS)
        if len(missing):
            values[missing] = self._from_lmdb([reading.keys[i] for i in missing.tolist()], reading.lsn_max)
        return values

    def _from_lmdb(self, keys: list[bytes], lsn_max: int) -> Ints:
        highest_lsn, highest = self._highest_of(keys[0][:PREFIX_BYTES])
        if highest_lsn <= lsn_max and min(keys) > highest:
            return np.full(len(keys), ABSENT, dtype=np.int64)
        lsn, data = self._finder.ask(worker.FIND, keys)
        offsets = np.frombuffer(data, dtype=np.int64)
        if lsn > lsn_max:
            raise Unavailable("the index moved on during the look-up: look up again")
        if (offsets == worker.DAMAGED).any():
            raise Corrupt("the key index is damaged: stop the server and remove its index folder; it is rebuilt")
        return offsets

    def _highest_of(self, prefix: bytes) -> tuple[int, bytes]:
        """(LMDB's LSN, key): an upper bound of a table's keys in LMDB: new keys above it need not be asked for."""
        with self._highest_lock:
            generation = self._highest
            if prefix not in generation:
                generation[prefix] = self._finder.ask(worker.HIGHEST, [prefix])
            return generation[prefix]

    def put(self, keys: Sequence[bytes], offsets: Sequence[int]) -> None:
        """Name new live offsets; ABSENT for a deleted key. Under `lock`."""
        self._overlay.update(zip(keys, offsets, strict=True))

    def freeze(self, lsn: int) -> None:
        """Begin a checkpoint at `lsn`: what was written so far is to be merged."""
        with self.lock:
            if self._frozen is None:
                self._frozen, self._overlay = self._overlay, {}
                self._older = (self._frozen, *self._older)
            else:  # the last checkpoint failed: its entries are still to be merged
                self._frozen, self._overlay = self._frozen | self._overlay, {}
                self._older = (self._frozen, *self._older[1:])
            self._frozen_lsn = lsn

    def merge(self, lsn: int) -> None:
        """Put the frozen overlay into LMDB; runs beside the commit loop."""
        frozen = self._frozen if self._frozen is not None else {}
        self.write(frozen, lsn)

    def write(self, entries: dict[bytes, int], lsn: int) -> None:
        """Put entries into LMDB in one synced transaction that stands at `lsn`."""
        keys, values = iter(entries), iter(entries.values())
        while part := list(islice(keys, _STAGE_KEYS)):
            offsets = np.fromiter(islice(values, _STAGE_KEYS), dtype=np.int64, count=len(part))
            self._merger.ask(worker.STAGE, part, offsets)
        self._merged_lsn = self._merger.ask(worker.MERGE, lsn=lsn)[0]
        self._highest = {}

    def merged(self) -> None:
        """End a checkpoint: merged overlays stay as a cache while they are small enough."""
        with self.lock:
            self._frozen = None
            kept, total = [], 0
            for overlay in self._older:
                total += len(overlay)
                if total <= self._cache_keys_max:
                    kept.append(overlay)
            self._older = tuple(kept)

    def clear(self) -> None:
        """Begin a rebuild: LMDB stands at nothing until `finish_rebuild`."""
        self._merger.ask(worker.CLEAR)

    def stage(self, keys: Sequence[bytes], offsets: Ints) -> None:
        """A part of a rebuild."""
        if keys:
            self._merger.ask(worker.STAGE, keys, offsets)
            self._merger.ask(worker.MERGE, lsn=-1)

    def finish_rebuild(self, lsn: int) -> None:
        """The rebuilt index stands at `lsn`."""
        self._merged_lsn = self._frozen_lsn = self._merger.ask(worker.MERGE, lsn=lsn)[0]

    def close(self) -> None:
        """End the worker processes."""
        self._finder.close()
        self._merger.close()


def table_prefix(number: int) -> bytes:
    """What every key of a table begins with."""
    return number.to_bytes(PREFIX_BYTES, "big")
