"""The disk of one life of the server: it takes its time, and a server that has ended reaches it no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from lakestore_server.host.crash_points import CrashPoint
from tests.simulation.world import Killed, Process, World
from tests.support.world.disk import SimDisk, SimFile

T = TypeVar("T")


@dataclass
class Speed:
    """How long a disk takes, on average, in seconds."""

    step: float = 30e-6
    sync: float = 800e-6
    factor: float = 1.0
    """The disk is slower than itself by so much, for a time."""


class LifeDisk:
    """`Disk` for one process, on a `SimDisk` that outlives it."""

    def __init__(self, world: World, process: Process, below: SimDisk, speed: Speed) -> None:
        self._world, self._process, self.below, self._speed = world, process, below, speed
        self.on_reach: Callable[[CrashPoint], None] = lambda point: None
        """Told of each crash point that is passed, before the disk is."""

    def _do(self, mean: float, work: Callable[[], T]) -> T:
        self._world.sleep(self._world.chance.expovariate(1.0 / (mean * self._speed.factor)))
        if self._process.is_dead:
            raise Killed
        return work()

    def create(self, path: Path, *, is_cached: bool = True) -> _LifeFile:
        """A new file."""
        file = self._do(self._speed.step, lambda: self.below.create(path, is_cached=is_cached))
        return _LifeFile(self, file)

    def rename(self, source: Path, target: Path) -> None:
        """As below."""
        self._do(self._speed.step, lambda: self.below.rename(source, target))

    def link(self, source: Path, target: Path) -> bool:
        """As below."""
        return self._do(self._speed.step, lambda: self.below.link(source, target))

    def remove(self, path: Path) -> None:
        """As below."""
        self._do(self._speed.step, lambda: self.below.remove(path))

    def make_folder(self, path: Path) -> None:
        """As below."""
        self._do(self._speed.step, lambda: self.below.make_folder(path))

    def remove_folder(self, path: Path) -> None:
        """As below."""
        self._do(self._speed.step, lambda: self.below.remove_folder(path))

    def sync_folder(self, path: Path) -> None:
        """As below, and as slow as a sync is."""
        self._do(self._speed.sync, lambda: self.below.sync_folder(path))

    def list(self, path: Path) -> list[str]:
        """As below."""
        return self.below.list(path)

    def read(self, path: Path) -> bytes:
        """As below."""
        return self._do(self._speed.step, lambda: self.below.read(path))

    def pieces(self, path: Path, size: int | None = None) -> Iterator[bytes]:
        """As below."""
        return self.below.pieces(path, size)

    def map(self, path: Path) -> pa.Buffer:
        """As below."""
        return self.below.map(path)

    def size(self, path: Path) -> int | None:
        """As below."""
        return self.below.size(path)

    def free_bytes(self, path: Path) -> int:
        """As below."""
        return self.below.free_bytes(path)

    def reach(self, point: CrashPoint) -> None:
        """As below, after the world was told."""
        if self._process.is_dead:
            raise Killed
        self.on_reach(point)
        self.below.reach(point)
        self._world.point()

    # Of files.

    def write(self, file: SimFile, parts: Sequence[Any]) -> int:
        """Append."""
        return self._do(self._speed.step, lambda: file.write(parts))

    def sync(self, file: SimFile) -> None:
        """Make durable."""
        self._do(self._speed.sync, file.sync)

    def truncate(self, file: SimFile, size: int) -> None:
        """Cut."""
        self._do(self._speed.step, lambda: file.truncate(size))


class _LifeFile:
    """`AppendFile` of one process."""

    def __init__(self, disk: LifeDisk, file: SimFile) -> None:
        self._disk, self._file = disk, file

    def write(self, parts: Sequence[Any]) -> int:
        """Append."""
        return self._disk.write(self._file, parts)

    def sync(self) -> None:
        """Make durable."""
        self._disk.sync(self._file)

    def write_back(self) -> None:
        """Bytes that were written may be on the disk at any moment: nothing happens."""

    def truncate(self, size: int) -> None:
        """Cut."""
        self._disk.truncate(self._file, size)

    def end(self) -> None:
        """It ends where its bytes do."""

    def close(self) -> None:
        """Close without syncing."""
        self._file.close()
