"""One presenting: what a table at a cut needs beside its base, fetched, written, checked and described.

Nothing that is kept is changed here: the outcome is handed back whole, or an error is raised. An outcome is checked by
the plan's live sums and row counts: it is exact, or it is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lakestore.errors import Internal, PositionExpired
from lakestore.lake.offset_cache import OffsetCache
from lakestore.union.plan import TableScan
from lakestore_server.present.base_files import BaseFiles, Bases
from lakestore_server.present.deletes import Deaths, Found, Ledger, hide
from lakestore_server.present.hot_files import Fetch, StepWriter
from lakestore_server.present.messages import Present, Presented
from lakestore_server.present.shape import Shape
from lakestore_server.present.snapshot import Snapshot
from lakestore_server.present.steps import Gap, Heads, Step, Window, absorbed, cover, inside, live_sums

_MASK = (1 << 64) - 1
_Sums = npt.NDArray[Any]
"""Live sums per bucket, as integers without end."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Everything that presentings share."""

    bases: Bases
    indexes: OffsetCache
    pool: Executor


@dataclass(frozen=True, slots=True)
class Known:
    """Everything that is kept of a table, to be used again."""

    steps: Sequence[Step]
    ledgers: Sequence[Ledger]
    name: Callable[[str], str]
    """Gives the URI of a new file with that ending."""
    numbers: Iterator[int]
    """Numbers of new steps."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A presenting that is complete."""

    answer: Presented
    files: Mapping[str, int]
    """Every file that the cut is made of, the base's manifests among them, with its bytes."""
    windows: tuple[Window, ...]
    base: BaseFiles
    ledger: Ledger
    earlier: Ledger | None
    """The ledger that this one was made of."""


class Presenting:
    """One presenting, used once."""

    def __init__(self, tools: Tools, known: Known, request: Present, scan: TableScan, fetch: Fetch) -> None:
        self._tools, self._known, self._request, self._scan, self._fetch = tools, known, request, scan, fetch
        self._start: Heads = tuple(bucket.tier_point for bucket in scan.buckets)
        self._end: Heads = tuple(bucket.head for bucket in scan.buckets)
        self._specs = {spec["spec-id"]: spec for spec in request.specs}
        default, flat = self._specs[request.default_spec_id], self._specs[request.flat_spec_id]
        self._shape = Shape(scan.table, request.schema, default, flat)
        self._took: dict[str, float] = {}

    def done(self) -> Outcome:
        """The files of the cut, written and checked."""
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
            answer, files = Snapshot(request, self._specs, name).written(base, ledger, self._took)
        return Outcome(answer, files, windows, base, ledger, earlier)

    def _windows(self) -> tuple[Window, ...]:
        """The steps that show the cut's hot range; those that are missing are fetched and written."""
        scan, steps = self._scan, self._known.steps
        settles = scan.table.keyed and not scan.in_lake
        parts = absorbed(cover(steps, scan.table, self._start, self._end))
        with self._clock("fetch"):
            try:
                return tuple(self._filled(part, settles=settles) for part in parts)
            except PositionExpired:
                if not settles:
                    raise
            # The log of a table that was never tiered may start anywhere up to the cut.
            return (self._filled(Gap(self._start, self._end), settles=True),)

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

    def _earlier(self) -> Ledger | None:
        """The ledger of the newest cut upon the same base that is not newer than this one."""
        wanted = self._request.base.manifest_list, self._request.format, self._start
        usable = [
            each
            for each in self._known.ledgers
            if (each.base, each.format, each.start) == wanted and sum(each.end) <= sum(self._end)
        ]
        return max(usable, key=lambda each: sum(each.end), default=None)

    def _found(
        self, base: BaseFiles, earlier: Ledger | None, windows: tuple[Window, ...]
    ) -> tuple[Ledger, Sequence[Found]]:
        """A ledger of the cut, and what it does not hide yet."""
        deaths = Deaths(self._scan.table.name, base, self._tools.indexes)
        name, form = self._request.base.manifest_list, self._request.format
        if self._scan.lake_beyond:
            ledger = Ledger(name, form, self._start, self._end)
            return ledger, deaths.beyond(ledger)
        return deaths.since(earlier or Ledger(name, form, self._start, self._start), windows, self._end)

    def _check(self, base: BaseFiles, ledger: Ledger) -> None:
        """`Internal` if the files do not show the rows that live at the cut."""
        scan = self._scan
        shown = base.live_rows
        if shown is not None:
            shown += sum(window.step.rows for window in ledger.windows) - ledger.rows
            if shown != scan.live_rows:
                raise Internal(
                    f"table {scan.table.name} has {scan.live_rows} live rows at the cut, and {shown} would be shown"
                )
        if scan.lake_beyond or (scan.in_lake and scan.tier is None):
            return
        sums = np.array(scan.tier.live_sum if scan.tier else [0] * len(scan.buckets), dtype=object)
        for window in ledger.windows:
            sums += self._moved(window)
        for bucket, total in zip(scan.buckets, sums, strict=True):
            if int(total) & _MASK != bucket.live_sum:
                raise Internal(f"table {scan.table.name}: bucket {bucket.bucket} would show other rows than live there")

    def _moved(self, window: Window) -> _Sums:
        """The change of each bucket's live sum by a part of a step."""
        step = window.step
        if window.is_whole:
            whole: _Sums = np.array(step.born, dtype=object) - np.array(step.died, dtype=object)
            return whole
        moved: _Sums = np.zeros(len(step.start), dtype=object)
        for file in step.files:
            keys = self._tools.indexes.of(file).keys
            moved += np.array(live_sums(inside(keys, window.start, window.end), len(moved)), dtype=object)
        moved -= np.array(live_sums(np.sort(window.kills.victims), len(moved)), dtype=object)
        return moved

    @contextmanager
    def _clock(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._took[what] = self._took.get(what, 0.0) + (time.perf_counter() - begin) * 1000
