"""A power cut: the files of a folder, once all its processes are gone, become what the disk could have held.

Of each file everything up to its last sync is there. Of the rest nothing, the first writes with the next one torn at a
byte or a sector, any sectors, or all may be there; sectors that are not hold what was there before, or zeros. A name is
durable after the sync of its folder; of later changes of a folder none, the first, any or all may be there, a rename
whole or not at all. What was unsynced at a sync that failed never gets to the disk, though later syncs succeed. All is
drawn from one chance. Files that did not come through the shim are as they are.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from jepsen.system.undo import Flag, Kind, Record, records

SECTOR = 512


@dataclass(slots=True, eq=False)
class _Write:
    record: Record
    durable: bool = False
    doomed: bool = False
    """A sync of it has failed."""
    new: bytes = b""


@dataclass(slots=True, eq=False)
class _Node:
    """A file or a folder, whatever its names."""

    number: int
    is_folder: bool
    place: Path | None = None
    """A path by which it can be reached now."""
    writes: list[_Write] = field(default_factory=list)
    names: dict[str, _Node] = field(default_factory=dict)
    """Of a folder."""
    changes: list[_Change] = field(default_factory=list)
    """Of a folder, those that were not synced."""


_Naming = tuple[_Node, str, _Node | None, _Node | None]
"""(folder, name, what had it, what has it)."""


@dataclass(slots=True, eq=False)
class _Change:
    """Names that change together."""

    sequence: int
    namings: Sequence[_Naming]
    kept: bool = False
    is_undone: bool = False

    def undo(self) -> None:
        """Go back, unless the names have been changed by somebody else, or by a deed that was never told."""
        self.is_undone = all(folder.names.get(name) is after for folder, name, _, after in self.namings)
        for folder, name, before, _ in reversed(self.namings) if self.is_undone else ():
            _give(folder, name, before)

    def redo(self) -> None:
        """Go on again."""
        for folder, name, _, after in self.namings if self.is_undone else ():
            _give(folder, name, after)


def _give(folder: _Node, name: str, node: _Node | None) -> None:
    if node is None:
        folder.names.pop(name, None)
    else:
        folder.names[name] = node


def cut(side: Path, root: Path, chance: random.Random) -> dict[str, Any]:
    """Cut power of the files in `root`, whose shim has `side`, and which no process has open. What was done is told as
    numbers of files, names and bytes."""
    story = _Story(root)
    for record in records(side):
        story.tell(record)
    story.attach(side)
    names = story.lose_names(chance)
    nodes = sorted(_files(story.top), key=lambda node: node.number)
    lost = [_lose_writes(node, chance) for node in nodes if any(not write.durable for write in node.writes)]
    _build(story, side / "held")
    for log in side.glob("log-*"):
        log.unlink()
    shutil.rmtree(side / "gone")
    (side / "gone").mkdir()
    return {"names": names, "files": sum(map(bool, lost)), "bytes": sum(lost)}


class _Story:
    """The files as they are now, and how they came to be."""

    def __init__(self, root: Path) -> None:
        self.top = _Node(root.stat().st_ino, is_folder=True, place=root)
        self._live = {self.top.number: self.top}
        self._changes: list[_Change] = []

    def tell(self, record: Record) -> None:
        """The next deed."""
        node = self._node(record)
        match record.kind:
            case Kind.WRITE:
                node.writes.append(_Write(record))
            case Kind.SYNC:
                _sync(node, record.since)
            case Kind.DURABLE:
                for write in node.writes[-1:]:
                    write.durable = True
            case Kind.NO_SYNC:
                _doom(node, record.since)
            case Kind.SYNC_FOLDER:
                for change in node.changes:
                    change.kept = change.kept or change.sequence < record.since
                node.changes = [change for change in node.changes if not change.kept]
            case Kind.NAME | Kind.REMOVE | Kind.RENAME:
                self._change(record, node)

    def _node(self, record: Record) -> _Node:
        if Flag.NEW in record.flags:
            self._live.pop(record.node, None)
        is_folder = Flag.FOLDER in record.flags or record.kind is Kind.SYNC_FOLDER
        return self._live.setdefault(record.node, _Node(record.node, is_folder))

    def _change(self, record: Record, node: _Node) -> None:
        namings: list[_Naming]
        folder = self._live.setdefault(record.folder, _Node(record.folder, is_folder=True))
        if record.kind is Kind.NAME:
            namings = [(folder, record.name, None, node)]
        elif record.kind is Kind.REMOVE:
            namings = [(folder, record.name, node, None)]
            if node.is_folder:
                self._live.pop(node.number)
        else:
            replaced = self._live.setdefault(record.at, _Node(record.at, is_folder=False)) if record.at else None
            source = self._live.setdefault(record.since, _Node(record.since, is_folder=True))
            namings = [(folder, record.name, replaced, node), (source, record.old_name, node, None)]
        change = _Change(record.sequence, namings)
        folder.changes.append(change)
        self._changes.append(change)

    def attach(self, side: Path) -> None:
        """Find the names and contents of now."""
        for node in list(self._live.values()):
            held = side / "gone" / str(node.number)
            if not node.is_folder and held.exists():
                node.place = held
        folders = [self.top]
        while folders:
            folder = folders.pop()
            assert folder.place is not None
            for entry in os.scandir(folder.place):
                is_folder = entry.is_dir(follow_symlinks=False)
                found = self._live.setdefault(entry.inode(), _Node(entry.inode(), is_folder))
                found.place = Path(entry.path)
                folder.names[entry.name] = found
                if is_folder:
                    folders.append(found)

    def lose_names(self, chance: random.Random) -> int:
        """Undo changes of names, and do again those that were durable or that fate keeps; the number of lost ones."""
        first = next((n for n, change in enumerate(self._changes) if not change.kept), len(self._changes))
        later = self._changes[first:]
        for change in reversed(later):
            change.undo()
        by_folder: dict[int, list[_Change]] = {}
        for change in later:
            if not change.kept:
                by_folder.setdefault(id(change.namings[0][0]), []).append(change)
        for changes in by_folder.values():
            for change, kept in zip(changes, _kept(len(changes), chance), strict=True):
                change.kept = kept
        for change in later:
            if change.kept:
                change.redo()
        return sum(change.is_undone and not change.kept for change in later)


def _kept(count: int, chance: random.Random) -> list[bool]:
    """Which of some unordered deeds got to the disk: none, the first, any or all."""
    match chance.choice(("none", "first", "any", "all")):
        case "none":
            return [False] * count
        case "first":
            most = chance.randint(0, count)
            return [n < most for n in range(count)]
        case "any":
            return [chance.random() < 0.5 for _ in range(count)]
    return [True] * count


def _sync(node: _Node, since: int) -> None:
    for write in node.writes:
        write.durable = write.durable or (write.record.sequence < since and not write.doomed)
    first = next((n for n, write in enumerate(node.writes) if not write.durable), len(node.writes))
    del node.writes[:first]


def _doom(node: _Node, since: int) -> None:
    for write in node.writes:
        write.doomed = write.doomed or (write.record.sequence < since and not write.durable)


def _files(folder: _Node) -> set[_Node]:
    found: set[_Node] = set()
    for node in folder.names.values():
        found |= _files(node) if node.is_folder else {node}
    return found


def _lose_writes(node: _Node, chance: random.Random) -> int:
    """Undo all since the first write that is not durable, then do again what got to the disk; the lost bytes."""
    if node.place is None:
        return 0
    first = next(n for n, write in enumerate(node.writes) if not write.durable)
    later = node.writes[first:]
    with node.place.open("r+b", buffering=0) as file:
        for write in reversed(later):
            record = write.record
            if Flag.CUT not in record.flags:
                write.new = os.pread(file.fileno(), record.count, record.at)
            _put(file, record.at, record.old)
            file.truncate(record.size)
        pending = [write for write in later if not write.durable and not write.doomed]
        fates = dict(zip(map(id, pending), _fates(pending, chance), strict=True))
        lost = 0
        for write in later:
            if write.durable:
                _apply(file, write, [(0, len(write.new))])
            elif write.doomed:
                lost += len(write.new)
                if chance.random() < 0.5:
                    _grow(file, write)
            else:
                pieces = fates[id(write)]
                lost += len(write.new) - sum(end - begin for begin, end in pieces or ())
                if pieces is not None:
                    _apply(file, write, pieces)
    return lost


def _put(file: IO[bytes], at: int, data: bytes) -> None:
    while data:
        written = os.pwrite(file.fileno(), data, at)
        at, data = at + written, data[written:]


def _grow(file: IO[bytes], write: _Write) -> None:
    end = write.record.at + len(write.new)
    if Flag.CUT not in write.record.flags and end > os.fstat(file.fileno()).st_size:
        file.truncate(end)


def _apply(file: IO[bytes], write: _Write, pieces: Sequence[tuple[int, int]]) -> None:
    if Flag.CUT in write.record.flags:
        file.truncate(write.record.at)
        return
    for begin, end in pieces:
        _put(file, write.record.at + begin, write.new[begin:end])


def _fates(writes: Sequence[_Write], chance: random.Random) -> Iterator[list[tuple[int, int]] | None]:
    """The pieces of each write that got to the disk; None for a write, or a cut, of which nothing did."""
    fate = chance.choices(("none", "first", "sectors", "all"), (4, 3, 2, 1))[0]
    most = chance.randint(0, len(writes)) if fate == "first" else 0
    for n, write in enumerate(writes):
        size = len(write.new)
        if fate == "all" or n < most:
            yield [(0, size)]
        elif fate == "sectors":
            yield _sectors(write, chance) if size else ([] if chance.random() < 0.5 else None)
        elif fate == "first" and n == most and size:
            yield [(0, chance.randint(0, size))] if chance.random() < 0.5 else _sectors(write, chance)
        else:
            yield None


def _sectors(write: _Write, chance: random.Random) -> list[tuple[int, int]]:
    begin, size = write.record.at, len(write.new)
    edges = [0, *range(SECTOR - begin % SECTOR, size, SECTOR), size]
    return [piece for piece in itertools.pairwise(edges) if chance.random() < 0.5]


def _build(story: _Story, held: Path) -> None:
    """Give the files on the disk the names of the story."""
    root = story.top.place
    assert root is not None
    wanted = dict(_paths(story.top, root))
    held.mkdir(exist_ok=True)
    links: dict[Path, Path] = {}
    for path, node in wanted.items():
        if not node.is_folder and not _is_at(path, node):
            assert node.place is not None, f"the content of {path} is not held"
            links[path] = held / str(node.number)
            with suppress(FileExistsError):
                os.link(node.place, links[path])
    _clear(root, {path for path in wanted if path not in links}, {p for p, node in wanted.items() if node.is_folder})
    for path, node in sorted(wanted.items()):
        if node.is_folder:
            path.mkdir(exist_ok=True)
        elif path in links:
            os.link(links[path], path)
    shutil.rmtree(held)


def _clear(root: Path, kept: set[Path], kept_folders: set[Path]) -> None:
    for place, folders, files in os.walk(root, topdown=False):
        for path in (Path(place) / name for name in files):
            if path not in kept:
                path.unlink()
        for path in (Path(place) / name for name in folders):
            if path not in kept_folders:
                path.rmdir()


def _paths(folder: _Node, above: Path) -> Iterator[tuple[Path, _Node]]:
    for name, node in folder.names.items():
        yield above / name, node
        if node.is_folder:
            yield from _paths(node, above / name)


def _is_at(path: Path, node: _Node) -> bool:
    try:
        return path.lstat().st_ino == node.number
    except (FileNotFoundError, NotADirectoryError):
        return False
