"""The rows of data files that a cut hides, and the delete files that hide them.

- A ledger lists what a cut hides on top of one base: in base files the rows that died since the tier point; in hot
  files the dead rows and the rows outside of the shown part of a step.
- The ledger of a later cut is derived from that of an earlier cut, plus new deaths.
- Format version 2: a data file collects a few position-delete files. Version 3: it has one vector of all hidden rows,
  including the rows that the base's own deletes hide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

import numpy as np

from lakestore.errors import Internal
from lakestore.iceberg import places, position_deletes, puffin
from lakestore.iceberg.manifests import POSITION_DELETES, Entry, File
from lakestore.iceberg.offset_cache import OffsetCache
from lakestore.iceberg.row_search import RowSearch
from lakestore.iceberg.values import Metrics
from lakestore_server.host.yield_points import yield_point
from lakestore_server.snapshots.base_files import NO_POSITIONS, PUFFIN, BaseFiles, union, vector_of
from lakestore_server.snapshots.steps import Heads, Ints, Kills, Window, inside, outside

FILES_MAX = 4
"""With so many delete files for one data file, the small ones are merged."""
Name = Callable[[str], str]
"""Returns a new file's URI with the given ending."""


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """The rows of one data file that a cut hides, beyond those that the base's own deletes hide."""

    file: File
    """The data file."""
    rows: int
    """The number of hidden rows. A row dies once, so new deaths are never counted twice."""
    deletes: tuple[File, ...]
    """The delete files that name the rows, or the one vector."""
    base: Entry | None = None
    """The data file's entry in the base; None for a hot file."""
    replaced: tuple[str, ...] = ()
    """`vector_key` of each vector of the base that this one replaces."""


@dataclass(frozen=True, slots=True)
class DeleteLedger:
    """Everything that a cut hides on top of one base."""

    base: str
    """The base's manifest list."""
    format: int
    start: Heads
    """The tier point."""
    end: Heads
    windows: tuple[Window, ...] = ()
    hidden: Mapping[str, HiddenRows] = field(default_factory=dict)
    """By path of the data file."""

    @property
    def rows(self) -> int:
        """The number of hidden rows."""
        return sum(each.rows for each in self.hidden.values())


@dataclass(frozen=True, slots=True)
class RowsToHide:
    """Rows of one data file that are to be hidden."""

    file: File
    positions: Ints
    base: Entry | None = None
    is_partial: bool = False
    """Whether only a part of a hot data file is shown. A later cut may show rows that this cut hides."""


class Deaths:
    """Looks up the rows that a cut hides in addition to a ledger. Writes nothing."""

    def __init__(self, table: str, base: BaseFiles, indexes: OffsetCache) -> None:
        self._table, self._base, self._indexes = table, base, indexes

    def since(
        self, ledger: DeleteLedger, windows: Sequence[Window], end: Heads
    ) -> tuple[DeleteLedger, list[RowsToHide]]:
        """(the ledger without files that the cut does not read, the additional rows to hide).

        Every row that the log says is dead must be found. If not, it would be shown, so `Internal` is raised.
        """
        same = 0
        while same < min(len(windows), len(ledger.windows)) and windows[same] == ledger.windows[same]:
            same += 1
        old, new = windows[:same], windows[same:]
        gone = {file.path for window in ledger.windows[same:] for file in window.step.files}
        kept = {path: hidden for path, hidden in ledger.hidden.items() if path not in gone}
        all_new = Kills.joined([window.kills for window in new])
        fresh = all_new if same == len(ledger.windows) else all_new.within(ledger.end, end)
        superseded = np.sort(fresh.superseded)
        all_superseded = superseded if fresh is all_new else np.sort(all_new.superseded)
        found = list(self._in_base(inside(superseded, (0,) * len(end), ledger.start), ledger.start))
        found += [each for window in old for each in self._in_window(window, superseded)]
        for window in new:
            found += self._in_window(window, all_superseded)
            found += self._outside(window)
        return replace(ledger, end=end, windows=tuple(windows), hidden=kept), found

    def beyond(self, ledger: DeleteLedger) -> list[RowsToHide]:
        """The base's rows after the cut."""
        return [RowsToHide(dead.entry.file, dead.positions, dead.entry) for dead in self._base.beyond(ledger.end)]

    def _in_base(self, superseded: Ints, start: Heads) -> Iterator[RowsToHide]:
        count = 0
        for dead in self._base.find(superseded):
            count += len(dead.positions)
            yield RowsToHide(dead.entry.file, dead.positions, dead.entry)
        if count != len(superseded):
            raise Internal(
                f"table {self._table}: {len(superseded)} rows below tier point {list(start)} have died, but only"
                f" {count} of them were found in the lake"
            )

    def _in_window(self, window: Window, superseded: Ints) -> Iterator[RowsToHide]:
        sought = inside(superseded, window.start, window.end)
        if not len(sought):
            return
        search, count = RowSearch(sought), 0
        for file in window.step.files:
            index = self._indexes.of(file)
            if len(held := search.places(index.keys)):
                count += len(held)
                yield RowsToHide(file, index.positions(held), is_partial=not window.is_whole)
        if count != len(sought):
            raise Internal(
                f"table {self._table}: {len(sought)} hot rows have died, but only {count} of them were found in step"
                f" {window.step.number}"
            )

    def _outside(self, window: Window) -> Iterator[RowsToHide]:
        for file in () if window.is_whole else window.step.files:
            index = self._indexes.of(file)
            hidden = outside(index.keys, window.start, window.end)
            if len(hidden):
                yield RowsToHide(file, index.positions(hidden), is_partial=True)


