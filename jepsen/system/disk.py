"""The disk of the server's data folder: its faults, its power, and damage to its files."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jepsen.system import power
from jepsen.system.shim import Planted, Rule, Shim

END_SECONDS = 10.0


class ServerDisk:
    """The shim of one data folder, and the faults that are planted in it, each under the name of a nemesis."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the run's. `NoCompiler` where there can be no shim."""
        self.data = folder / "data"
        self.data.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._shim = Shim(folder / "disk", self.data)
        self._shim.keeps_log = True
        self._planted: dict[str, list[Planted]] = {}
        self._kept: dict[Path, tuple[int, bytes]] = {}
        """Path to inode and good content."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of a server on this disk."""
        return self._shim.environment

    def plant(self, name: str, rule: Rule) -> Planted:
        """Let calls fail, until all that has this name is lifted."""
        planted = self._shim.plant(rule)
        self._planted.setdefault(name, []).append(planted)
        return planted

    def lift(self, name: str) -> int:
        """Mend what has this name; how many calls had met it."""
        planted = self._planted.pop(name, [])
        hits = sum(each.hits for each in planted)
        for each in planted:
            each.lift()
        return hits

    def fill(self, room: int | None) -> None:
        """Leave so many bytes of room; None for all there is."""
        self._shim.room = room

    @property
    def is_off(self) -> bool:
        """Whether power is off."""
        return self._shim.off

    def switch_off(self) -> None:
        """Let nothing be changed on this disk any more; who tries waits."""
        self._shim.off = True

    def lose(self, chance: random.Random) -> dict[str, Any]:
        """End every process that has this disk, and leave what a power cut could have left. Power is on again."""
        self.end_processes()
        lost = power.cut(self._shim.side, self._shim.root, chance)
        self._shim.off = False
        return lost

    def end_processes(self) -> None:
        """kill -9 of every process that has this disk, and wait until they are gone."""
        deadline = time.monotonic() + END_SECONDS
        while left := self._processes():
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {left} are still there after kill -9")
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.005)

    def _processes(self) -> list[int]:
        mark = f"JEPSEN_DISK_SHIM={self._shim.side}".encode()
        return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit() and _has(each, mark)]

    def damage(self, path: Path, change: Callable[[bytes], bytes], *, is_kept: bool) -> None:
        """Change the content of a file; the good one can be kept aside until `restore`."""
        content = path.read_bytes()
        if is_kept:
            self._kept.setdefault(path, (path.stat().st_ino, content))
        _overwrite(path, change(content))

    @property
    def is_damaged(self) -> bool:
        """Whether there is damage whose good content is kept."""
        return bool(self._kept)

    def forget_damage(self) -> None:
        """Leave damaged files as they are, and to the server."""
        self._kept.clear()

    def restore(self) -> list[str]:
        """Put the good content into damaged files that are still there; their names."""
        mended = []
        while self._kept:
            path, (node, content) = self._kept.popitem()
            if path.exists() and path.stat().st_ino == node:
                _overwrite(path, content)
                mended.append(path.name)
        return mended

    def mend(self) -> None:
        """Let nothing fail any more, and restore what is damaged; the server must not run if something is."""
        for name in list(self._planted):
            self.lift(name)
        self.fill(None)
        self.restore()


def _overwrite(path: Path, content: bytes) -> None:
    """The same file with another content."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def _has(process: Path, mark: bytes) -> bool:
    try:
        return mark in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
