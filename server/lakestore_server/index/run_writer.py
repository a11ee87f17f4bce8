"""A run being written: entries in order, table by table, on a disk that is never given much to write at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa

from lakestore.rows.ipc import crc32c
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.index.number_section import SAMPLED
from lakestore_server.index.run import ALIGNED, FOOTER, HEADER, HEADER_BYTES, MAGIC, VERSION
from lakestore_server.index.run_blocks import BLOCK_BYTES, SectionPlace
from lakestore_server.index.run_filter import FILTER_BITS, Numbers, Wanted, mark

SYNC_BYTES = 2 << 20
"""A journal's sync waits for what other files have to write: a run never has much."""
_FILTER_BIT_WORD = 64


class RunWriter:
    """One run, closed by `finish` or by `close`; the folder is the caller's to sync."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk, self._file = disk, disk.create(path)
        self._places: list[SectionPlace] = []
        self._head = HEADER.pack(MAGIC, VERSION, 0).ljust(HEADER_BYTES, b"\0")
        self._waiting = bytearray(self._head)
        """Bytes of the block that is not full yet."""
        self._at = HEADER_BYTES
        self._unsynced = 0
        self._crcs: list[int] = []
        self.size = 0
        """Bytes of the file, once it is finished."""

    def begin(self, number: int, width: int, entries_max: int) -> SectionWriter:
        """Begin the entries of a table, of which there are so many at most; the table before is ended."""
        return SectionWriter(self, number, width, entries_max)

    def put(self, data: bytes) -> int:
        """Append bytes; where they begin."""
        at = self._at
        self._at += len(data)
        self._waiting += data
        end = len(self._waiting) - len(self._waiting) % BLOCK_BYTES
        if end:
            full = bytes(memoryview(self._waiting)[:end])
            del self._waiting[:end]
            buffer = pa.py_buffer(full)
            self._crcs += [crc32c(buffer.slice(first, BLOCK_BYTES)) for first in range(0, end, BLOCK_BYTES)]
            self._write(full)
        return at

    def align(self) -> None:
        """Go on at the next multiple of `ALIGNED`."""
        self.put(bytes(-self._at % ALIGNED))

    def placed(self, place: SectionPlace) -> None:
        """A table is whole."""
        self._places.append(place)

    def _write(self, data: bytes) -> None:
        for first in range(0, len(data), SYNC_BYTES):
            piece = data[first : first + SYNC_BYTES]
            self._file.write([piece])
            self._unsynced += len(piece)
            if self._unsynced >= SYNC_BYTES:
                self._file.sync()
                self._unsynced = 0

    def finish(self) -> None:
        """Make the run durable but for its name."""
        last = bytes(self._waiting)
        crcs = np.array([*self._crcs, *([crc32c(last)] if last else [])], dtype=np.uint32).tobytes()
        directory = orjson.dumps([list(place) for place in self._places])
        crc = crc32c(crcs + directory, crc32c(self._head))
        end = FOOTER.pack(len(directory), len(crcs) // 4, crc, MAGIC)
        self._file.write([last, crcs, directory, end])
        self._disk.reach(CrashPoint.RUN_WRITTEN)
        self._file.sync()
        self._disk.reach(CrashPoint.RUN_SYNCED)
        self._file.close()
        self.size = self._at + len(crcs) + len(directory) + len(end)

    def close(self) -> None:
        """Close a run that is not finished."""
        self._file.close()


class SectionWriter:
    """The entries of one table of a run."""

    def __init__(self, run: RunWriter, number: int, width: int, entries_max: int) -> None:
        self._run, self._number, self._width = run, number, width
        run.align()
        self._at = -1
        self._count = 0
        self._samples: list[Numbers] = []
        self._filter: Numbers = np.zeros(max(-(-entries_max * FILTER_BITS // _FILTER_BIT_WORD), 1), dtype=np.uint64)

    def add(self, numbers: Numbers, stored: Numbers) -> None:
        """Further entries: ascending numbers, above all before, and their packed values."""
        entries = np.empty((len(numbers), 2), dtype=np.uint64)
        entries[:, 0], entries[:, 1] = numbers, stored
        at = self._run.put(entries.tobytes())
        self._at = at if self._at < 0 else self._at
        self._samples.append(numbers[-self._count % SAMPLED :: SAMPLED].copy())
        self._count += len(numbers)
        mark(self._filter, Wanted.of(numbers))

    def end(self) -> int:
        """Write what finds the entries, unless there are none; how many there are."""
        if self._count:
            self._run.align()
            samples_at = self._run.put(np.concatenate(self._samples).tobytes())
            self._run.align()
            filter_at = self._run.put(self._filter.tobytes())
            place = (self._number, self._width, self._at, self._count, samples_at, filter_at, len(self._filter))
            self._run.placed(SectionPlace(*place))
        return self._count
