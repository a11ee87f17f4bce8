"""`lake.adopt(…)`: fills a table with the rows of an Iceberg table, numbers them, and makes the files its lake.

1. Rows go through ordinary commits of a named producer, so a run that was killed continues behind its last commit.
2. Offset files are a function of the data files and the rows' commit times. They are written before the last step.
3. Nothing is visible under the table's name before the last step, which is one journal record.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakestore.client.commit import Commit
from lakestore.client.connection import Connection
from lakestore.client.named_writes import NamedWrites
from lakestore.errors import Conflict, Corrupt, Invalid, LakestoreError, NotFound
from lakestore.iceberg import adopted_rows, places
from lakestore.iceberg.field_ids import id_of
from lakestore.model.columns import LAKE_BUCKET, LAKE_COLUMNS, LAKE_OFFSET, LAKE_TIMESTAMP
from lakestore.model.names import ADOPTING
from lakestore.model.table import Table
from lakestore.rows import keys
from lakestore.union import lake_pruning, lake_snapshot
from lakestore.union.explanation import Figures
from lakestore.union.lake_files import PARQUET, DataFile, Deletes, FileRead
from lakestore.union.lake_snapshot import FileList, PlannedFile, named
from lakestore.union.plan import TableScan
from lakestore.union.scan import Scan
from lakestore.union.side_by_side import merged
from lakestore.v1 import lakestore_pb2 as pb

COMMIT_BYTES, COMMIT_ROWS = 8 << 20, 250_000
"""Rows of one commit, whichever comes first."""
WRITES_AT_ONCE = 8
"""Offset files that are written side by side: a store takes its time for each."""
Ints = npt.NDArray[np.int64]
Tell = Callable[[str, int, int], None]
"""Called with the stage (`rows` or `numbers`), the rows that are done and the rows of all files."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """The result of an adoption."""

    definition: Table
    token: str
    rows: int
    files: int


@dataclass(frozen=True, slots=True)
class _Progress:
    """The committed rows: all files before `file`, and the first `row` positions of the next file."""

    location: str
    snapshot_id: int
    file: int = 0
    row: int = 0

    def text(self) -> str:
        return json.dumps([self.location, self.snapshot_id, self.file, self.row])

    @staticmethod
    def of(text: str) -> _Progress | None:
        return _Progress(*json.loads(text)) if text else None


def adopt(
    connection: Connection,
    source: str,
    name: str,
    *,
    primary_key: Sequence[str] = (),
    buckets: int = 0,
    tell: Tell = lambda stage, done, total: None,
) -> Adoption:
    """Make the Iceberg table `source` of the server's catalog the lake of a new table `name`."""
    request = pb.AdoptTableRequest(source=source, table=name, primary_key=primary_key, buckets=buckets)
    plan = connection.transport.adopt_table(request)
    begin = _Progress(plan.location, plan.snapshot_id)
    staging, writes = _staging(connection, Table.from_json(plan.definition), begin)
    with writes:
        run = _Run(connection, source, staging, begin, tell)
        try:
            run.commit_rows(writes)
        except _Duplicate as error:
            connection.transport.drop_table(pb.TableRequest(table=staging.name, table_uuid=staging.uuid, purge=True))
            raise Invalid(str(error)) from error
        heads = run.write_numbers()
    request.MergeFrom(pb.AdoptTableRequest(table_uuid=staging.uuid, location=plan.location, heads=heads))
    token = _ended(connection, request)
    connection.forget_definitions([staging.name, name])
    connection.transport.drop_producer(pb.DropProducerRequest(producer=_producer(staging)))
    if token:
        connection.remember(token)
    return Adoption(connection.newest(name), token, sum(heads), len(run.files))


def _producer(staging: Table) -> str:
    return f"adopt-{staging.uuid}"


def _staging(connection: Connection, wanted: Table, begin: _Progress) -> tuple[Table, NamedWrites]:
    """The table that takes the rows, and the producer that writes them. One that a killed run left is taken if it is
    for the same state of the Iceberg table and the same definition."""
    name = wanted.name + ADOPTING
    for _ in range(2):
        try:
            staging = connection.newest(name)
        except NotFound:
            staging = connection.create_table(replace(wanted, name=name), check_only=False)
        writes = NamedWrites(connection, _producer(staging))
        done = _Progress.of(writes.progress) or begin
        same = replace(staging, name=wanted.name, uuid="", number=0) == wanted
        if same and (done.location, done.snapshot_id) == (begin.location, begin.snapshot_id):
            return staging, writes
        writes.close()
        if not staging.is_adopting:
            raise Conflict(f"table {name} is there already, and it is not of an adoption: rename it first")
        connection.transport.drop_table(pb.TableRequest(table=name, table_uuid=staging.uuid, purge=True))
        connection.forget_definitions([name])
    raise Conflict(f"somebody else adopts a table as {wanted.name} at this moment: wait for that, or choose a name")


