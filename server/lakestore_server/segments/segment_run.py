"""Runs of neighbouring segments that become one without their dead rows, by a checkpoint or beside it."""

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
    """Rows that stay, and superseded offsets that dropped records leave."""
    size: int
    """Estimated bytes that stay."""
    due: bool
    """Whether it is rewritten even alone."""
    has_dead: bool = False
    """Whether a row, or a superseded offset, is gone."""

    @property
    def start(self) -> int:
        return self.chunks[0].start

    @property
    def end(self) -> int:
        return self.chunks[-1].end

    @property
    def nbytes(self) -> int:
        return sum(chunk.size for chunk in self.chunks)


def within(dead: BitMap64, run: SegmentRun) -> BitMap64:
    """The dead rows of a run."""
    return dead & BitMap64(range(run.start, run.end))


def left_of(
    run: SegmentRun, known: BitMap64, gone: BitMap64, pause: Callable[[int], None] = lambda _: None
) -> SparseRows | None:
    """The rows of a run that stay if all of `gone` are dropped; None if no row stays. `known` are the stored dead rows
    of the bucket. `pause` gets the bytes read."""
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


def dropped_deletes(run: SegmentRun, known: BitMap64, state: TableState) -> tuple[IndexKeys, Ints]:
    """(keys, offsets) of the deletes that a run drops; hashed keys stay in their chains."""
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
    """A run to rewrite beside checkpoints, with the dead rows known at one checkpoint. Rows that die later stay until
    the next rewrite. A concurrent rewrite may leave the offset of a dropped row among the superseded ones, which is
    harmless."""

    key: tuple[str, int]
    """Table uuid and bucket."""
    state: TableState
    run: SegmentRun
    known: BitMap64
    """The stored dead rows of the bucket."""
    is_urgent: bool
    """Whether so much is due that it runs without pauses."""

    @property
    def frees(self) -> bool:
        """Whether the run frees at least a quarter."""
        return 4 * self.run.size <= 3 * self.run.nbytes

    @property
    def gone(self) -> BitMap64:
        return within(self.known, self.run)

    def left(self, pause: Callable[[int], None]) -> SparseRows | None:
        """The rows that stay; None if there are none."""
        return left_of(self.run, self.known, self.gone, pause)

    def forgotten(self) -> list[tuple[IndexKeys, Ints]]:
        """Keys of dropped deletes, and the offsets that the index may have for them."""
        remembers = self.state.table.merge.engine == "versioned"
        return [dropped_deletes(self.run, self.known, self.state)] if remembers else []
