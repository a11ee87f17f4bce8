"""Builds presented cuts, keeps files of one cut for later cuts, and removes files that no cut needs.

- One build at a time.
- The kept state changes only when a build is complete. A failed build leaves only files, which are removed.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lakestore.errors import Internal, Invalid, LakestoreError, PositionExpired, Unavailable
from lakestore.iceberg import store_counts
from lakestore.iceberg.cache import DerivedCache
from lakestore.iceberg.offset_cache import OffsetCache
from lakestore.iceberg.places import open_file
from lakestore.union import plan
from lakestore.union.plan import TableScan
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.host.yield_points import yield_point
from lakestore_server.snapshots.base_files import BaseFiles, Bases, Manifests
from lakestore_server.snapshots.deletes import Deaths, DeleteLedger, RowsToHide, hide
from lakestore_server.snapshots.document import SnapshotWriter
from lakestore_server.snapshots.held_cuts import RunFiles, remove
from lakestore_server.snapshots.hot_files import Fetch, HotFile, StepWriter, put_aside, write_pieces
from lakestore_server.snapshots.messages import DEFAULT_ROOM, BuildRequest, BuiltFiles, Room
from lakestore_server.snapshots.shape import Shape
from lakestore_server.snapshots.steps import (
    Gap,
    Heads,
    Ints,
    Kills,
    Step,
    Window,
    absorbed,
    cover,
    inside,
    live_sums,
    to_merge,
)

_Sums = npt.NDArray[Any]
"""Live sums of each bucket, as Python integers, which do not overflow."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Caches and threads that all builds share."""

    bases: Bases
    indexes: OffsetCache
    pool: Executor


@dataclass(frozen=True, slots=True)
class ReusableParts:
    """Kept parts of earlier builds that a new build of the table may use."""

    steps: Sequence[Step]
    ledgers: Sequence[DeleteLedger]
    name: Callable[[str], str]
    """Returns a new file's URI with the given ending."""
    numbers: Iterator[int]
    """Numbers for new steps."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A complete build."""

    answer: BuiltFiles
    files: Mapping[str, int]
    """The size of every file of the cut, including the base's manifests."""
    windows: tuple[Window, ...]
    base: BaseFiles
    ledger: DeleteLedger
    earlier: DeleteLedger | None
    """The ledger from which this build's ledger was derived."""


