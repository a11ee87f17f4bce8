"""One segment of several: the same rows, offsets and commits in one file.

The rows are put together in memory once, and go from there to their checksums and to the file without a copy. Rows that
nobody looks up go past the page cache: to fill it costs more than the disk, and what others look up would leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lakestore_server.files.block_crcs import FINE_BLOCK, block_crcs
from lakestore_server.files.new_segment import POINTS, framed
from lakestore_server.files.segment import KEYED_VERSION, Segment
from lakestore_server.host import even_writes
from lakestore_server.host.disk import Disk
from lakestore_server.state.chunk import StoredBatch
from lakestore_server.state.commit_index import CommitIndex


def write(disk: Disk, path: Path, segments: Sequence[Segment], pause: Callable[[int], None], *, is_cached: bool) -> int:
    """Write neighbouring segments of one schema version as one synced file; its size. The folder is the caller's.

    `pause` is told of bytes that were written, and what it raises ends the work. `is_cached` is `even_writes.write`'s.
    """
    pieces = [piece for segment in segments for piece in segment.batches()]
    parts, about = _rows([piece.load() for piece in pieces])
    first, last = segments[0], segments[-1]
    about |= {"start": first.start, "end": last.end, "schema": first.schema_id}
    if any(segment.is_sparse for segment in segments) or any(b.start > a.end for a, b in _neighbours(segments)):
        about |= {"sparse": _numbers(parts, segments, pieces)}
    crcs, size = block_crcs(*parts, block=FINE_BLOCK), sum(map(len, parts))
    index = CommitIndex.joined([segment.index for segment in segments])
    head, tail = framed(KEYED_VERSION, about, size, crcs, index)
    return even_writes.write(disk, path, [*head, *parts, tail], POINTS, pause, is_cached=is_cached)


def _neighbours(segments: Sequence[Segment]) -> Iterator[tuple[Segment, Segment]]:
    return pairwise(segments)


class _Parts:
    """A sink that keeps what is written to it as it is."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[pa.Buffer] = []

    def write(self, data: Any) -> int:
        """Keep a part."""
        part = data if isinstance(data, pa.Buffer) else pa.py_buffer(bytes(data))
        self.parts.append(part)
        return int(part.size)

    def flush(self) -> None:
        """Nothing waits."""


def _rows(batches: Sequence[pa.RecordBatch]) -> tuple[list[pa.Buffer], dict[str, Any]]:
    """(the batches as one message, padded to 64 bytes, in parts; the entry of it)."""
    batch = pa.concat_batches(batches)
    sink = _Parts()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), batch.schema) as writer:
        writer.write_batch(batch)
        parts = list(_without(sink.parts, batch.schema.serialize().size))
    size = sum(map(len, parts))
    if size % 64:
        parts.append(pa.py_buffer(bytes(-size % 64)))
    return parts, {"batches": [[0, size, batch.num_rows]]}


def _without(parts: Sequence[pa.Buffer], count: int) -> Iterator[pa.Buffer]:
    """The parts without the first bytes."""
    for part in parts:
        skipped = min(count, part.size)
        count -= skipped
        if skipped < part.size:
            yield part.slice(skipped)


def _numbers(parts: list[pa.Buffer], segments: Sequence[Segment], pieces: Sequence[StoredBatch]) -> dict[str, Any]:
    """Put the offsets of the rows and of what gone records superseded behind the rows; where they lie."""
    offsets = np.concatenate([piece.offsets() for piece in pieces])
    kills = np.unique(np.concatenate([segment.kills() for segment in segments]))
    at = sum(map(len, parts))
    kills_at = at + offsets.nbytes + -offsets.nbytes % 64
    for numbers in (offsets, kills):
        parts += [pa.py_buffer(numbers), pa.py_buffer(bytes(-numbers.nbytes % 64))]
    return {"offsets": at, "kills": [kills_at, len(kills)]}
