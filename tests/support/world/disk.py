"""A disk that loses power: an implementation of the server's `Disk` seam for tests.

The root is a real folder, so readers may map its files; it plays the page cache. Beside it stands what would
be left after a power cut: contents as of the last `sync` of each file, names as of the last `sync_folder` of
each folder. `crash` writes that into a new folder. Given a seed it also keeps some of what was not synced:
per file a prefix of the writes, the last one cut at any byte or with a sector of zeros; per folder any of the
changes. A sync that fails loses what was not synced for good, as on Linux, whose page cache shows it all the same:
the next sync succeeds and does not bring it back. Files that did not come through the seam are copied as
they are.
"""

from __future__ import annotations

import errno
import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import RealDisk

SECTOR = 512


class PowerLost(OSError):
    """The machine is off: nothing that is asked of this disk happens any more."""


class PlantedFailure(OSError):
    """One step that failed, on a machine that goes on; half of a failed write is in the file."""


@dataclass(slots=True, eq=False)
class _Content:
    """One file, whatever its name."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[bytes | int] = field(default_factory=list)
    """Since the last sync, in order: bytes appended, or the size it was truncated to."""

    def sync(self) -> None:
        for change in self.pending:
            self._apply(change)
        self.pending.clear()

    def lose(self) -> None:
        """A sync failed: the pages are marked clean and never written; what the file's size was set to stays."""
        for change in self.pending:
            self._apply(change if isinstance(change, int) else bytes(len(change)))
        self.pending.clear()

    def _apply(self, change: bytes | int) -> None:
        if isinstance(change, int):
            del self.durable[change:]
        else:
            self.durable += change

    def after_crash(self, chance: random.Random | None) -> bytes:
        """What a restart finds."""
        if chance is None or not self.pending:
            return bytes(self.durable)
        if chance.random() < 0.3 and not any(isinstance(change, int) for change in self.pending):
            return bytes(self.durable) + _scattered(b"".join(c for c in self.pending if isinstance(c, bytes)), chance)
        kept = chance.randint(0, len(self.pending))
        left = _Content(bytearray(self.durable))
        for change in self.pending[:kept]:
            left._apply(change)
        if kept < len(self.pending) and isinstance(torn := self.pending[kept], bytes):
            left._apply(_torn(torn, chance))
        return bytes(left.durable)


def _scattered(data: bytes, chance: random.Random) -> bytes:
    """Sectors written in any order: some are there, the others are zeros."""
    part = bytearray(data)
    for at in range(0, len(part), SECTOR):
        if chance.random() < 0.5:
            part[at : at + SECTOR] = bytes(len(part[at : at + SECTOR]))
    return bytes(part)


def _torn(data: bytes, chance: random.Random) -> bytes:
    """A part of one write: cut at any byte, or whole but for a sector that never reached the disk."""
    if chance.random() < 0.5:
        return data[: chance.randint(0, len(data))]
    part = bytearray(data)
    sector = chance.randrange(0, max(len(part), 1), SECTOR)
    part[sector : sector + SECTOR] = bytes(len(part[sector : sector + SECTOR]))
    return bytes(part)


@dataclass(frozen=True, slots=True)
class _Naming:
    """One change to a folder: `name` now is `content`, or is gone."""

    name: str
    content: _Content | None


@dataclass(slots=True, eq=False)
class _Folder:
    durable: dict[str, _Content] = field(default_factory=dict)
    current: dict[str, _Content] = field(default_factory=dict)
    pending: list[tuple[_Naming, ...]] = field(default_factory=list)
    """Since the last sync, in order; the namings of one entry happen together."""

    def change(self, *namings: _Naming) -> None:
        _name(self.current, namings)
        self.pending.append(namings)

    def sync(self) -> None:
        for namings in self.pending:
            _name(self.durable, namings)
        self.pending.clear()

    def after_crash(self, chance: random.Random | None) -> dict[str, _Content]:
        """Nothing orders the changes of a folder that is not synced: some survive, or the first few."""
        names = dict(self.durable)
        if chance is None:
            return names
        in_order = chance.random() < 0.5
        first = chance.randint(0, len(self.pending))
        for i, namings in enumerate(self.pending):
            if i < first if in_order else chance.random() < 0.5:
                _name(names, namings)
        return names


