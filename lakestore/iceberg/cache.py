"""The derived cache: values decoded from lake files. Several processes share it, and it is safe to delete.

1. A key names the lake file that a value is decoded from, and the file's version. Another file of that name is a miss.
2. A checksum covers every byte that is read. A damaged value is a miss and is removed; a caller never sees it.
3. A value is one file that is written whole, renamed and never changed. It is mapped, so a reader keeps the bytes of a
   value that is removed meanwhile. Nothing is synced. A cache that cannot be written stores nothing and raises nothing.

The cache checks no rights: a caller must have the right to read the lake file. docs/internals/derived-cache.md has the
layout, and the measurements that decided against LMDB.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import re
import resource
import stat
import struct
import threading
import time
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt

log = logging.getLogger("lakestore.cache")
DISK_BYTES = 4 << 30
VARIABLE, OFF = "LAKESTORE_CACHE", "off"
"""The environment variable with the cache folder of the user's processes; `off` disables the cache."""
SUFFIX = ".value"
USED_SECONDS = 3_600.0
"""The last use of a value is written at most once in this time, so a read seldom writes."""
RETRY_SECONDS = 60.0
"""Pause after a failed write, because the disk may be full."""
FREE_BYTES_MIN = 256 << 20
"""Free disk space that the cache leaves to others."""
READ_BYTES_MAX = 64 << 10
"""A value up to this size is read into memory, because a map costs a descriptor."""
_MAGIC, _VERSION = b"LSDV", 1
_HEAD = struct.Struct("<4sHHIQ32s")
"""Magic, version, number of sections, checksum of the rest of head and table, bytes of the file, digest of the key."""
_SECTION = struct.Struct("<IIQQ")
"""Number, checksum, begin and bytes of a section."""
_ALIGNED = 64
_CHECKED_BYTES = 1 << 20
"""Bytes that the checksum takes at once."""
_TEMPORARY = ".new"
_OWN = re.compile(r"[0-9a-f]{32}(\.value|-[0-9a-f]{12}\.new)")
"""Names of the cache's files. Nothing else in the folder is removed: a user may name a folder that has other files."""
_TEMPORARY_SECONDS = 600.0
"""A file that was not renamed in this time is left over from a killed process."""
_GROUP = re.compile(r"[0-9A-Za-z-]{1,64}")
_FEW = 16
"""A process lists the folder after it has written this part of the bound, and frees as much."""
PARTS = 16
"""Parts of a large folder. A value's part is the first hexadecimal digit of its name."""
WHOLE_VALUES_MAX = 4_096
"""A folder of so many values is one part."""
_STATE = "lakestore-parts.json"
"""The file with the sizes of the parts of a large folder."""
UNUSED_SECONDS = 7 * 86_400.0
"""A value that is not used for this time is removed, because its file may have left the lake."""
_REMOTE = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "lustre", "afs", "gpfs")
"""Prefixes of file systems on which a mapped file can vanish while it is read."""
Section = bytes | memoryview | npt.NDArray[Any]


class SizedValue(Protocol):
    """A value with a size."""

    @property
    def nbytes(self) -> int:
        """About its size in bytes."""


T = TypeVar("T", bound=SizedValue)


class LockOwner(Protocol):
    """An object with a lock."""

    def unlock(self) -> None:
        """Begin with a free lock."""


_after_forks: weakref.WeakSet[LockOwner] = weakref.WeakSet()


def _unlock_all() -> None:
    for locked in list(_after_forks):
        locked.unlock()


os.register_at_fork(after_in_child=_unlock_all)