def _ended(connection: Connection, request: pb.AdoptTableRequest) -> str:
    """Do the last step. The token is empty if its answer was lost but the step was done."""
    try:
        return connection.transport.adopt_table(request).token
    except LakestoreError as error:
        try:
            if connection.newest(request.table).uuid == request.table_uuid:
                return ""
        except LakestoreError:
            pass
        raise error


class _Duplicate(Exception):
    """Two rows with one key."""


@dataclass(slots=True)
class _Run:
    """One run over the files of the Iceberg table, in the order of its manifests."""

    connection: Connection
    source: str
    table: Table
    """The table that takes the rows."""
    begin: _Progress
    tell: Tell
    files: list[PlannedFile] = field(init=False)
    _list: FileList = field(init=False)
    _rows: int = field(init=False)

    def __post_init__(self) -> None:
        scan = TableScan(self.table, self.begin.location, self.begin.snapshot_id, (), self.table)
        found = lake_pruning.choose_files(scan, None)[0] if self.begin.snapshot_id else FileList(None, ())
        self.files, self._list, self._rows = list(found), found, found.rows

    def _deletes(self) -> Deletes:
        """The deletes for one walk over the files: a shared delete file is forgotten after the last data file of it."""
        return Deletes(self._list, Figures())

    def commit_rows(self, writes: NamedWrites) -> None:
        """Commit the live rows of all files that are not committed yet, while a thread reads the next rows."""
        self._check_paths()
        done = _Progress.of(writes.progress) or self.begin
        with closing(merged([lambda: self._commits(done)], threads=1, ahead=1, tick=lambda: None)) as commits:
            for rows, progress, told in commits:
                self._commit(writes, rows, progress)
                self.tell("rows", told, self._rows)

    def _commits(self, done: _Progress) -> Iterator[tuple[list[pa.RecordBatch], _Progress, int]]:
        """(Live rows of one commit, the progress with it, rows of all files that are done then) behind `done`."""
        names = self.table.selected(None)
        told = sum(each.file.rows for each in self.files[: done.file])
        held, deletes = list[pa.RecordBatch](), self._deletes()
        for number, each in islice(enumerate(self.files), done.file, None):
            self._check_file(each)
            skip = done.row if number == done.file else 0
            for start, batch, alive in self._batches(each, names, deletes, skip):
                self._check_keys(batch, each)
                held.append(batch if alive is None else batch.filter(pa.array(alive)))
                end = start + batch.num_rows
                if _is_full(held):
                    yield held, replace(self.begin, file=number, row=end), told + end
                    held = []
            told += each.file.rows
        if held:
            yield held, replace(self.begin, file=len(self.files)), told

    def _batches(
        self, each: PlannedFile, names: Sequence[str], deletes: Deletes, skip: int = 0
    ) -> Iterator[tuple[int, pa.RecordBatch, npt.NDArray[np.bool_] | None]]:
        """(position of the first row, rows of these columns, live ones among them; None if all are) from position
        `skip` on."""
        deleted = np.sort(deletes.of(each)) if each.deletes else None
        wanted = FileRead(self.table, tuple(names), {}, None, Figures())
        start = 0
        for read in DataFile(each.file, wanted).batches(np.empty(0, np.int64)):
            batch, first = read, start
            start += read.num_rows
            if start <= skip:
                continue
            if first < skip:
                batch, first = read.slice(skip - first), skip
            alive = None
            if deleted is not None:
                alive = np.ones(batch.num_rows, np.bool_)
                near = deleted[np.searchsorted(deleted, first) : np.searchsorted(deleted, start)]
                alive[near - first] = False
            yield first, batch, alive

    def _commit(self, writes: NamedWrites, held: Sequence[pa.RecordBatch], progress: _Progress) -> None:
        rows = pa.Table.from_batches(held)
        if not rows.num_rows:
            return
        with writes.commit(progress.text()) as commit:
            _add(commit, self.table, rows)
        if sum(result.inserted for result in commit.results) != rows.num_rows:
            raise _Duplicate(self._duplicate(rows, progress))

    def _check_paths(self) -> None:
        """Refuse a data file that the table has twice: its rows would need two numbers in one offset file."""
        paths = Counter(_plain(each.file.path) for each in self.files)
        path, times = next(iter(paths.most_common(1)), ("", 0))
        if times > 1:
            raise Invalid(
                f"table {self.source} has the data file {path} {times} times: have its engine rewrite it"
                " (`CALL …rewrite_data_files` with rewrite-all)"
            )

    def _check_file(self, each: PlannedFile) -> None:
        """Refuse a data file that readers could not read, or read wrongly, as a file of ours."""
        file, where = each.file, f"table {self.source}: data file {each.file.path}"
        if file.format != PARQUET:
            raise Invalid(f"{where} is {file.format}, and only Parquet can be adopted: have its engine rewrite it")
        document = lake_snapshot.metadata(self.begin.location).document
        parts = lake_snapshot.metadata(self.begin.location).specs[file.spec_id]["fields"]
        names = {column.id: column.name for column in self.table.columns}
        odd = [part["name"] for part in parts if part.get("source-id") not in names or part["transform"] == "void"]
        if odd:
            raise Invalid(
                f"{where} has an earlier partitioning, whose field {odd[0]!r} is of no column that is there: have its"
                " engine rewrite it (`CALL …rewrite_data_files` with rewrite-all)"
            )
        folder = document["location"]
        if not _plain(file.path).startswith(_plain(folder).rstrip("/") + "/"):
            raise Invalid(f"{where} lies outside the table's folder {folder}, so it may belong to another table too")
        with named(file.path):
            filesystem, path = places.place(file.path)
            schema = pq.read_schema(path, filesystem=filesystem)
        ids = {id_of(part) for part in schema} - {None}
        if not ids:
            raise Invalid(f"{where} has no field ids (it was imported from Hive): have its engine rewrite it")
        if not adopted_rows.lacks_numbers(schema):
            raise Invalid(
                f"{where} has row numbers of a table that was released or half adopted: drop the table's columns"
                f" {', '.join(LAKE_COLUMNS)}, if it has them, and have an engine rewrite it (`CALL …rewrite_data_files`"
                " with rewrite-all)"
            )
        for part in parts:
            if part["transform"] == "identity" and part["source-id"] not in ids:
                raise Invalid(
                    f"{where} has {names[part['source-id']]!r} as a partition only: have its engine rewrite it"
                )

    def _check_keys(self, batch: pa.RecordBatch, each: PlannedFile) -> None:
        for column in self.table.columns:
            if column.required and batch.column(column.name).null_count:
                what = "the key" if column.name in self.table.primary_key else "it"
                raise Invalid(
                    f"table {self.source}: column {column.name!r} has nulls in data file {each.file.path}, and {what}"
                    " must have a value in every row"
                )

    def _duplicate(self, rows: pa.Table, progress: _Progress) -> str:
        """A sentence with a key of these rows that occurs twice, and the two files."""
        names = self.table.primary_key
        sought = pa.array(_encoded(rows.combine_chunks().to_batches()[0].select(names)))
        seen, deletes = dict[bytes, str](), self._deletes()
        for each in self.files[: progress.file + 1]:
            for _, batch, alive in self._batches(each, names, deletes):
                live = batch if alive is None else batch.filter(pa.array(alive))
                found = pa.array(_encoded(live))
                for place in np.flatnonzero(pc.is_in(found, value_set=sought).to_numpy(zero_copy_only=False)).tolist():
                    other = seen.setdefault(found[place].as_py(), each.file.path)
                    if other != each.file.path or _again(found, place):
                        said = ", ".join(f"{name}={live.column(name)[place].as_py()!r}" for name in names)
                        return (
                            f"table {self.source} cannot have the key ({', '.join(names)}): {said} is in a row of"
                            f" {other} and in another row of {each.file.path}"
                        )
        raise Corrupt(f"table {self.table.name} has a key twice that the files of {self.source} have once: drop it")

    def write_numbers(self) -> list[int]:
        """Write the offset files. Returns the heads, by bucket."""
        times = _Times.of(self.connection, self.table)
        heads = np.zeros(self.table.buckets, np.int64)
        told, writes, deletes = 0, deque[Future[None]](), self._deletes()
        with ThreadPoolExecutor(WRITES_AT_ONCE) as pool:
            for each in self.files:
                parts = list(self._numbered(each, heads, times, deletes))
                rows = pa.concat_tables(parts) if parts else adopted_rows.numbered(*_nothing())
                if rows.num_rows != each.file.rows:
                    raise Corrupt(f"data file {each.file.path} has not the {each.file.rows} rows of its manifest")
                writes.append(pool.submit(adopted_rows.write, each.file.path, self.table.uuid, rows))
                if len(writes) > WRITES_AT_ONCE:
                    writes.popleft().result()
                told += each.file.rows
                self.tell("numbers", told, self._rows)
            for write in writes:
                write.result()
        if heads.tolist() != times.heads:
            raise Conflict(
                f"table {self.table.name} has other rows than {self.source}, because somebody else wrote to it: drop it"
                f" (`lakestore drop {self.table.name} --now`) and adopt {self.source} again"
            )
        return times.heads

    def _numbered(self, each: PlannedFile, heads: Ints, times: _Times, deletes: Deletes) -> Iterator[pa.Table]:
        names = self.table.bucket_key or self.table.selected(None)[:1]
        for start, batch, alive in self._batches(each, names, deletes):
            live = batch if alive is None else batch.filter(pa.array(alive))
            if self.table.bucket_key:
                buckets = keys.buckets(live.columns, self.table.buckets)
            else:
                buckets = np.full(live.num_rows, times.log_bucket, np.int32)
            offsets = np.empty(live.num_rows, np.int64)
            for bucket in range(self.table.buckets):
                own = np.flatnonzero(buckets == bucket)
                offsets[own] = np.arange(heads[bucket], heads[bucket] + len(own))
                heads[bucket] += len(own)
            moments = times.of_rows(buckets, offsets)
            if alive is not None:
                positions = np.arange(start, start + batch.num_rows)
                buckets = _spread(buckets, alive, np.zeros(batch.num_rows, np.int32))
                offsets = _spread(offsets, alive, -1 - positions)
                moments = _spread(moments, alive, np.zeros(batch.num_rows, np.int64))
            yield adopted_rows.numbered(buckets, offsets, moments)


