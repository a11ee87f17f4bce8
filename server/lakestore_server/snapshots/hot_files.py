"""Writes log ranges as Parquet data files with the lake's types, field ids, partitions and metrics.

Rows arrive in pieces. A piece is written while the next one is fetched. A file has at most `FILE_ROWS_MAX` rows, so
that large steps can be read in parallel. Rows are ordered by bucket and offset.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.iceberg import data_files, transforms
from lakestore.iceberg.manifests import File
from lakestore.iceberg.offset_cache import FileOffsets
from lakestore.iceberg.row_search import BUCKET_SHIFT
from lakestore.iceberg.transforms import RowNumbers
from lakestore.iceberg.values import Value
from lakestore.model.columns import LAKE_BUCKET, LAKE_OFFSET, LAKE_TIMESTAMP, PREV
from lakestore.rows.live_sum import live_sum
from lakestore.union.lake_snapshot import recast
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.snapshots.shape import Shape
from lakestore_server.snapshots.steps import Gap, Ints, Kills

CHANGE, DELETED = "__change", "-D"
FILE_ROWS_MAX = 1 << 20
FILE_BYTES_MAX = 128 << 20
"""A piece with this many bytes in memory is written as a file of its own."""
PIECES_MAX = 2
"""The most pieces that are being written while the next one is fetched."""
ASIDE_BYTES_MIN = 1 << 20
"""A step's records are moved to a file from this size on."""
PARTITIONS_MAX = 16
"""With more partitions in a piece, its files are unpartitioned: many small files cost more than pruning saves."""
SPLIT_OFFSETS = 1 << 20
"""Offsets of one fetch."""