def _name(names: dict[str, _Content], namings: Iterable[_Naming]) -> None:
    for naming in namings:
        if naming.content is None:
            names.pop(naming.name, None)
        else:
            names[naming.name] = naming.content


class SimFile:
    """`AppendFile` on a `SimDisk`."""

    def __init__(self, disk: SimDisk, path: Path, content: _Content) -> None:
        self._disk = disk
        self._content = content
        self._file = path.open("xb", buffering=0)

    def write(self, parts: Sequence[Any]) -> int:
        """Append; when power goes in the middle of it, a part may have been written."""
        data = b"".join(memoryview(part).cast("B") for part in parts)
        half = data[: len(data) // 2]
        self._disk.before("write")
        with self._disk.lock:
            try:
                with self._disk.step(f"write of {len(data)} bytes", lambda: self._content.pending.append(data)):
                    self._written(data)
            except PlantedFailure:
                self._written(half)
                raise
        return len(data)

    def _written(self, data: bytes) -> None:
        self._content.pending.append(data)
        self._file.write(data)

    def sync(self) -> None:
        """Make the contents durable; the name is the folder's."""
        self._disk.before("sync")
        with self._flushing("sync"):
            self._content.sync()

    def write_back(self) -> None:
        """Bytes that were written may be on the disk at any moment: nothing happens, or they are lost."""
        if self._disk.writes_back:
            with self._flushing("write back"):
                pass

    @contextmanager
    def _flushing(self, what: str) -> Iterator[None]:
        """One step to the disk, by whose failure all that was not synced is lost."""
        with self._disk.lock:
            try:
                with self._disk.step(what):
                    yield
            except PlantedFailure:
                self._content.lose()
                raise

    def truncate(self, size: int) -> None:
        """Cut the file."""
        self._disk.before("truncate")
        with self._disk.step("truncate"):
            self._content.pending.append(size)
            self._file.truncate(size)
            self._file.seek(0, 2)

    def end(self) -> None:
        """It ends where its bytes do."""

    def close(self) -> None:
        """Close without syncing; possible without power, too."""
        self._file.close()


class _Step:
    """One change of the disk: counted, and refused when there is no power."""

    def __init__(self, disk: SimDisk, what: str, half_done: Callable[[], None] | None) -> None:
        self._disk = disk
        self._what = what
        self._half_done = half_done

    def __enter__(self) -> None:
        self._disk.lock.acquire()
        try:
            self._disk.spend(self._what, self._half_done)
        except BaseException:
            self._disk.lock.release()
            raise

    def __exit__(self, *error: object) -> None:
        self._disk.lock.release()


class SimDisk:
    """`Disk` with a power switch. What lies in the folder at the beginning is durable."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = threading.RLock()
        self.steps: list[str] = []
        """Every change so far, in order."""
        self._folders: dict[Path, _Folder] = {}
        self._steps_left: int | None = None
        self._free: int | None = None
        self._failing: dict[tuple[str, str], int] = {}
        self._open: list[SimFile] = []
        self._full_after: int | None = None
        self._refused: tuple[str, ...] = ()
        self._power_until: tuple[CrashPoint, int] | None = None
        self.reached: Counter[CrashPoint] = Counter()
        """How often each crash point was passed."""
        self.before: Callable[[str], None] = lambda what: None
        """Called before each read and change with its name, with no lock held: to take time, or to raise."""
        self.passing: Callable[[CrashPoint], None] = lambda point: None
        """Called at each crash point before it counts."""
        self.writes_back = True
        """Whether `write_back` is a step, which may fail."""
        root.mkdir(parents=True, exist_ok=True)

    def lose_power_after(self, steps: int | None) -> None:
        """Let this many more changes happen, then none (None: never). Zero is now."""
        with self.lock:
            self._steps_left = steps

    @property
    def powered(self) -> bool:
        """Whether changes still happen."""
        return self._steps_left is None or self._steps_left > 0

    def fail(self, what: str, *, after: int = 0, thread: str = "") -> None:
        """Let one step fail: the first whose name begins with `what` (write, sync, rename, …) after so many others.

        With `thread` only steps of threads whose names begin so count: a checkpoint beside a commit is none of its.
        """
        with self.lock:
            self._failing[what, thread] = after

    @property
    def will_fail(self) -> bool:
        """Whether a failure is planted that has not happened yet."""
        with self.lock:
            return bool(self._failing)

    def fill_up(self, after: int | None) -> None:
        """Let so many more files and writes find space, then none until this is called with None."""
        with self.lock:
            self._full_after = after

    def refuse(self, *steps: str) -> None:
        """Let every step fail whose name matches a pattern, as on a full disk, until this is called with others."""
        with self.lock:
            self._refused = steps

    def heal(self) -> None:
        """Let nothing fail any more that has not failed yet."""
        with self.lock:
            self._failing.clear()

    def set_free(self, free: int | None) -> None:
        """What `free_bytes` answers from now on."""
        self._free = free

    def step(self, what: str, half_done: Callable[[], None] | None = None) -> _Step:
        """A context in which one change happens."""
        return _Step(self, what, half_done)

    def spend(self, what: str, half_done: Callable[[], None] | None) -> None:
        """Count one change; `half_done` records it as begun if power goes exactly now."""
        if self._steps_left is not None:
            if self._steps_left <= 0:
                if self._steps_left == 0 and half_done is not None:
                    half_done()
                self._steps_left = -1
                raise PowerLost(f"power was lost before this {what}")
            self._steps_left -= 1
        if any(fnmatchcase(what, pattern) for pattern in self._refused):
            raise PlantedFailure(errno.ENOSPC, "No space left on device")
        if self._full_after is not None and what.startswith(("write", "create")):
            self._full_after -= 1
            if self._full_after < 0:
                raise PlantedFailure(errno.ENOSPC, "No space left on device")
        thread = threading.current_thread().name
        for planted in [(step, by) for step, by in self._failing if what.startswith(step) and thread.startswith(by)]:
            self._failing[planted] -= 1
            if self._failing[planted] < 0:
                del self._failing[planted]
                raise PlantedFailure(5, f"planted failure of {what}")
        self.steps.append(what)

    def crash(self, target: Path, seed: int | None = None, *, lost: Sequence[str] = ()) -> SimDisk:
        """Cut power and restart: a disk on the new folder `target` with what is left.

        Without a seed nothing unsynced survives. `lost` names folders directly below the root that are
        lost as a whole.
        """
        chance = None if seed is None else random.Random(seed)
        with self.lock:
            self._steps_left = -1
            target.mkdir(parents=True)
            self._copy_foreign(target, lost)
            for folder in sorted(self._folders):
                place = target / folder.relative_to(self.root)
                if set(folder.relative_to(self.root).parts[:1]) & set(lost):
                    continue
                place.mkdir(parents=True, exist_ok=True)
                for name, content in sorted(self._folders[folder].after_crash(chance).items()):
                    (place / name).write_bytes(content.after_crash(chance))
        return SimDisk(target)

    def close(self) -> None:
        """Close what its user left open."""
        for file in self._open:
            file.close()

    def _copy_foreign(self, target: Path, lost: Sequence[str]) -> None:
        ours = {path / name for path, folder in self._folders.items() for name in {**folder.durable, **folder.current}}
        for path in sorted(self.root.rglob("*")):
            relative = path.relative_to(self.root)
            if relative.parts[0] in lost:
                continue
            if path.is_dir():
                (target / relative).mkdir(parents=True, exist_ok=True)
            elif path.is_file() and path not in ours:
                (target / relative).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target / relative)

    def _folder(self, path: Path) -> _Folder:
        return self._folders.setdefault(path, _Folder())

    def _content(self, path: Path) -> _Content:
        """The file of that name; one that was there before this disk is taken over as durable."""
        folder = self._folder(path.parent)
        if path.name not in folder.current:
            content = _Content(bytearray(path.read_bytes()))
            folder.current[path.name] = folder.durable[path.name] = content
        return folder.current[path.name]

    def create(self, path: Path, *, is_cached: bool = True) -> SimFile:
        """A new file whose name is not durable yet; a crash may leave any of what was not synced, cached or not."""
        self.before(f"create {path.name}")
        with self.step(f"create {path.name}"):
            content = _Content()
            file = SimFile(self, path, content)
            self._folder(path.parent).change(_Naming(path.name, content))
            self._open.append(file)
            return file

    def rename(self, source: Path, target: Path) -> None:
        """Atomic inside one folder; over two, each folder's side is its own change. A folder moves at once."""
        self.before(f"rename {source.name}")
        with self.step(f"rename {source.name}"):
            if source.is_dir():
                source.rename(target)
                return
            content = self._content(source)
            if target.exists():
                self._content(target)
            source.replace(target)
            gone, there = _Naming(source.name, None), _Naming(target.name, content)
            if source.parent == target.parent:
                self._folder(source.parent).change(gone, there)
            else:
                self._folder(source.parent).change(gone)
                self._folder(target.parent).change(there)

    def link(self, source: Path, target: Path) -> bool:
        """Another name of the same content."""
        self.before(f"link {target.name}")
        with self.step(f"link {target.name}"):
            content = self._content(source)
            target.hardlink_to(source)
            self._folder(target.parent).change(_Naming(target.name, content))
            return True

    def remove(self, path: Path) -> None:
        """Unlink; after a crash the file may be back."""
        self.before(f"remove {path.name}")
        with self.step(f"remove {path.name}"):
            self._content(path)
            path.unlink()
            self._folder(path.parent).change(_Naming(path.name, None))

    def make_folder(self, path: Path) -> None:
        """Durable at once, as the seam promises."""
        self.before(f"make_folder {path.name}")
        with self.step(f"make_folder {path.name}"):
            path.mkdir(parents=True, exist_ok=True)
            self._folder(path)

    def remove_folder(self, path: Path) -> None:
        """Each file in it goes by itself, so that a crash may leave some."""
        self.before(f"remove_folder {path.name}")
        with self.step(f"remove_folder {path.name}"):
            for file in sorted(path.rglob("*")):
                if file.is_file():
                    self._content(file)
                    self._folder(file.parent).change(_Naming(file.name, None))
            shutil.rmtree(path)

    def sync_folder(self, path: Path) -> None:
        """Make names durable; a folder that was removed from here is durably gone."""
        self.before(f"sync_folder {path.name}")
        try:
            with self.step(f"sync_folder {path.name}"):
                self._folder(path).sync()
        except PlantedFailure:
            self._folder(path).pending.clear()
            raise
        with self.lock:
            for inner in [folder for folder in self._folders if folder.is_relative_to(path) and not folder.exists()]:
                del self._folders[inner]

    def list(self, path: Path) -> list[str]:
        """Sorted names, as a running system sees them."""
        with self.lock:
            return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []

    def read(self, path: Path) -> bytes:
        """A whole file, as a running system sees it."""
        self.before("read")
        with self.lock:
            return path.read_bytes()

    def pieces(self, path: Path, size: int | None = None) -> Iterator[bytes]:
        """The first bytes of a file in pieces, as a running system sees it."""
        with self.lock:
            held = list(RealDisk().pieces(path, size))
        yield from held

    def map(self, path: Path) -> pa.Buffer:
        """A whole file, mapped, as a running system sees it."""
        with self.lock:
            return RealDisk().map(path)

    def size(self, path: Path) -> int | None:
        """Bytes of a file, as a running system sees it."""
        with self.lock:
            return RealDisk().size(path)

    def lose_power_at(self, point: CrashPoint, passes: int = 0) -> None:
        """Let power go when a crash point is passed, after so many other passes."""
        with self.lock:
            self._power_until = point, passes

    def reach(self, point: CrashPoint) -> None:
        """Count the pass; maybe power goes now."""
        self.passing(point)
        with self.lock:
            self.reached[point] += 1
            if self._power_until is None or self._power_until[0] != point:
                return
            self._power_until = point, self._power_until[1] - 1
            if self._power_until[1] < 0:
                self._power_until = None
                self._steps_left = -1
                raise PowerLost(f"power was lost at {point}")

    def free_bytes(self, path: Path) -> int:
        """Set by `set_free`, else the real disk's."""
        return shutil.disk_usage(path).free if self._free is None else self._free
