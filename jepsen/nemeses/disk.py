"""Disks that are full, slow, or fail now and then."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jepsen.schedule import Nemesis
from jepsen.system import System
from jepsen.system.disk import ServerDisk
from jepsen.system.shim import Action, Operation, Rule

DISK = frozenset({"disk"})
END_SECONDS = 30.0
"""A server whose journal cannot be synced ends by itself within this time."""
SYNCS = Operation.SYNC | Operation.SYNC_FOLDER
SKIPS = (0, 0, 0, 1, 2, 10)
JOURNAL = "journal-*[0-9]"


class FullDisk:
    """No room, or little: what is told of free space, and what is written."""

    name, needs = "disk-full", DISK

    def begin(self, system: System, chance: random.Random) -> Any:
        """Leave some bytes."""
        if system.disk is None:
            return system.left_out("disk")
        room = chance.choice((0, chance.randrange(1 << 13), chance.randrange(1 << 20)))
        system.disk.fill(room)
        return {"room": room}

    def end(self, system: System) -> str:
        """Room again."""
        if system.disk is not None:
            system.disk.fill(None)
        return "there is room again"


@dataclass(frozen=True, slots=True)
class _Slowness:
    operations: Operation
    action: Action
    values: tuple[int, ...]


_SLOW = (
    _Slowness(SYNCS, Action.DELAY, (2_000, 20_000, 200_000, 1_000_000)),
    _Slowness(Operation.WRITE, Action.DELAY, (1_000, 10_000)),
    _Slowness(Operation.WRITE, Action.RATE, (50_000, 1_000_000)),
    _Slowness(Operation.READ | Operation.OPEN, Action.DELAY, (1_000, 20_000)),
    _Slowness(Operation.RENAME | Operation.REMOVE | Operation.CREATE, Action.DELAY, (10_000, 300_000)),
)


class SlowDisk:
    """Calls that take long: each of a kind, or by the byte."""

    name, needs = "disk-slow", DISK

    def begin(self, system: System, chance: random.Random) -> Any:
        """Make one kind slow, for all files or those of the journal."""
        if system.disk is None:
            return system.left_out("disk")
        kind, pattern = chance.choice(_SLOW), chance.choice(("*", "*", JOURNAL, "index/*"))
        value = chance.choice(kind.values)
        system.disk.plant(self.name, Rule(kind.operations, pattern, kind.action, value=value))
        return {"slow": kind.operations.name, "files": pattern, kind.action.name.lower(): value}

    def end(self, system: System) -> Any:
        """Make it fast again."""
        return {"slow calls": system.disk.lift(self.name) if system.disk else 0}


class FailingDisk:
    """A few calls of one kind that fail: of files, of names, of reads, or for want of descriptors."""

    name, needs = "disk-failing", DISK
    _FAILURES: tuple[tuple[Operation, Action, int], ...] = (
        (Operation.WRITE, Action.ERROR, errno.EIO),
        (Operation.WRITE, Action.SHORT, errno.EIO),
        (Operation.WRITE, Action.SHORT, errno.ENOSPC),
        (Operation.WRITE, Action.ERROR, errno.EDQUOT),
        (Operation.READ, Action.ERROR, errno.EIO),
        (Operation.OPEN | Operation.CREATE, Action.ERROR, errno.EMFILE),
        (Operation.RENAME, Action.ERROR, errno.EIO),
        (Operation.REMOVE, Action.ERROR, errno.EIO),
        (Operation.TRUNCATE, Action.ERROR, errno.EIO),
        (Operation.CREATE | Operation.FOLDER, Action.ERROR, errno.ENOSPC),
    )
    _FILES = ("*", "*", JOURNAL, "*journal*", "checkpoint-*", "segments/*", "index/*", "warehouse/*", "parts/*")

    def begin(self, system: System, chance: random.Random) -> Any:
        """Let some calls fail, the first few that match let through."""
        if system.disk is None:
            return system.left_out("disk")
        operation, action, number = chance.choice(self._FAILURES)
        pattern, skip, times = chance.choice(self._FILES), chance.choice(SKIPS), chance.choice((1, 1, 2, 6))
        system.disk.plant(self.name, Rule(operation, pattern, action, number, skip=skip, times=times))
        said = {"files": pattern, "error": os.strerror(number), "times": times, "skip": skip}
        return {str(operation.name): action.name.lower(), **said}

    def end(self, system: System) -> Any:
        """Let nothing fail; a server that ended is started."""
        failed = system.disk.lift(self.name) if system.disk else 0
        return {"failed calls": failed, "server": system.server.try_start()}


class FailingSync:
    """A sync that fails, once. The journal's ends the server; nothing is retried."""

    name, needs = "disk-sync", DISK

    def begin(self, system: System, chance: random.Random) -> Any:
        """Let the next sync of some files fail."""
        if system.disk is None:
            return system.left_out("disk")
        disk, pid = system.disk, system.server.pid
        pattern = chance.choice((JOURNAL, JOURNAL, "*", "checkpoint-*", "segments/*", "index/*", "."))
        rule = Rule(SYNCS, pattern, Action.ERROR, errno.EIO, skip=chance.choice(SKIPS), times=1)
        planted = disk.plant(self.name, rule)
        until(lambda: planted.hits > 0, 3.0)
        ended = planted.hits > 0 and pattern == JOURNAL and pid is not None
        if ended and not until(lambda: system.server.pid != pid, END_SECONDS):
            raise AssertionError("a sync of the journal failed, and the server goes on")
        return {"files": pattern, "failed": planted.hits}

    def end(self, system: System) -> Any:
        """Let nothing fail, and start the server if it has ended."""
        failed = system.disk.lift(self.name) if system.disk else 0
        return {"failed": failed, "server": system.server.try_start()}


def until(happens: Callable[[], bool], seconds: float) -> bool:
    """Wait for something; whether it happened."""
    deadline = time.monotonic() + seconds
    while not happens():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def running(system: System) -> ServerDisk | None:
    """The disk of a server that runs, if the system has one."""
    return system.disk if system.server.pid is not None else None


DISKS: tuple[Nemesis[System], ...] = (FullDisk(), SlowDisk(), FailingDisk(), FailingSync())
