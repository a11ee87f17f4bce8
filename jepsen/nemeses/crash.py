"""Crashes: of processes at a named step, and of the machine, whose power goes at any moment or at such a step."""

from __future__ import annotations

import random
from typing import Any

from jepsen.nemeses import steps
from jepsen.nemeses.disk import DISK, running, until
from jepsen.nemeses.steps import STEPS
from jepsen.schedule import LEFT_OUT, Nemesis
from jepsen.system import System
from jepsen.system.disk import ServerDisk
from jepsen.system.shim import Action, Planted, Rule

WAIT_SECONDS = 3.0
"""The time for a step to come, before it is given up."""
START_SHARE, STEP_SHARE, TWICE_SHARE = 0.25, 0.5, 0.2
SKIP_MAX = 8


def _planted(disk: ServerDisk, name: str, step: str, skip: int, *, off: bool) -> Planted:
    at = STEPS[step]
    before, after = (Action.OFF_BEFORE, Action.OFF_AFTER) if off else (Action.KILL_BEFORE, Action.KILL_AFTER)
    return disk.plant(name, Rule(at.operation, at.pattern, before if at.is_before else after, skip=skip, times=1))


class CrashPoint:
    """kill -9 of the process that does a named step, the server or a child of it, at that step."""

    name, needs = "crash-point", DISK

    def begin(self, system: System, chance: random.Random) -> Any:
        """Wait for a step, or for one of a new start, and kill there."""
        disk = system.disk
        if disk is None:
            return system.left_out("disk")
        is_start = chance.random() < START_SHARE
        step = chance.choice(steps.at_start() if is_start else steps.at_work())
        skip = 0 if is_start else chance.randrange(SKIP_MAX)
        if is_start:
            system.server.kill()
        planted = _planted(disk, self.name, step, skip, off=False)
        if is_start:
            system.server.try_start()
        else:
            until(lambda: planted.hits > 0, WAIT_SECONDS)
        return {"step": step, "killed": planted.hits}

    def end(self, system: System) -> str:
        """Start the server if it was killed."""
        if system.disk is not None:
            system.disk.lift(self.name)
        return system.server.try_start()


class PowerCut:
    """No power for the server's machine: all that is not on its disk is gone. Whatever the seed chooses survives."""

    name, needs = "power", DISK

    def begin(self, system: System, chance: random.Random) -> Any:
        """Cut power, now or at a named step, now and then twice."""
        disk, told = running(system), []
        if disk is None:
            return system.left_out("disk") if "disk" in system.missing else f"{LEFT_OUT}the server is down already"
        for turn in range(2 if chance.random() < TWICE_SHARE else 1):
            step = self._at_start(system, disk, chance) if turn else self._awaited(disk, chance)
            disk.switch_off()
            with system.server.down():
                told.append({"step": step, **disk.lose(chance)})
        return told

    def _at_start(self, system: System, disk: ServerDisk, chance: random.Random) -> str:
        """Start, and lose power meanwhile."""
        step = chance.choice(steps.at_start())
        planted = _planted(disk, self.name, step, 0, off=True)
        system.server.try_start()
        disk.lift(self.name)
        return step if planted.hits else "any"

    def _awaited(self, disk: ServerDisk, chance: random.Random) -> str:
        """Wait for a step, if the seed wants one."""
        if chance.random() > STEP_SHARE:
            return "any"
        step = chance.choice(steps.at_work())
        _planted(disk, self.name, step, chance.randrange(SKIP_MAX), off=True)
        until(lambda: disk.is_off, WAIT_SECONDS)
        return step if disk.lift(self.name) else "any"

    def end(self, system: System) -> str:
        """Start it."""
        return system.server.try_start()


CRASHES: tuple[Nemesis[System], ...] = (CrashPoint(), PowerCut())
