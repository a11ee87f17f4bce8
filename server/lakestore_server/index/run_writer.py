"""Writes a run: entries in order, table by table, in pieces so small that the disk always has little to write at
once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from google_crc32c import extend, value

from lakestore.errors import Unavailable
from lakestore_server.arrays.padded_bytes import PaddedBytes
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import Disk
from lakestore_server.host.even_writes import EvenWrites
from lakestore_server.host.yield_points import yield_point
from lakestore_server.index.byte_section import ENTRY_WORDS, RANK_BITS_MAX, marked, places
from lakestore_server.index.entry import Ints, KeyHash
from lakestore_server.index.number_section import SAMPLED
from lakestore_server.index.run import ALIGNED, FOOTER, HEADER, HEADER_BYTES, MAGIC, VERSION
from lakestore_server.index.run_blocks import BLOCK_BYTES, Bytes, SectionPlace
from lakestore_server.index.run_filter import FILTER_BITS, LookupNumbers, Numbers, mark

_FILTER_BIT_WORD = 64


class RunWriter:
    """One run, closed by `finish` or by `close`. The caller syncs the folder."""

    def __init__(self, disk: Disk, path: Path, key_hash: KeyHash, lsn: int) -> None:
        """`lsn` is the newest commit that has entries in the run."""
        self.key_hash, self._lsn = key_hash, lsn
        self._disk, self._file = disk, disk.create(path)
        self._writes = EvenWrites(self._file)
        self._places: list[SectionPlace] = []
        self._head = HEADER.pack(MAGIC, VERSION, 0).ljust(HEADER_BYTES, b"\0")
        self._waiting = bytearray(self._head)
        """Bytes of the incomplete last block."""
        self._at = HEADER_BYTES
        self._crcs: list[int] = []
        self.size = 0
        """Size of the finished file."""

    def begin(self, number: int, width: int, entries_max: int) -> SectionWriter:
        """Begin a table with at most `entries_max` entries; the table before it is ended."""
        return SectionWriter(self, number, width, entries_max)

    def begin_bytes(self, number: int, entries_max: int, rank_bits: int = 0) -> ByteSectionWriter:
        """`begin` for a table with byte keys. A rank has at least `rank_bits` bits."""
        return ByteSectionWriter(self, number, entries_max, rank_bits)

    def put(self, data: Any) -> int:
        """Append bytes or a contiguous array, which must not change any more. Returns their position."""
        at, view = self._at, np.frombuffer(data, np.uint8)
        self._at += len(view)
        first = min(-len(self._waiting) % BLOCK_BYTES, len(view))
        self._waiting += view[:first].tobytes()
        if first < len(view) or len(self._waiting) == BLOCK_BYTES:
            self._write(np.frombuffer(bytes(self._waiting), np.uint8))
            self._waiting.clear()
            end = first + (len(view) - first) // BLOCK_BYTES * BLOCK_BYTES
            self._write(view[first:end])
            self._waiting += view[end:].tobytes()
        return at

    def align(self) -> None:
        """Continue at the next multiple of `ALIGNED`."""
        self.put(bytes(-self._at % ALIGNED))

    def placed(self, place: SectionPlace) -> None:
        """Record that a table is complete."""
        self._places.append(place)

    def _write(self, blocks: Bytes) -> None:
        self._crcs += [value(blocks[first : first + BLOCK_BYTES]) for first in range(0, len(blocks), BLOCK_BYTES)]
        self._writes.write([blocks])

    def finish(self) -> None:
        """Write the run durably, except for its name."""
        last = bytes(self._waiting)
        crcs = np.array([*self._crcs, *([value(last)] if last else [])], dtype=np.uint32).tobytes()
        about = {"lsn": self._lsn, "seed": self.key_hash.seed.hex(), "sections": [list(each) for each in self._places]}
        directory = orjson.dumps(about)
        crc = extend(value(self._head), crcs + directory)
        end = FOOTER.pack(len(directory), len(crcs) // 4, crc, MAGIC)
        self._writes.write([last, crcs, directory, end])
        self._writes.flush()
        self._disk.reach(CrashPoint.RUN_WRITTEN)
        self._file.sync()
        self._disk.reach(CrashPoint.RUN_SYNCED)
        self._file.close()
        self.size = self._writes.size

    def close(self) -> None:
        """Close a run that is not finished."""
        self._file.close()


class Finder:
    """The searched words of a section, with their samples and filter."""

    def __init__(self, run: RunWriter, entries_max: int) -> None:
        self._run = run
        run.align()
        self._at = -1
        self.count = 0
        """Entries so far."""
        self._samples: list[Numbers] = []
        self._filter: Numbers = np.zeros(max(-(-entries_max * FILTER_BITS // _FILTER_BIT_WORD), 1), dtype=np.uint64)

    def add(self, data: npt.NDArray[Any], numbers: Numbers, marks: LookupNumbers) -> None:
        """Write further entries, in order. `numbers` are what a search compares, `marks` what the filter gets."""
        yield_point()
        at = self._run.put(data)
        self._at = at if self._at < 0 else self._at
        self._samples.append(numbers[-self.count % SAMPLED :: SAMPLED].copy())
        self.count += len(numbers)
        mark(self._filter, marks)

    def end(self, number: int, width: int) -> SectionPlace:
        """Write the samples and the filter of a table; it has at least one entry."""
        self._run.align()
        samples_at = self._run.put(np.concatenate(self._samples))
        self._run.align()
        filter_at = self._run.put(self._filter)
        return SectionPlace(number, width, self._at, self.count, samples_at, filter_at, len(self._filter))


class SectionWriter:
    """The entries of one table whose keys are numbers."""

    def __init__(self, run: RunWriter, number: int, width: int, entries_max: int) -> None:
        self._run, self._number, self._width = run, number, width
        self._finder = Finder(run, entries_max)

    def add(self, numbers: Numbers, stored: Numbers) -> None:
        """Further entries: ascending numbers, above all before, and their packed values."""
        entries = np.empty((len(numbers), 2), dtype=np.uint64)
        entries[:, 0], entries[:, 1] = numbers, stored
        self._finder.add(entries, numbers, LookupNumbers.of(numbers))

    def end(self) -> int:
        """Write samples and filter, unless the table is empty. Returns the number of entries."""
        if self._finder.count:
            self._run.placed(self._finder.end(self._number, self._width))
        return self._finder.count


class ByteSectionWriter:
    """The entries of one table whose keys are bytes: all keys in their order, then all hashes in theirs."""

    def __init__(self, run: RunWriter, number: int, entries_max: int, rank_bits: int = 0) -> None:
        """A rank has at least `rank_bits` bits."""
        self.rank_bits = max(entries_max.bit_length(), rank_bits)
        if self.rank_bits > RANK_BITS_MAX:
            raise Unavailable(f"a run of the index cannot hold {entries_max} keys of one table: shard the table")
        self._run, self._number = run, number
        self._chunks: list[tuple[int, int]] = []
        self._finder: Finder | None = None
        self.count = 0
        """Entries so far."""

    def add(self, keys: PaddedBytes, values: Ints) -> None:
        """Further entries: ascending keys, above all before, and their values."""
        if not len(keys):
            return
        entries = np.empty((len(keys), ENTRY_WORDS), dtype=np.uint64)
        entries[:, 0], entries[:, 1] = values.view(np.uint64), places(keys, values)
        self._run.align()
        self._chunks.append((self.count, self._run.put(entries.tobytes() + keys.packed()) // 8))
        self.count += len(keys)

    def find_by(self, hashed: Numbers) -> None:
        """Further hashes with the ranks of their entries, in order, above all before. No entries may follow."""
        if self._finder is None:
            self._finder = Finder(self._run, self.count)
        self._finder.add(hashed, hashed, marked(hashed))

    def end(self) -> int:
        """Write samples and filter, unless the table is empty. Returns the number of entries."""
        if self._finder is None:
            return 0
        self._run.align()
        chunks = np.array(self._chunks, dtype=np.uint64)
        chunks_at = self._run.put(chunks.tobytes())
        place = self._finder.end(self._number, 0)
        own = {"chunks_at": chunks_at, "chunks": len(chunks), "rank_bits": self.rank_bits}
        self._run.placed(place._replace(**own, entries_at=8 * self._chunks[0][1]))
        return self.count