class SnapshotBuild:
    """One build; used once."""

    def __init__(
        self, tools: Tools, known: ReusableParts, request: BuildRequest, scan: TableScan, fetch: Fetch
    ) -> None:
        self._tools, self._known, self._request, self._scan, self._fetch = tools, known, request, scan, fetch
        self._start: Heads = tuple(bucket.tier_point for bucket in scan.buckets)
        self._end: Heads = tuple(bucket.head for bucket in scan.buckets)
        self._specs = {spec["spec-id"]: spec for spec in request.specs}
        default, flat = self._specs[request.default_spec_id], self._specs[request.flat_spec_id]
        self._shape = Shape(scan.table, request.schema, default, flat)
        self._took: dict[str, float] = {}

    def done(self) -> BuildResult:
        """Write and check the files of the cut."""
        request, tools, name = self._request, self._tools, self._known.name
        windows = self._windows()
        with self._clock("base"):
            base = tools.bases.of(request.base.manifest_list, request.folder.rpartition("/")[2])
        with self._clock("dead"):
            earlier = self._earlier()
            ledger, found = self._found(base, earlier, windows)
        with self._clock("deletes"):
            ledger = hide(ledger, found, base, name, tools.pool)
        self._check(base, ledger)
        with self._clock("manifests"):
            answer, files = SnapshotWriter(request, self._specs, name).write(base, ledger, self._took)
        return BuildResult(answer, files, windows, base, ledger, earlier)

    def _windows(self) -> tuple[Window, ...]:
        """The steps that cover the cut's hot range. Missing ones are fetched and written."""
        scan, steps = self._scan, [step for step in self._known.steps if self._has_specs_of(step)]
        settles = scan.table.keyed and not scan.in_lake
        parts = absorbed(cover(steps, scan.table, self._start, self._end))
        with self._clock("fetch"):
            try:
                return tuple(self._filled(part, settles=settles) for part in parts)
            except PositionExpired:
                if not settles:
                    raise
            # The log of a table that was never tiered may start anywhere before the cut.
            return (self._filled(Gap(self._start, self._end), settles=True),)

    def _has_specs_of(self, step: Step) -> bool:
        """Whether the cut's document has the partition specs of a step's files. The unpartitioned spec may have had the
        number that a later partitioning has now."""
        specs = (step.shape.spec, step.shape.flat)
        return all(self._specs.get(spec["spec-id"]) == spec for spec in specs)

    def _filled(self, part: Window | Gap, *, settles: bool) -> Window:
        if isinstance(part, Window):
            return part
        settled = settles and not sum(part.start)
        writer = StepWriter(self._shape, self._known.name, self._tools.pool)
        written = writer.fetch(part, self._fetch, settled=settled)
        files = tuple(each.file for each in written.files)
        for each in written.files:
            self._tools.indexes.put(each.file.path, each.offsets)
        born, died = tuple(written.born), tuple(written.died)
        number = next(self._known.numbers)
        step = Step(number, part.start, part.end, self._shape, files, written.kills, born, died, settled)
        return Window(step, part.start, part.end)

    def _earlier(self) -> DeleteLedger | None:
        """The newest ledger of the same base that is not newer than this cut."""
        wanted = self._request.base.manifest_list, self._request.format, self._start
        usable = [
            each
            for each in self._known.ledgers
            if (each.base, each.format, each.start) == wanted and sum(each.end) <= sum(self._end)
        ]
        return max(usable, key=lambda each: sum(each.end), default=None)

    def _found(
        self, base: BaseFiles, earlier: DeleteLedger | None, windows: tuple[Window, ...]
    ) -> tuple[DeleteLedger, Sequence[RowsToHide]]:
        """(a ledger of the cut, rows that it does not hide yet)."""
        deaths = Deaths(self._scan.table.name, base, self._tools.indexes)
        name, form = self._request.base.manifest_list, self._request.format
        if self._scan.lake_beyond:
            ledger = DeleteLedger(name, form, self._start, self._end)
            return ledger, deaths.beyond(ledger)
        return deaths.since(earlier or DeleteLedger(name, form, self._start, self._start), windows, self._end)

    def _check(self, base: BaseFiles, ledger: DeleteLedger) -> None:
        """Raises `Internal` if the files would not show exactly the rows that are alive at the cut."""
        scan = self._scan
        shown = base.live_rows
        if shown is not None:
            shown += sum(window.step.rows for window in ledger.windows) - ledger.rows
            if shown != scan.live_rows:
                raise Internal(
                    f"table {scan.table.name} has {scan.live_rows} live rows at the cut, but {shown} would be shown"
                )
        if scan.lake_beyond or (scan.in_lake and scan.tier is None):
            return
        sums = np.array(scan.tier.live_sum if scan.tier else [0] * len(scan.buckets), dtype=object)
        for window in ledger.windows:
            sums += self._moved(window)
        for bucket, total in zip(scan.buckets, sums, strict=True):
            if int(total) & _MASK != bucket.live_sum:
                raise Internal(f"table {scan.table.name}: bucket {bucket.bucket} would not show exactly its live rows")

    def _moved(self, window: Window) -> _Sums:
        """The change of each bucket's live sum by the rows and deaths in a window."""
        step = window.step
        if window.is_whole:
            whole: _Sums = np.array(step.born, dtype=object) - np.array(step.died, dtype=object)
            return whole
        moved: _Sums = np.zeros(len(step.start), dtype=object)
        for file in step.files:
            keys = self._tools.indexes.of(file).keys
            moved += np.array(live_sums(inside(keys, window.start, window.end), len(moved)), dtype=object)
        moved -= np.array(live_sums(np.sort(window.kills.superseded), len(moved)), dtype=object)
        return moved

    @contextmanager
    def _clock(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._took[what] = self._took.get(what, 0.0) + (time.perf_counter() - begin) * 1000


_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class StepMerge:
    """A running or finished merge of steps."""

    owner: str
    """Folder of the table."""
    parts: tuple[Step, ...]
    paths: list[str]
    """Files that the merge has begun."""
    files: Future[list[HotFile]]


class StepMerger:
    """Merges steps in a thread, one merge at a time. Not thread-safe."""

    def __init__(self, indexes: OffsetCache, numbers: Iterator[int]) -> None:
        """`numbers` name the run's files and steps."""
        self._indexes, self._numbers = indexes, numbers
        self._pool = ThreadPoolExecutor(1, "merge")
        self._running: StepMerge | None = None

    def begin(self, owner: str, folder: str, parts: tuple[Step, ...]) -> None:
        """Begin a merge unless one is running. Files go to `folder`."""
        if self._running is not None or not parts:
            return
        paths: list[str] = []

        def name(ending: str) -> str:
            paths.append(f"{folder}/{next(self._numbers)}-{ending}")
            return paths[-1]

        keys = [self._indexes.of(file).keys for step in parts for file in step.files]
        self._running = StepMerge(owner, parts, paths, self._pool.submit(_merged, parts, keys, name))

    def done(self) -> tuple[StepMerge, Step] | None:
        """The finished merge and its step. A failed merge is logged and its files are removed."""
        merge = self._running
        if merge is None or not merge.files.done():
            return None
        self._running = None
        try:
            files = merge.files.result()
        except (LakestoreError, OSError, MemoryError, pa.ArrowException) as error:
            log.warning("presented files of %s are not merged: %s", merge.owner, error)
            self.discard(merge)
            return None
        for each in files:
            self._indexes.put(each.file.path, each.offsets)
        first, last = merge.parts[0], merge.parts[-1]
        step = Step(
            next(self._numbers),
            first.start,
            last.end,
            first.shape,
            tuple(each.file for each in files),
            put_aside(Kills.joined([part.kills for part in merge.parts])),
            _added([part.born for part in merge.parts]),
            _added([part.died for part in merge.parts]),
        )
        return merge, step

    def abandon(self, owner: str) -> None:
        """Give up the merge of a forgotten table; the merge's files are removed when it has ended."""
        merge = self._running
        if merge is not None and merge.owner == owner:
            self._running = None
            merge.files.add_done_callback(lambda _: _remove_all(merge.paths))

    def discard(self, merge: StepMerge) -> None:
        """Remove the files of a merge that is not needed."""
        self._indexes.drop(merge.paths)
        _remove_all(merge.paths)

    def close(self) -> None:
        """Wait for the running merge."""
        self._pool.shutdown(cancel_futures=True)


def _merged(parts: Sequence[Step], keys: Sequence[Ints], name: Callable[[str], str]) -> list[HotFile]:
    """The rows of all steps as new files, ordered by bucket and offset."""
    shape = parts[0].shape
    read = [_rows(file.path, shape.arrow) for step in parts for file in step.files]
    both = np.concatenate(keys) if keys else np.empty(0, np.int64)
    order = np.argsort(both, kind="stable")
    rows = pa.concat_tables(read).take(pa.array(order)) if read else shape.arrow.empty_table()
    return write_pieces(rows, both[order], shape, name)


def _remove_all(paths: Sequence[str]) -> None:
    for path in paths:
        remove(path)


def _rows(location: str, schema: pa.Schema) -> pa.Table:
    with open_file(location) as stream:
        return pq.read_table(stream, partitioning=None, use_threads=False).cast(schema)


def _added(parts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sum(each) & _MASK for each in zip(*parts, strict=True))


log = logging.getLogger("lakestore.present")
THREADS = 2
LEDGERS_MAX = 8
"""The most ledgers kept for one table: the newest, and others of older cuts that are read at the same time."""


class _Table:
    """The kept state of one table."""

    def __init__(self, folder: str, numbers: Iterator[int]) -> None:
        self.files = RunFiles(folder, numbers)
        self._numbers = numbers
        self.answers: dict[int, BuiltFiles] = {}
        """By cut id."""
        self._steps: list[Step] = []
        self._ledgers: list[DeleteLedger] = []
        """Ordered by use, the last used at the end."""
        self._used: dict[int, tuple[Step, ...]] = {}
        self._merged: dict[Step, tuple[Step, ...]] = {}
        """Merged steps that no cut uses yet, and the steps they replace."""
        self._newest: tuple[Window, ...] = ()
        self._base: BaseFiles | None = None
        """The base of the newest ledger, until what is cached of other files is removed."""
        self._tidied: BaseFiles | None = None
        """The base upon which it was removed last."""

    def known(self) -> ReusableParts:
        """The parts that a new build may use."""
        return ReusableParts(tuple(self._steps), tuple(self._ledgers), self.files.name, self._numbers)

    def keep(self, cut_id: int, outcome: BuildResult) -> list[str]:
        """Record a complete build. Returns the files that were removed because nothing needs them any more."""
        steps = tuple(window.step for window in outcome.windows)
        self._steps += [step for step in steps if step not in self._steps]
        self._ledgers = [*(each for each in self._ledgers if each is not outcome.earlier), outcome.ledger]
        written = self.files.written_bytes(outcome.files)
        self.answers[cut_id], self._used[cut_id] = replace(outcome.answer, written_bytes=written), steps
        self._newest = outcome.windows
        if outcome.base.is_read and outcome.base.manifests and outcome.earlier is None:
            self._base = outcome.base
        self.files.keep(cut_id, outcome.files)
        return self._swept()

    def forget(self, cut_ids: Sequence[int]) -> list[str]:
        """Forget cuts. Returns the files that were removed."""
        for cut_id in cut_ids:
            del self.answers[cut_id], self._used[cut_id]
        self.files.forget(cut_ids)
        return self._swept()

    def to_merge(self) -> tuple[Step, ...]:
        """Steps of the newest cut that should be merged."""
        return to_merge(self._newest) if not self._merged else ()

    def tidy(self) -> None:
        """Remove what is cached of files that the newest base no longer has.

        The base before it is not known in a new process, and for a table whose cuts had all expired.
        """
        base, before = self._base, self._tidied
        self._base, self._tidied = None, base or before
        if base is None or base is before:
            return
        try:
            if before is None:
                base.forget_others()
            else:
                base.forget_left(before)
        except (OSError, LakestoreError) as error:
            log.warning("cached values of %s are not removed: %s", base.group, error)

    def merged(self, parts: tuple[Step, ...], step: Step) -> bool:
        """Record a merged step. False if a part of it was removed meanwhile, so that the merge is useless."""
        if not all(part in self._steps for part in parts):
            return False
        self._steps.append(step)
        self._merged[step] = parts
        self.files.adopt(file.path for file in step.files)
        return True

    def _swept(self) -> list[str]:
        """Drop steps and ledgers that no cut needs, with their files."""
        used = {step for steps in self._used.values() for step in steps}
        self._merged = {one: parts for one, parts in self._merged.items() if one not in used and used.issuperset(parts)}
        used |= self._merged.keys()
        self._steps = [step for step in self._steps if step in used]
        fresh = [each for each in self._ledgers if all(window.step in used for window in each.windows)]
        self._ledgers = fresh[-LEDGERS_MAX:] if self.answers else []
        needed = {file.path for step in self._steps for file in step.files}
        needed |= {file.path for each in self._ledgers for hidden in each.hidden.values() for file in hidden.deletes}
        return self.files.sweep(needed)


class SnapshotBuilder:
    """Builds cuts of all tables. Not thread-safe."""

    def __init__(self, run: str, room: Room = DEFAULT_ROOM) -> None:
        """`run` names the folder of this process under each table's."""
        self._run, self._numbers = run, itertools.count(1)
        self._tables: dict[str, _Table] = {}
        pool = ThreadPoolExecutor(THREADS, "present")
        folder = Path(room.cache_folder) if room.cache_folder else None
        cache = DerivedCache(folder, room.cache_bytes, free_bytes_min=room.free_bytes_min)
        kept = OffsetCache(cache, memory_bytes=room.offsets_memory, pool=pool, working=yield_point)
        self._kept, self._told = kept, kept.figures
        self._asked: Mapping[str, int] = {}
        """Requests to the object store that were reported."""
        self._tools = Tools(Bases(Manifests(room.manifests_memory, cache), kept), kept, pool)
        self._merger = StepMerger(self._tools.indexes, self._numbers)

    def present(self, request: BuildRequest, fetch: Fetch) -> BuiltFiles:
        """The files of a table at a cut. Building the same cut again returns the same files."""
        answer = self._presented(request, fetch)
        before, self._told = self._told, self._kept.figures
        read, evicted = self._told.read - before.read, self._told.evicted - before.evicted
        asked, self._asked = self._asked, store_counts.of_process().by_kind()
        requests = {kind: count - asked.get(kind, 0) for kind, count in self._asked.items()}
        return replace(answer, offsets_read=read, offsets_evicted=evicted, requests=requests)

    def _presented(self, request: BuildRequest, fetch: Fetch) -> BuiltFiles:
        self._merge_done()
        scan = plan.decode(pb.PlanAnswer.FromString(request.plan)).tables[0]
        with _named(scan.table.name, request.folder):
            table = self._known(request.folder) or _Table(f"{request.folder}/{self._run}", self._numbers)
        if request.cut_id in table.answers:
            return table.answers[request.cut_id]
        if request.format < request.base.format:
            raise Invalid(
                f"table {scan.table.name} has format version {request.base.format}: it cannot be presented as"
                f" version {request.format}"
            )
        try:
            with _named(scan.table.name, request.folder):
                table.files.begin()
                outcome = SnapshotBuild(self._tools, table.known(), request, scan, fetch).done()
        except BaseException:
            self._tools.indexes.drop(table.files.discard_new())
            raise
        self._tables[request.folder] = table
        self._tools.indexes.drop(table.keep(request.cut_id, outcome))
        return table.answers[request.cut_id]

    def forget(self, cut_ids: Sequence[int]) -> None:
        """Forget cuts whose leases have expired, and remove what no cut needs any more."""
        self._merge_done()
        for folder, table in list(self._tables.items()):
            self._forget(folder, table, [cut_id for cut_id in cut_ids if cut_id in table.answers])

    def _forget(self, folder: str, table: _Table, gone: Sequence[int]) -> None:
        if gone:
            self._tools.indexes.drop(table.forget(gone))
        if not table.answers:
            del self._tables[folder]
            self._merger.abandon(folder)

    def _known(self, folder: str) -> _Table | None:
        """The kept state of a table; None if somebody removed its files."""
        table = self._tables.get(folder)
        if table is not None and table.files.is_gone():
            log.warning("presented files in %s were removed by somebody: they are written again", table.files.folder)
            self._forget(folder, table, list(table.answers))
            return None
        return table

    def close(self) -> None:
        """End the threads."""
        self._merger.close()
        self._tools.pool.shutdown(cancel_futures=True)

    def tidy(self) -> None:
        """Begin work in the background that makes later builds cheaper. Called after each answer."""
        self._merge_done()
        for folder, table in self._tables.items():
            table.tidy()
            self._merger.begin(folder, table.files.folder, table.to_merge())

    def _merge_done(self) -> None:
        done = self._merger.done()
        if done is None:
            return
        merge, step = done
        table = self._tables.get(merge.owner)
        if table is None or not table.merged(merge.parts, step):
            self._merger.discard(merge)


@contextmanager
def _named(table: str, folder: str) -> Iterator[None]:
    """Turns errors of storage and memory into errors that name the table."""
    try:
        yield
    except LakestoreError:
        raise
    except (OSError, MemoryError, pa.ArrowException) as error:
        raise Unavailable(
            f"table {table} cannot be presented in {folder} ({error}): free space or memory, then read again"
        ) from error