class RecentValues(Generic[T]):
    """Values in memory by name, within a bound on their bytes. The least recently used is evicted. Thread-safe.

    A single value that is larger than the bound stays.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max, self.nbytes = bytes_max, 0
        self.evicted = 0
        """Number of values that were evicted."""
        self._values: OrderedDict[str, tuple[T, int]] = OrderedDict()
        _after_forks.add(self)
        self.unlock()

    def unlock(self) -> None:
        """Begin with a free lock: in a forked process another thread's lock would stay closed."""
        self._lock = threading.Lock()

    def get(self, name: str) -> T | None:
        """The value of a name, or None."""
        with self._lock:
            entry = self._values.get(name)
            if entry is None:
                return None
            self._values.move_to_end(name)
            return entry[0]

    def put(self, name: str, value: T) -> None:
        """Add or replace a value."""
        nbytes = value.nbytes
        with self._lock:
            self._drop(name)
            self._values[name] = value, nbytes
            self.nbytes += nbytes
            while self.nbytes > self.bytes_max and len(self._values) > 1:
                self._drop(next(iter(self._values)))
                self.evicted += 1

    def drop(self, name: str) -> None:
        """Remove a value."""
        with self._lock:
            self._drop(name)

    @property
    def names(self) -> list[str]:
        """The names of all values."""
        with self._lock:
            return list(self._values)

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._values.clear()
            self.nbytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def _drop(self, name: str) -> None:
        entry = self._values.pop(name, None)
        self.nbytes -= entry[1] if entry else 0


class Damaged(Exception):
    """The bytes of a value differ from the bytes that were written. The value counts as a miss."""


@dataclass(frozen=True, slots=True)
class Key:
    """The name of a value."""

    kind: str
    """The kind of value, with the version of its sections: `manifest-1`."""
    group: str
    """The uuid of the table. Its values are in one folder and are removed with the table."""
    file: str
    """The location of the lake file that the value is decoded from."""
    version: str
    """A text that differs between two files that were at this location."""

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the key."""
        return hashlib.sha256("\0".join((self.kind, self.group, self.file, self.version)).encode()).digest()

    @property
    def name(self) -> str:
        """The name of the value's file. A new version of the source file replaces the value of an old version.

        Layout and kind are part of the name, so two releases that share a folder do not replace each other's values.
        """
        return hashlib.sha256(f"{_VERSION}\0{self.kind}\0{self.file}".encode()).hexdigest()[:32] + SUFFIX


def crc32c(data: memoryview | bytes) -> int:
    """The CRC-32C of bytes."""
    checksum = 0
    for begin in range(0, len(data), _CHECKED_BYTES):
        checksum = google_crc32c.extend(checksum, bytes(data[begin : begin + _CHECKED_BYTES]))
    return checksum


class Value:
    """One value: sections of bytes by number. Each is checked on its first use. Thread-safe."""

    def __init__(self, data: memoryview, digest: bytes, *, is_mapped: bool) -> None:
        """Raises `Damaged` if `data` is no value of the key with this digest."""
        self._data, self.is_mapped = data, is_mapped
        self._checked: set[int] = set()
        if len(data) < _HEAD.size:
            raise Damaged("it is cut short")
        magic, version, count, checksum, size, known = _HEAD.unpack_from(data)
        end = _HEAD.size + count * _SECTION.size
        if (magic, version, size) != (_MAGIC, _VERSION, len(data)) or end > size:
            raise Damaged("its head is another one")
        if checksum != _head_checksum(bytes(data[:end])):
            raise Damaged("the checksum of its head is another one")
        if known != digest:
            raise Damaged("it is of another version of its file")
        table = (_SECTION.unpack_from(data, _HEAD.size + at * _SECTION.size) for at in range(count))
        self._sections = {number: (begin, size, checksum) for number, checksum, begin, size in table}

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return len(self._data)

    @property
    def numbers(self) -> AbstractSet[int]:
        """The numbers of the sections."""
        return self._sections.keys()

    def section(self, number: int) -> memoryview:
        """The bytes of a section. Raises `KeyError` without such a section, and `Damaged`."""
        begin, size, checksum = self._sections[number]
        found = self._data[begin : begin + size]
        if number not in self._checked:
            if len(found) != size or crc32c(found) != checksum:
                raise Damaged(f"the checksum of its section {number} is another one")
            self._checked.add(number)
        return found

    def array(self, number: int, kind: str) -> npt.NDArray[Any]:
        """A section as a numpy array, without a copy. Raises `KeyError` and `Damaged`."""
        try:
            return np.frombuffer(self.section(number), kind)
        except ValueError as error:
            raise Damaged(str(error)) from error


def _head_checksum(head: bytes) -> int:
    return crc32c(head[:8] + head[12:])


def encoded(key: Key, sections: Mapping[int, Section]) -> list[bytes]:
    """The bytes of a value's file, in parts to be written one after the other."""
    table, parts = b"", []
    at = _HEAD.size + len(sections) * _SECTION.size
    for number, section in sections.items():
        data = section.tobytes() if isinstance(section, np.ndarray) else bytes(section)
        gap = -at % _ALIGNED
        table += _SECTION.pack(number, crc32c(data), at + gap, len(data))
        parts += [bytes(gap), data]
        at += gap + len(data)
    head = _HEAD.pack(_MAGIC, _VERSION, len(sections), 0, at, key.digest) + table
    return [head[:8], _head_checksum(head).to_bytes(4, "little"), head[12:], *parts]


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """Sizes of the folder when this process last looked, and counters of this process."""

    nbytes: int
    """Bytes of the values and of the tables' folders."""
    files: int
    """Number of values."""
    hits: int
    misses: int
    evicted: int
    """Values that this process evicted."""
    damaged: int
    """Damaged values that this process removed."""


