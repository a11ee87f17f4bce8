"""The rows that a cut does not show, per data file, and the files that say so.

A ledger is what is hidden upon one base up to one cut: in base files the rows that died since the tier point, in hot
files those and the rows outside the part of the step that is shown. The ledger of a later cut is made of an earlier
one's and of what is new. Of version 2 each data file collects a few delete files; of version 3 it has one vector, the
whole of what is hidden of it, the base's own deletes included.
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
from lakestore_server.snapshots.base_files import NO_POSITIONS, PUFFIN, BaseFiles, union, vector_of
from lakestore_server.snapshots.steps import Heads, Ints, Kills, Window, inside, outside

FILES_MAX = 4
"""Delete files of one data file, from which on the small ones are merged."""
Name = Callable[[str], str]
"""Gives the URI of a new file with that ending."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """The rows of one data file that a cut does not show, beside those that the base's own deletes hide."""

    file: File
    """The data file."""
    rows: int
    """The number of these rows. A row dies once, so what is new is never among them already."""
    deletes: tuple[File, ...]
    """The delete files that name them, or the one vector."""
    base: Entry | None = None
    """The data file's entry in the base; None of a hot file."""
    replaced: tuple[str, ...] = ()
    """The base's vectors that are merged into this one, by `vector_key`."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Everything that is hidden upon one base up to a cut."""

    base: str
    """The base's manifest list."""
    format: int
    start: Heads
    """The tier point."""
    end: Heads
    windows: tuple[Window, ...] = ()
    hidden: Mapping[str, Hidden] = field(default_factory=dict)
    """By data file."""

    @property
    def rows(self) -> int:
        """Rows that are hidden."""
        return sum(each.rows for each in self.hidden.values())


@dataclass(frozen=True, slots=True)
class Found:
    """Rows that are to be hidden of one data file."""

    file: File
    positions: Ints
    base: Entry | None = None
    is_partial: bool = False
    """Whether it is a hot file of which a part is shown: a later cut may show rows that this one hides."""


class Deaths:
    """Look-ups of the rows that a cut hides more than a ledger; nothing is written."""

    def __init__(self, table: str, base: BaseFiles, indexes: OffsetCache) -> None:
        self._table, self._base, self._indexes = table, base, indexes

    def since(self, ledger: Ledger, windows: Sequence[Window], end: Heads) -> tuple[Ledger, list[Found]]:
        """The ledger without the files that the cut does not read, and the rows to be hidden beside it.

        Every row that the log says is dead must be found; `Internal` otherwise, as it would be shown.
        """
        same = 0
        while same < min(len(windows), len(ledger.windows)) and windows[same] == ledger.windows[same]:
            same += 1
        old, new = windows[:same], windows[same:]
        gone = {file.path for window in ledger.windows[same:] for file in window.step.files}
        kept = {path: hidden for path, hidden in ledger.hidden.items() if path not in gone}
        all_new = Kills.joined([window.kills for window in new])
        fresh = all_new if same == len(ledger.windows) else all_new.within(ledger.end, end)
        victims = np.sort(fresh.victims)
        everyone = victims if fresh is all_new else np.sort(all_new.victims)
        found = list(self._in_base(inside(victims, (0,) * len(end), ledger.start), ledger.start))
        found += [each for window in old for each in self._in_window(window, victims)]
        for window in new:
            found += self._in_window(window, everyone)
            found += self._outside(window)
        return replace(ledger, end=end, windows=tuple(windows), hidden=kept), found

    def beyond(self, ledger: Ledger) -> list[Found]:
        """The base's rows that came after the cut."""
        return [Found(dead.entry.file, dead.positions, dead.entry) for dead in self._base.beyond(ledger.end)]

    def _in_base(self, victims: Ints, start: Heads) -> Iterator[Found]:
        count = 0
        for dead in self._base.find(victims):
            count += len(dead.positions)
            yield Found(dead.entry.file, dead.positions, dead.entry)
        if count != len(victims):
            raise Internal(
                f"table {self._table}: {len(victims)} rows below tier point {list(start)} have died, and {count} of"
                " them were found in the lake"
            )

    def _in_window(self, window: Window, victims: Ints) -> Iterator[Found]:
        sought = inside(victims, window.start, window.end)
        if not len(sought):
            return
        search, count = RowSearch(sought), 0
        for file in window.step.files:
            index = self._indexes.of(file)
            if len(held := search.places(index.keys)):
                count += len(held)
                yield Found(file, index.positions(held), is_partial=not window.is_whole)
        if count != len(sought):
            raise Internal(
                f"table {self._table}: {len(sought)} hot rows have died, and {count} of them were found in step"
                f" {window.step.number}"
            )

    def _outside(self, window: Window) -> Iterator[Found]:
        for file in () if window.is_whole else window.step.files:
            index = self._indexes.of(file)
            hidden = outside(index.keys, window.start, window.end)
            if len(hidden):
                yield Found(file, index.positions(hidden), is_partial=True)


