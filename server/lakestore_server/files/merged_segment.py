"""One segment of several: the same rows, offsets and commits in one file.

Rows that nobody looks up go past the page cache: to fill it costs more than the disk, and what others look up would
leave it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from lakestore_server.files.new_segment import POINTS, encoded_rows
from lakestore_server.files.segment import Segment
from lakestore_server.host import even_writes
from lakestore_server.host.disk import Disk
from lakestore_server.host.mapping import read_in
from lakestore_server.state.commit_index import CommitIndex


def write(disk: Disk, path: Path, segments: Sequence[Segment], pause: Callable[[int], None], *, is_cached: bool) -> int:
    """Write neighbouring segments of one schema version as one synced file; its size. The folder is the caller's.

    `pause` is told of bytes that were written, and what it raises ends the work. `is_cached` is `even_writes.write`'s.
    """
    for segment in segments:
        read_in(segment.part.data)
    pieces = [piece for segment in segments for piece in segment.batches()]
    batches, first, last = [piece.load() for piece in pieces], segments[0], segments[-1]
    about = {"start": first.start, "end": last.end, "schema": first.schema_id}
    index = CommitIndex.joined([segment.index for segment in segments])
    sparse = None
    if any(segment.is_sparse for segment in segments) or any(b.start > a.end for a, b in pairwise(segments)):
        kills = np.unique(np.concatenate([segment.kills() for segment in segments]))
        sparse = np.concatenate([piece.offsets() for piece in pieces]), kills
    made = encoded_rows(batches, about, index, sparse)
    return even_writes.write(disk, path, made.parts, POINTS, pause, is_cached=is_cached)