def in_thread(work: Callable[[], None]) -> None:
    """Run something in a thread of its own. The process waits for it before it ends."""
    threading.Thread(target=work, name="cache-eviction").start()


class DerivedCache:
    """Values in a folder, within a bound on their bytes. Without a folder it stores nothing. Thread-safe.

    Several processes may use a folder at the same time. It exceeds the bound by at most a 16th part of the bound for
    each process that writes, by what 16 short processes write, and by what is written while values are evicted. That
    takes seconds with 100,000 values, so a thread does it, one part of the folder after another. A short process does
    one part, and the next process the next.
    """

    def __init__(
        self,
        folder: Path | None = None,
        bytes_max: int = DISK_BYTES,
        clock: Callable[[], float] = time.time,
        beside: Callable[[Callable[[], None]], None] = in_thread,
        free_bytes_min: int = FREE_BYTES_MIN,
    ) -> None:
        """`beside` runs the eviction. With less than `free_bytes_min` free the cache gives its room back."""
        self.folder, self._bytes_max, self._clock, self._beside = folder, bytes_max, clock, beside
        self._free_bytes_min = max(free_bytes_min, FREE_BYTES_MIN)
        _after_forks.add(self)
        self.unlock()
        self._nbytes = self._files = 0
        self._unseen = bytes_max
        """Bytes written since the folder was listed. The first write lists a part of it."""
        self._has_looked = False
        self._closed_until = 0.0
        self._hits = self._misses = self._evicted = self._damaged = 0

    def unlock(self) -> None:
        """Begin with a free lock, which guards the counters, and without an eviction."""
        self._lock = threading.Lock()
        self._is_evicting = False

    @property
    def figures(self) -> CacheFigures:
        """The figures now."""
        return CacheFigures(self._nbytes, self._files, self._hits, self._misses, self._evicted, self._damaged)

    def find(self, key: Key) -> Value | None:
        """The value of a key; None if there is none or if its head is damaged."""
        value = self._opened(key) if self.folder else None
        with self._lock:
            self._hits += value is not None
            self._misses += value is None
        return value

    def store(self, key: Key, sections: Mapping[int, Section]) -> Value | None:
        """Write a value and open it; None if it was not written. Never raises."""
        if self.folder is None or 0.0 < self._closed_until - self._clock() <= RETRY_SECONDS:
            return None
        parts = encoded(key, sections)
        size = sum(map(len, parts))
        if size * _FEW > self._bytes_max or not self._written(key, parts, size):
            return None
        return self._opened(key)

    def discard(self, key: Key, error: Exception | None = None) -> None:
        """Remove a value. `error` is the damage, if it is removed for one."""
        if self.folder is None:
            return
        if error is not None:
            log.warning("the cached value of %s is made again: %s", key.file, error)
            with self._lock:
                self._damaged += 1
        self._remove(self._path(key))

    def remove_others(self, group: str, keep: Collection[str]) -> None:
        """Remove the values of a table except the values with these names."""
        for entry in _entries(self.folder / _folder_name(group)) if self.folder else ():
            if entry.name.endswith(SUFFIX) and entry.name not in keep and _is_own(entry):
                self._remove(Path(entry.path))

    def remove_groups(self, keep: Collection[str]) -> None:
        """Remove the values of all tables except these."""
        names = {_folder_name(group) for group in keep}
        with suppress(OSError):
            if self.folder:
                (self.folder / _STATE).unlink(missing_ok=True)
            for group in _entries(self.folder) if self.folder else ():
                if group.name not in names and group.is_dir(follow_symlinks=False):
                    for entry in filter(_is_own, _entries(group.path)):
                        os.unlink(entry.path)
                    with suppress(OSError):  # it has files of others
                        os.rmdir(group.path)

    def _remove(self, path: Path) -> None:
        with suppress(OSError):
            size = path.stat().st_size
            path.unlink()
            with self._lock:
                self._nbytes, self._files = max(self._nbytes - size, 0), max(self._files - 1, 0)

    def _path(self, key: Key) -> Path:
        assert self.folder is not None
        return self.folder / _folder_name(key.group) / key.name

    def _opened(self, key: Key) -> Value | None:
        path = self._path(key)
        try:
            number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            info = os.fstat(number)
            if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid():
                return None  # somebody else put it there
            data, is_mapped = _contents(number, info.st_size)
            value = Value(data, key.digest, is_mapped=is_mapped)
            now = self._clock()
            if not info.st_mtime <= now < info.st_mtime + USED_SECONDS:
                with suppress(OSError):  # the folder may belong to another user, or be read-only
                    os.utime(number, (now, now))
        except (Damaged, OSError, ValueError, struct.error) as error:
            self.discard(key, error)
            return None
        finally:
            os.close(number)
        return value

    def _written(self, key: Key, parts: list[bytes], size: int) -> bool:
        path = self._path(key)
        new = path.with_name(f"{path.stem}-{uuid.uuid4().hex[:12]}{_TEMPORARY}")
        try:
            is_new = _make_private(path.parent)
            if _free_bytes(path.parent) < size + self._free_bytes_min:
                self._begin_eviction()
                raise OSError(f"less than {self._free_bytes_min >> 20} MB are free")
            with open(_opened_new(new), "wb") as file:
                file.writelines(parts)
            os.utime(new, (self._clock(), self._clock()))
            before = path.stat().st_size if path.exists() else None
            new.replace(path)
        except OSError as error:
            self._closed_until = self._clock() + RETRY_SECONDS
            log.warning("nothing is cached in %s for %.0f s: %s", self.folder, RETRY_SECONDS, error)
            with suppress(OSError):
                new.unlink(missing_ok=True)
            return False
        written = size + (_folder_bytes(path.parent) if is_new else 0)
        with self._lock:
            self._nbytes += written - (before or 0)
            self._files += before is None
            self._unseen += written
            is_due = self._unseen * _FEW > self._bytes_max
        if is_due:
            self._begin_eviction()
        return True

    def _begin_eviction(self) -> None:
        """Begin an eviction unless one runs. Without a thread for it the next write tries again."""
        with self._lock:
            if self._is_evicting:
                return
            self._is_evicting, self._unseen = True, 0
        try:
            self._beside(self._evict_once)
        except RuntimeError as error:  # the system has no thread left
            log.debug("no value is evicted now: %s", error)
            self._unseen, self._is_evicting = self._bytes_max, False

    def _evict_once(self) -> None:
        try:
            self._evict(parts_max=PARTS if self._has_looked else 1)
            self._has_looked = True
        finally:
            self._is_evicting = False

    def _evict(self, parts_max: int = PARTS) -> None:
        """Remove the least recently used values, until a 16th part of the bound is free and the disk has room for
        others. Ends with the process: after each part it looks whether the main thread has ended."""
        assert self.folder is not None
        folder = _Listed(self.folder)
        sizes = _Sizes.of(self.folder, folder.count)
        for _ in range(min(folder.count, parts_max)):
            self._evict_part(folder.part(sizes.next), sizes, folder.nbytes)
            sizes.next = (sizes.next + 1) % folder.count
            sizes.write(self.folder)
            with self._lock:
                self._nbytes, self._files = sizes.nbytes + folder.nbytes, sizes.files
            if not threading.main_thread().is_alive():
                break

    def _evict_part(self, names: list[str], sizes: _Sizes, folders_bytes: int) -> None:
        found = sorted(self._used(names), reverse=True)
        nbytes, files = sum(size for _, size, _ in found), len(found)
        others = sizes.others(nbytes) + folders_bytes
        room, oldest, evicted = self._room(others + nbytes), self._clock() - UNUSED_SECONDS, 0
        share = (room - folders_bytes) // len(sizes.parts)
        while found and (found[-1][0] < oldest or (others + nbytes > room and nbytes > share)):
            _, size, path = found.pop()
            try:
                os.unlink(path)
                evicted += 1
            except FileNotFoundError:  # another process has evicted it
                pass
            except OSError:
                continue
            nbytes, files = nbytes - size, files - 1
        sizes.parts[sizes.next] = nbytes, files
        with self._lock:
            self._evicted += evicted

    def _room(self, nbytes: int) -> int:
        """The bytes that the folder may keep, if it has so many now."""
        room = self._bytes_max - self._bytes_max // _FEW
        with suppress(OSError):
            assert self.folder is not None
            room = min(room, nbytes - self._free_bytes_min + _free_bytes(self.folder))
        return room

    def _used(self, names: list[str]) -> Iterator[tuple[float, int, str]]:
        """Last use, bytes and path of values. Files that killed processes left are removed."""
        now = self._clock()
        for name in names:
            with suppress(OSError):
                info = os.lstat(name)
                if not stat.S_ISREG(info.st_mode):
                    continue
                if name.endswith(SUFFIX):  # a use in the future is of a clock that was wrong
                    yield info.st_mtime if info.st_mtime < now + USED_SECONDS else 0.0, info.st_size, name
                elif now - info.st_mtime > _TEMPORARY_SECONDS:
                    os.unlink(name)


