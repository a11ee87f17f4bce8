"""A server on a disk with faults, in a process of its own: `python -m tests.support.faulty_server DATA PORT HTTP_PORT`.

LAKESTORE_FAULTS is JSON: {"kill": [crash point, passes before], "sync": [name prefix, syncs before],
"write": [name prefix, writes before], "rename": [name prefix, renames before], "quota": file that holds a number of
bytes}. Each fault but the quota happens once.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import click

from lakestore.cli.serve import ANNOUNCED
from lakestore.limits import Limits
from lakestore_server import main
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import AppendFile, RealDisk
from lakestore_server.settings import Settings

SMALL = Limits(
    journal_checkpoint_bytes=16 << 10, disk_free_bytes=1 << 20, shared_segment_bytes=2 << 10, merge_segments=2
)
"""Checkpoints come often, segments are merged soon, and a disk is full soon."""


class Faults:
    """What is planted, and how much of it is still to come."""

    def __init__(self, planted: dict[str, Any]) -> None:
        self._left = {kind: list(fault) for kind, fault in planted.items() if kind != "quota"}
        self._quota = planted.get("quota")

    def due(self, kind: str, name: str) -> bool:
        """Whether it happens now."""
        fault = self._left.get(kind)
        if fault is None or not name.startswith(fault[0]):
            return False
        fault[1] -= 1
        if fault[1] < 0:
            del self._left[kind]
            return True
        return False

    def free_bytes(self, folder: Path) -> int | None:
        """What the quota leaves; None without one."""
        if self._quota is None:
            return None
        used = sum(_size(file) for file in folder.rglob("*") if file.suffix != ".mdb")
        return max(int(Path(self._quota).read_text()) - used, 0)


def _size(path: Path) -> int:
    """The bytes of a file; 0 of a folder, and of a file that another thread has removed."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return 0
    return about.st_size if stat.S_ISREG(about.st_mode) else 0


class FaultyFile:
    """A file whose writes and syncs may fail."""

    def __init__(self, name: str, file: AppendFile, faults: Faults, root: Path) -> None:
        self.name, self._file, self._faults, self._root = name, file, faults, root
        self.truncate, self.end, self.close = file.truncate, file.end, file.close

    def write(self, parts: Sequence[Any]) -> int:
        """As far as the quota goes."""
        data = b"".join(memoryview(part).cast("B") for part in parts)
        free = self._faults.free_bytes(self._root)
        if self._faults.due("write", self.name) or (free is not None and free < len(data)):
            self._file.write([data[: min(len(data) // 2, len(data) if free is None else free)]])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.write([data])

    def sync(self) -> None:
        """Or EIO, once."""
        self._fail_if_due()
        self._file.sync()

    def write_back(self) -> None:
        """Or EIO, once, as a sync."""
        self._fail_if_due()
        self._file.write_back()

    def _fail_if_due(self) -> None:
        if self._faults.due("sync", self.name):
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class FaultyDisk(RealDisk):
    """The real disk of one data folder, with faults."""

    def __init__(self, root: Path, faults: Faults) -> None:
        self._root, self._faults = root, faults
        self._files: dict[Path, FaultyFile] = {}
        """The newest file of each path."""

    def create(self, path: Path, *, is_cached: bool = True) -> FaultyFile:
        """A file of this disk."""
        file = super().create(path, is_cached=is_cached)
        made = self._files[path] = FaultyFile(path.name, file, self._faults, self._root)
        return made

    def rename(self, source: Path, target: Path) -> None:
        """Or EIO, once."""
        if self._faults.due("rename", source.name):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().rename(source, target)
        renamed = self._files.pop(source, None)
        if renamed is not None:
            renamed.name = target.name
            self._files[target] = renamed

    def sync_folder(self, path: Path) -> None:
        """Or EIO, once; a folder's syncs are counted under `folder`."""
        if self._faults.due("sync", f"folder {path.name}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync_folder(path)

    def free_bytes(self, path: Path) -> int:
        """What the quota leaves."""
        free = self._faults.free_bytes(self._root)
        return super().free_bytes(path) if free is None else free

    def reach(self, point: CrashPoint) -> None:
        """Maybe this process ends here."""
        if self._faults.due("kill", point):
            os.kill(os.getpid(), signal.SIGKILL)


def serve(data: Path, port: int, http_port: int, planted: dict[str, Any]) -> None:
    """Serve until a signal or a fault."""
    disk = FaultyDisk(data, Faults(planted))
    with mock.patch.object(main, "RealDisk", return_value=disk):
        main.serve(
            Settings(data=data, port=port, http_port=http_port, limits=SMALL),
            lambda about: click.echo(ANNOUNCED.format_map(about)),
        )


if __name__ == "__main__":
    folder, grpc_port, catalog_port = sys.argv[1:]
    serve(Path(folder), int(grpc_port), int(catalog_port), json.loads(os.environ["LAKESTORE_FAULTS"]))