def hide(ledger: Ledger, found: Iterable[Found], base: BaseFiles, name: Name, pool: Executor) -> Ledger:
    """The ledger with these rows hidden as well: delete files of version 2, vectors of version 3."""
    hidden = dict(ledger.hidden)
    parts: dict[str, list[Found]] = {}
    for each in found:
        parts.setdefault(each.file.path, []).append(each)
    more = [replace(each[0], positions=union([one.positions for one in each])) for each in parts.values()]
    if ledger.format >= 3:
        made = _vectors(hidden, more, base, name)
    else:
        made = list(pool.map(lambda one: _position_deletes(hidden.get(one.file.path), one, name), more))
    hidden |= {each.file.path: each for each in made}
    return replace(ledger, hidden=hidden)


def vector_key(file: File) -> str:
    """One vector among those of a Puffin file."""
    return f"{file.path}#{file.content_offset}"


def _position_deletes(old: Hidden | None, more: Found, name: Name) -> Hidden:
    """A data file's rows with new ones hidden; the smallest of many delete files are merged."""
    fresh = more.positions
    rows = len(fresh) + (0 if old is None else old.rows)
    deletes = () if old is None else old.deletes
    kept = deletes if len(deletes) < FILES_MAX else deletes[: _worth_keeping(deletes, len(fresh))]
    fresh = union([fresh, *(_read(each) for each in deletes[len(kept) :])])
    return Hidden(more.file, rows, (*kept, _write(more.file, fresh, name)), more.base)


def _worth_keeping(deletes: Sequence[File], rows: int) -> int:
    """The number of delete files that are larger than all that come after them."""
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
    """The bounds by which readers that know no better see that a delete file is about this data file alone."""
    said = {position_deletes.PATH_ID: path.encode()}
    return Metrics(lower=said, upper=said)


def _delete_of(file: File) -> File:
    """A delete file of a data file: it has the partition and names the path, by bounds as well."""
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


def _vectors(hidden: Mapping[str, Hidden], found: Sequence[Found], base: BaseFiles, name: Name) -> list[Hidden]:
    """All vectors that changed, in one Puffin file, but for those of parts of files, which have one each.

    PyIceberg takes every vector in a Puffin file that a scan reads, also one that is replaced. That does no harm as
    long as the new one hides the same rows and more.
    """
    made = [each for more in found if more.is_partial for each in _together(hidden, [more], base, name)]
    return made + _together(hidden, [more for more in found if not more.is_partial], base, name)


def _together(hidden: Mapping[str, Hidden], found: Sequence[Found], base: BaseFiles, name: Name) -> list[Hidden]:
    """Vectors in one Puffin file."""
    made, held = [], []
    for more in found:
        old = hidden.get(more.file.path)
        if old is None:
            earlier, older = base.deleted(more.base) if more.base is not None else (NO_POSITIONS, [])
            replaced = tuple(vector_key(entry.file) for entry in older)
            now = Hidden(more.file, len(more.positions), (), more.base, replaced)
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