class _Listed:
    """The names in the cache's folder, by part."""

    def __init__(self, folder: Path) -> None:
        """Empty folders of tables are removed."""
        self._names: list[tuple[str, list[str]]] = []
        self.nbytes = 0
        """Bytes of the tables' folders."""
        for group in _entries(folder):
            with suppress(OSError):
                if not group.is_dir(follow_symlinks=False):
                    continue
                names, info = os.listdir(group.path), group.stat(follow_symlinks=False)
                if names:
                    self._names.append((group.path, names))
                    self.nbytes += info.st_size
                elif _GROUP.fullmatch(group.name):
                    os.rmdir(group.path)
        count = sum(len(names) for _, names in self._names)
        self.count = 1 if count <= WHOLE_VALUES_MAX else PARTS
        """Number of parts."""

    def part(self, number: int) -> list[str]:
        """Paths of the cache's files in a part."""
        first = f"{number:x}" if self.count > 1 else ""
        return [
            f"{path}/{name}" for path, names in self._names
            for name in names if name.startswith(first) and _OWN.fullmatch(name)
        ]  # fmt: skip


@dataclass(slots=True)
class _Sizes:
    """The sizes of the parts of a folder, as far as processes have listed them. Kept in a file of a large folder."""

    parts: list[tuple[int, int] | None]
    """Bytes and number of values. None: not known."""
    next: int = 0
    """The part to be listed next."""

    @staticmethod
    def of(folder: Path, count: int) -> _Sizes:
        """The sizes in the folder's file; none of them are known if the file cannot be read."""
        if count > 1:
            with suppress(OSError, ValueError, TypeError, KeyError):
                held = json.loads((folder / _STATE).read_bytes())
                parts = [None if part is None else (int(part[0]), int(part[1])) for part in held["parts"]]
                if len(parts) == count:
                    return _Sizes(parts, int(held["next"]) % count)
        return _Sizes([None] * count)

    def write(self, folder: Path) -> None:
        """Write the file. A small folder has none."""
        path = folder / _STATE
        with suppress(OSError):
            if len(self.parts) > 1:
                path.write_text(json.dumps({"next": self.next, "parts": self.parts}))
            else:
                path.unlink(missing_ok=True)

    @property
    def nbytes(self) -> int:
        return sum(part[0] for part in self.parts if part)

    @property
    def files(self) -> int:
        return sum(part[1] for part in self.parts if part)

    def others(self, nbytes: int) -> int:
        """The bytes of all parts but the next one. A part that is not known counts as `nbytes`."""
        return sum(part[0] if part else nbytes for at, part in enumerate(self.parts) if at != self.next)