def _plain(location: str) -> str:
    """A location without its scheme, which engines spell in several ways."""
    return re.sub(r"^[a-zA-Z0-9]+:/*", "/", location)


def _nothing() -> tuple[Any, Ints, Ints]:
    return np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int64)


def _spread(values: Any, alive: npt.NDArray[np.bool_], others: Any) -> Any:
    """`values` at the live positions, `others` at the rest."""
    others[alive] = values
    return others


def _is_full(held: Sequence[pa.RecordBatch]) -> bool:
    size, rows = (sum(getattr(batch, name) for batch in held) for name in ("nbytes", "num_rows"))
    return bool(size >= COMMIT_BYTES or rows >= COMMIT_ROWS)


def _add(commit: Commit, table: Table, rows: pa.Table) -> None:
    if table.keyed:
        commit.upsert(table.name, rows)
    else:
        commit.append(table.name, rows)


def _encoded(batch: pa.RecordBatch) -> list[bytes]:
    return keys.encode(batch.columns, b"")


def _again(found: pa.Array, place: int) -> bool:
    """True if an earlier row of this batch has the same key."""
    earlier: list[bytes] = found.slice(0, place).to_pylist()
    return found[place].as_py() in earlier


@dataclass(frozen=True, slots=True)
class _Times:
    """The commit times of a table's rows, as steps."""

    heads: list[int]
    steps: list[tuple[Ints, Ints]]
    """For each bucket: first offsets, ascending, and the times from them on."""

    @staticmethod
    def of(connection: Connection, table: Table) -> _Times:
        """Read them from the log, at a position that has all rows. Another process may have written some of them."""
        connection.remember(connection.transport.head(pb.HeadRequest()).token)
        counts = np.zeros(table.buckets, np.int64)
        parts = []
        scan = Scan(connection.transport, table.name, columns=list(LAKE_COLUMNS), at=connection.last_token)
        for batch in scan.to_batches():
            bucket, offset = batch.column(LAKE_BUCKET).to_numpy(), batch.column(LAKE_OFFSET).to_numpy()
            time = batch.column(LAKE_TIMESTAMP).cast(pa.int64()).to_numpy()
            counts += np.bincount(bucket, minlength=table.buckets)
            goes_on = (np.diff(bucket) == 0) & (np.diff(offset) == 1) & (np.diff(time) == 0)
            first = np.flatnonzero(np.concatenate([[True], ~goes_on]))
            parts.append(np.stack([bucket[first].astype(np.int64), offset[first], time[first]]))
        bucket, offset, time = np.concatenate([np.empty((3, 0), np.int64), *parts], axis=1)
        order = np.lexsort((offset, bucket))
        bucket, offset, time = bucket[order], offset[order], time[order]
        ends = np.searchsorted(bucket, np.arange(table.buckets + 1))
        both = [(offset[a:b], time[a:b]) for a, b in pairwise(ends.tolist())]
        return _Times(counts.tolist(), both)

    @property
    def log_bucket(self) -> int:
        """The bucket of a log table, whose rows have one producer and so one bucket."""
        return int(np.argmax(self.heads))

    def of_rows(self, buckets: npt.NDArray[np.int32], offsets: Ints) -> Ints:
        """The times of rows."""
        found = np.zeros(len(offsets), np.int64)
        for bucket, (first, times) in enumerate(self.steps):
            own = buckets == bucket
            if len(first):
                found[own] = times[np.searchsorted(first, offsets[own], side="right") - 1]
        return found


def release(
    connection: Connection, name: str, *, uuid: str = "", new_name: str = "", check_only: bool = False
) -> pb.ReleaseTableAnswer:
    """End a table; its lake becomes a plain Iceberg table of the catalog."""
    request = pb.ReleaseTableRequest(table=name, table_uuid=uuid, new_name=new_name, check_only=check_only)
    answer = connection.transport.release_table(request)
    connection.forget_definitions([name])
    return answer