Group = tuple[dict[str, Value], RowNumbers | None]
Fetch = Callable[[pb.FetchRequest], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class HotFile:
    """A written data file with its offset index."""

    file: File
    offsets: FileOffsets


@dataclass(slots=True)
class StepFiles:
    """The parts of one step."""

    files: list[HotFile] = field(default_factory=list)
    kills: Kills = field(default_factory=Kills.none)
    born: list[int] = field(default_factory=list)
    """For each bucket, the live sum of the rows."""
    died: list[int] = field(default_factory=list)
    """For each bucket, the live sum of the rows that the step superseded."""


class StepWriter:
    """Writes the rows of one log range. Used once."""

    def __init__(self, shape: Shape, name: Callable[[str], str], pool: Executor) -> None:
        """`name` returns a new file's URI with the given ending."""
        self._shape, self._name, self._pool = shape, name, pool
        self._arrow = shape.arrow
        self._rows: list[pa.RecordBatch] = []
        self._keys: list[Ints] = []
        self._count = self._bytes = 0
        self._killers: list[Ints] = []
        self._victims: list[Ints] = []
        self._born, self._died = [0] * shape.table.buckets, [0] * shape.table.buckets
        self._running: list[Future[list[HotFile]]] = []

    def fetch(self, gap: Gap, fetch: Fetch, *, settled: bool) -> StepFiles:
        """Write the files of a gap. With `settled`, only rows that are alive at its end."""
        try:
            for bucket, (start, end) in enumerate(zip(gap.start, gap.end, strict=True)):
                for at in range(start, end, SPLIT_OFFSETS):
                    split = min(at + SPLIT_OFFSETS, end)
                    for batch in fetch(self._request(bucket, at, split, end, settled=settled)):
                        self._add(bucket, batch)
            self._flush()
        except BaseException:
            wait([each for each in self._running if not each.cancel()])
            raise
        files = [file for each in self._running for file in each.result()]
        kills = put_aside(Kills(_joined(self._killers), _joined(self._victims)))
        return StepFiles(files, kills, self._born, self._died)

    def _request(self, bucket: int, start: int, end: int, head: int, *, settled: bool) -> pb.FetchRequest:
        table = self._shape.table
        system = [CHANGE, PREV] if table.keyed and not settled else []
        request = pb.FetchRequest(
            table_uuid=table.uuid,
            bucket=bucket,
            start=start,
            end=end,
            columns=[*system, LAKE_OFFSET, LAKE_TIMESTAMP, *table.selected(None)],
            schema_id=table.schema_id,
        )
        if settled:
            request.live_only, request.live_start, request.live_end = True, 0, head
        return request

    def _add(self, bucket: int, batch: pa.RecordBatch) -> None:
        keys = np.asarray(batch.column(LAKE_OFFSET).to_numpy() | (bucket << BUCKET_SHIFT))
        if PREV in batch.schema.names:
            prev = batch.column(PREV).to_numpy()
            kills = prev >= 0
            if kills.any():
                self._killers.append(keys[kills])
                self._victims.append(prev[kills] | (bucket << BUCKET_SHIFT))
                self._died[bucket] = _summed(self._died[bucket], prev[kills])
            alive = pc.not_equal(batch.column(CHANGE), DELETED)
            if not pc.all(alive).as_py():
                batch, keys = batch.filter(alive), keys[alive.to_numpy(zero_copy_only=False)]
        if not batch.num_rows:
            return
        self._born[bucket] = _summed(self._born[bucket], batch.column(LAKE_OFFSET).to_numpy())
        if self._count + batch.num_rows > FILE_ROWS_MAX or self._bytes + batch.nbytes > FILE_BYTES_MAX:
            self._flush()
        self._rows.append(self._as_lake(bucket, batch))
        self._keys.append(keys)
        self._count, self._bytes = self._count + batch.num_rows, self._bytes + batch.nbytes

    def _as_lake(self, bucket: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for part in self._arrow:
            if part.name == LAKE_BUCKET:
                arrays.append(pa.array(np.full(batch.num_rows, bucket, np.int32)))
            else:
                arrays.append(recast(batch.column(part.name), part.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)

    def _flush(self) -> None:
        if self._count:
            wait(self._running[:-PIECES_MAX])
            rows, keys = pa.Table.from_batches(self._rows, self._arrow), _joined(self._keys)
            self._running.append(self._pool.submit(write_files, rows, keys, self._shape, self._name))
        self._rows, self._keys, self._count, self._bytes = [], [], 0, 0


def write_pieces(rows: pa.Table, keys: Ints, shape: Shape, name: Callable[[str], str]) -> list[HotFile]:
    """Write rows as one or more files."""
    starts = range(0, rows.num_rows, FILE_ROWS_MAX)
    pieces = ((rows.slice(at, FILE_ROWS_MAX), keys[at : at + FILE_ROWS_MAX]) for at in starts)
    return [file for part, held in pieces for file in write_files(part, held, shape, name)]


def write_files(rows: pa.Table, keys: Ints, shape: Shape, name: Callable[[str], str]) -> list[HotFile]:
    """Write one piece: one file for each partition, or a single file if there are many partitions."""
    spec = shape.flat
    groups: list[Group] = [({}, None)]
    if shape.spec["fields"]:
        found = transforms.groups(rows, shape.spec, shape.schema)
        if len(found) <= PARTITIONS_MAX:
            spec, groups = shape.spec, found
    files = []
    for partition, numbers in groups:
        part = rows if numbers is None else rows.take(pa.array(numbers))
        held = keys if numbers is None else keys[numbers]
        file = data_files.write(part, name("hot.parquet"), spec["spec-id"], partition)
        files.append(HotFile(file, FileOffsets(held, None)))
    return files


def put_aside(kills: Kills) -> Kills:
    """The same records, moved to an unnamed mapped file if they are large: unused parts then take no memory."""
    if kills.superseding.nbytes < ASIDE_BYTES_MIN:
        return kills
    return Kills(_mapped(kills.superseding), _mapped(kills.superseded))


def _mapped(array: Ints) -> Ints:
    with tempfile.TemporaryFile() as file:
        array.tofile(file)
        file.flush()
        return np.memmap(file, dtype=np.int64, mode="r", shape=array.shape)


def _joined(arrays: Sequence[Ints]) -> Ints:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays) if arrays else np.empty(0, np.int64)


def _summed(total: int, offsets: npt.NDArray[np.int64]) -> int:
    return (total + live_sum(offsets)) & ((1 << 64) - 1)