def _is_own(entry: os.DirEntry[str]) -> bool:
    return _OWN.fullmatch(entry.name) is not None and entry.is_file(follow_symlinks=False)


def _free_bytes(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def _opened_new(path: Path) -> int:
    """The descriptor of a new file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:  # another process has removed the empty folder
        _make_private(path.parent)
        return os.open(path, flags, 0o600)


def _folder_bytes(folder: Path) -> int:
    """The size of a folder; 0 if it is gone."""
    try:
        return folder.stat().st_size
    except OSError:
        return 0


def _make_private(folder: Path) -> bool:
    """Make a folder and the missing ones above it, for this user alone. False if it exists."""
    if folder.is_dir():
        return False
    _make_private(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    return True


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    """The entries of a folder; none if it does not exist or is no folder."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


_maps: list[None] = []
"""One item for each file that this process has mapped."""


def _contents(number: int, size: int) -> tuple[memoryview, bool]:
    """(bytes of an open file, True if they are mapped). Small files and those beyond `_maps_max` are read."""
    if size > READ_BYTES_MAX and len(_maps) < _maps_max():
        with suppress(OSError, ValueError):
            mapped = mmap.mmap(number, size, access=mmap.ACCESS_READ)
            _maps.append(None)
            weakref.finalize(mapped, _maps.pop).atexit = False
            return memoryview(mapped), True
    data = b""
    while len(data) < size and (more := os.pread(number, size - len(data), len(data))):
        data += more
    return memoryview(data), False


@lru_cache(maxsize=1)
def _maps_max() -> int:
    """The most files that this process maps. Python keeps a descriptor for each."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4_096 if soft == resource.RLIM_INFINITY else min(4_096, soft // 4)


def _folder_name(group: str) -> str:
    return group if _GROUP.fullmatch(group) else hashlib.sha256(group.encode()).hexdigest()[:32]


def of_user(environ: Mapping[str, str] = os.environ) -> DerivedCache:
    """The cache of this user's processes. It has no folder if it is off, or if the folder is unsafe or remote."""
    named = environ.get(VARIABLE)
    if named == OFF:
        return DerivedCache()
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # as for XDG_CACHE_HOME, a relative path is ignored
        base = os.path.expanduser("~/.cache")  # unchanged if the user has no home
    folder = Path(named or f"{base}/lakestore")
    problem = _unusable(folder) if folder.is_absolute() else "the path is not absolute"
    if problem:
        (log.warning if named else log.debug)("no cache in %s: %s", folder, problem)
        return DerivedCache()
    return DerivedCache(folder)


def _unusable(folder: Path) -> str | None:
    """The reason not to use a folder, or None. A missing folder is created."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.stat()
    except (OSError, RuntimeError) as error:
        return str(error)
    if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write to it"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "it cannot be written"
    kind = _file_system(folder)
    return f"its file system is {kind}" if kind.startswith(_REMOTE) else None


def _file_system(folder: Path) -> str:
    """The type of the file system of a folder; empty if it is not known."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    return next((line.partition(" - ")[2].split()[0] for line in lines if line.split()[2] == wanted), "")


_process: list[DerivedCache] = []


def use(cache: DerivedCache) -> None:
    """Use this cache for the whole process from now on."""
    _process[:] = [cache]


def of_process() -> DerivedCache:
    """The cache of this process: the one given to `use`, otherwise the user's."""
    if not _process:
        _process.append(of_user())
    return _process[0]
