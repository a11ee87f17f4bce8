"""Runs of neighbouring segments that become one without their dead rows: by a checkpoint, or beside checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from lakestore_server.files.new_segment import SparseRows
from lakestore_server.index.collisions import hashed
from lakestore_server.index.entry import table_prefix
from lakestore_server.index.keys import IndexKeys, encoded, joined
from lakestore_server.state.chunk import CHANGE, DELETE, PREV, Chunk, CommitIndex, Ints
from lakestore_server.state.view import TableState

_EMPTY: Ints = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class SegmentRun:
    """Neighbouring segments that become one."""

    chunks: list[Chunk]
    live: int
    """Rows, and offsets that gone records superseded, that stay."""
    size: int
    """About how many bytes stay."""
    due: bool
    """Whether it is to be rewritten even if it stays alone."""

    @property
    def start(self) -> int:
        """First offset."""
        return self.chunks[0].start

    @property
    def end(self) -> int:
        """Offset after the last."""
        return self.chunks[-1].end

    @property
    def nbytes(self) -> int:
        """Bytes to read."""
        return sum(chunk.size for chunk in self.chunks)


def within(dead: BitMap64, run: SegmentRun) -> BitMap64:
    """The dead rows of a run."""
    return dead & BitMap64(range(run.start, run.end))


def left_of(
    run: SegmentRun, known: BitMap64, gone: BitMap64, pause: Callable[[int], None] = lambda _: None
) -> SparseRows | None:
    """The rows that stay of a run when all of `gone` go, those of other runs too; None when nothing stays.

    `known` are the dead of the bucket that are still stored. `pause` is told of bytes that were read.
    """
    dead = _array(within(known, run))
    batches: list[pa.RecordBatch] = []
    offsets: list[Ints] = []
    kills = [chunk.kills() for chunk in run.chunks]
    for piece in (piece for chunk in run.chunks for piece in chunk.batches()):
        held, batch = piece.offsets(), piece.load()
        goes = _members(held, dead)
        prev = batch.column(PREV).to_numpy()[goes]
        kills.append(prev[prev >= 0])
        batches.append(batch.filter(pa.array(~goes)))
        offsets.append(held[~goes])
        pause(batch.nbytes)
    kept = np.concatenate(offsets)
    superseded = _array(BitMap64(np.concatenate(kills)) & (known - gone))
    if not len(kept) and not len(superseded):
        return None
    index = CommitIndex.joined([chunk.index for chunk in run.chunks]).of(kept)
    rows = pa.concat_batches(batches)
    return SparseRows(run.start, run.end, run.chunks[0].schema_id, rows, kept, superseded, index)


def forgotten(run: SegmentRun, known: BitMap64, state: TableState) -> tuple[IndexKeys, Ints]:
    """(keys, offsets) of the deletes that go from a run; keys that the index keeps by hash stay in their chains."""
    prefix, dead = table_prefix(state.table.number), _array(within(known, run))
    found: list[IndexKeys] = []
    offsets = [_EMPTY]
    for piece in (piece for chunk in run.chunks for piece in chunk.batches()):
        held, batch = piece.offsets(), piece.load()
        goes = _members(held, dead) & (batch.column(CHANGE).to_numpy() == DELETE)
        rows = batch.filter(pa.array(goes))
        names = state.versions.numbered(piece.schema_id).primary_key
        found.append(encoded([rows.column(name) for name in names], prefix))
        offsets.append(held[goes])
    gone, all_keys = np.concatenate(offsets), joined(found)
    whole = np.delete(np.arange(len(gone)), hashed(all_keys))
    return all_keys.take(whole), gone[whole]


def _array(offsets: BitMap64) -> Ints:
    return np.frombuffer(offsets.to_array(), dtype=np.uint64).astype(np.int64)


def _members(offsets: Ints, among: Ints) -> npt.NDArray[np.bool_]:
    if not len(among):
        return np.zeros(len(offsets), dtype=np.bool_)
    at = np.minimum(np.searchsorted(among, offsets), len(among) - 1)
    return np.asarray(among[at] == offsets)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A run to be rewritten beside checkpoints, with what is known of its bucket as of one of them.

    Rows that die later stay until the next rewrite. What other rewrites take away meanwhile may leave the offset of a
    row that is gone among those that are superseded, which says nothing.
    """

    key: tuple[str, int]
    """The table's uuid and the bucket."""
    state: TableState
    run: SegmentRun
    known: BitMap64
    """The dead of the bucket that are still stored."""
    is_urgent: bool
    """Whether so much is due that it is done without pauses."""

    @property
    def frees(self) -> bool:
        """Whether a quarter of the run goes at least."""
        return 4 * self.run.size <= 3 * self.run.nbytes

    @property
    def gone(self) -> BitMap64:
        """The rows that go."""
        return within(self.known, self.run)

    def left(self, pause: Callable[[int], None]) -> SparseRows | None:
        """The rows that stay; None if there are none."""
        return left_of(self.run, self.known, self.gone, pause)

    def forgotten(self) -> list[tuple[IndexKeys, Ints]]:
        """Keys of remembered deletes that go, and the offsets that the index may have for them."""
        remembers = self.state.table.merge.engine == "versioned"
        return [forgotten(self.run, self.known, self.state)] if remembers else []