def hide(
    ledger: DeleteLedger, found: Iterable[RowsToHide], base: BaseFiles, name: Name, pool: Executor
) -> DeleteLedger:
    """The ledger with these rows hidden too, by new delete files (version 2) or vectors (version 3)."""
    hidden = dict(ledger.hidden)
    parts: dict[str, list[RowsToHide]] = {}
    for each in found:
        parts.setdefault(each.file.path, []).append(each)
    more = [replace(each[0], positions=union([one.positions for one in each])) for each in parts.values()]
    if ledger.format >= 3:
        made = _vectors(hidden, more, base, name)
    else:
        made = []
        for one in pool.map(lambda one: _position_deletes(hidden.get(one.file.path), one, name), more):
            yield_point()
            made.append(one)
    hidden |= {each.file.path: each for each in made}
    return replace(ledger, hidden=hidden)


def vector_key(file: File) -> str:
    """Identifies one vector in a Puffin file."""
    return f"{file.path}#{file.content_offset}"


def _position_deletes(old: HiddenRows | None, more: RowsToHide, name: Name) -> HiddenRows:
    """A data file's hidden rows plus new ones. If there are many delete files, the smallest are merged."""
    fresh = more.positions
    rows = len(fresh) + (0 if old is None else old.rows)
    deletes = () if old is None else old.deletes
    kept = deletes if len(deletes) < FILES_MAX else deletes[: _worth_keeping(deletes, len(fresh))]
    fresh = union([fresh, *(_read(each) for each in deletes[len(kept) :])])
    return HiddenRows(more.file, rows, (*kept, _write(more.file, fresh, name)), more.base)


def _worth_keeping(deletes: Sequence[File], rows: int) -> int:
    """The number of delete files to keep: each of them is larger than all later ones together."""
    count = len(deletes) - 1
    rows += deletes[count].rows
    while count and deletes[count - 1].rows < rows:
        count -= 1
        rows += deletes[count].rows
    return count


def _read(delete: File) -> Ints:
    (positions,) = position_deletes.decode(places.read(delete.path), delete.path).values()
    return positions


def _write(file: File, positions: Ints, name: Name) -> File:
    data = position_deletes.encode(file.path, positions)
    location = name("deletes.parquet")
    places.write(location, data)
    return replace(_delete_of(file), path=location, format="PARQUET", rows=len(positions), bytes=len(data))


def path_bounds(path: str) -> Metrics:
    """Path bounds, by which readers without `referenced_data_file` see that a delete file is for one data file."""
    said = {position_deletes.PATH_ID: path.encode()}
    return Metrics(lower=said, upper=said)


def _delete_of(file: File) -> File:
    """A delete file's entry for a data file: it has the same partition, and names the path twice, also as bounds."""
    return File(
        content=POSITION_DELETES,
        path="",
        format="",
        spec_id=file.spec_id,
        partition=file.partition,
        rows=0,
        bytes=0,
        metrics=path_bounds(file.path),
        referenced_data_file=file.path,
    )


def _vectors(
    hidden: Mapping[str, HiddenRows], found: Sequence[RowsToHide], base: BaseFiles, name: Name
) -> list[HiddenRows]:
    """All changed vectors in one Puffin file; vectors of partially shown files have a Puffin file each.

    PyIceberg applies every vector in a Puffin file that it reads, including replaced ones. That is harmless as long as
    the new vector hides the same rows and more, which is not so for partially shown files.
    """
    made = [each for more in found if more.is_partial for each in _together(hidden, [more], base, name)]
    return made + _together(hidden, [more for more in found if not more.is_partial], base, name)


def _together(
    hidden: Mapping[str, HiddenRows], found: Sequence[RowsToHide], base: BaseFiles, name: Name
) -> list[HiddenRows]:
    """Write vectors to one Puffin file."""
    made, held = [], []
    for more in found:
        old = hidden.get(more.file.path)
        if old is None:
            earlier, older = base.deleted(more.base) if more.base is not None else (NO_POSITIONS, [])
            replaced = tuple(vector_key(entry.file) for entry in older)
            now = HiddenRows(more.file, len(more.positions), (), more.base, replaced)
        else:
            earlier = vector_of(old.deletes[0])
            now = replace(old, rows=old.rows + len(more.positions))
        made.append(now)
        held.append(union([more.positions, earlier]))
    if not made:
        return []
    data, spots = puffin.puffin([(each.file.path, vector) for each, vector in zip(made, held, strict=True)])
    location = name("vectors.puffin")
    places.write(location, data)
    vectors = [
        replace(
            _delete_of(each.file),
            path=location,
            format=PUFFIN,
            rows=len(vector),
            bytes=len(data),
            content_offset=offset,
            content_size=size,
        )
        for each, vector, (offset, size) in zip(made, held, spots, strict=True)
    ]
    return [replace(each, deletes=(vector,)) for each, vector in zip(made, vectors, strict=True)]
