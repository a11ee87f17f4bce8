"""Faults that need more than a crash: a problem of the index within a checkpoint, a lost journal file, scarce memory.

Each function is the beginning of a fault of `nemeses.NEMESES` and returns a text for the history.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from jepsen.anomaly import Anomaly
from lakestore_server.files import checkpoint, journal_file
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.index import key_index
from lakestore_server.index.entry import Ints
from lakestore_server.index.keys import IndexKeys
from tests.simulation import marks
from tests.simulation.system import SimSystem
from tests.simulation.world import World
from tests.support.world.disk import SimDisk

CHECKPOINT_SECONDS, REBUILD_LATE_SECONDS = 20.0, 3.0
NOBODY = "nobody there"
PROBLEM_AT = (CrashPoint.CHECKPOINT_FROZEN, CrashPoint.INDEX_MERGED, CrashPoint.INDEX_MERGED)
"""Before a checkpoint asks the index for its runs."""
END_AT = (CrashPoint.CHECKPOINT_DURABLE, CrashPoint.CHECKPOINT_INSTALLED, CrashPoint.TRIM_DURABLE)
"""Behind the file that names them."""


def index_problem(system: SimSystem, chance: random.Random) -> str:
    """A look-up finds a damaged block in the middle of a checkpoint, and the process ends before any rebuild begins."""
    machine, world = system.victim(chance), system.world
    server, life = machine.server, machine.life
    if server is None or life is None or not machine.is_up:
        return NOBODY
    point, end, power = chance.choice(PROBLEM_AT), chance.choice(END_AT), chance.random() < 0.5

    def found() -> None:
        for task in life.process.tasks:
            if task.name.startswith("index-rebuild"):
                world.stall(task, REBUILD_LATE_SECONDS)
        world.mark(marks.INDEX_PROBLEM)
        server.engine.index.found_problem("a block is damaged", damaged=True)

    machine.act_at(point, found)
    machine.crash_at(end, 0, loses_power=power)
    machine.within(server.upkeep.checkpoint, CHECKPOINT_SECONDS)
    machine.act_nowhere()
    return f"a problem at {point}, the end at {end}, {'with' if power else 'without'} the power"


def lose_journal_file(system: SimSystem, chance: random.Random) -> str:
    """A journal file that a start needs is missing: the start must refuse, and goes on when the file is back.

    The process ends when a checkpoint has just begun a journal file. So the last file is often empty, and only its
    name tells that the file before it is missing.
    """
    machine = system.victim(chance)
    server = machine.server
    if server is None or not machine.is_up:
        return NOBODY
    machine.crash_at(CrashPoint.CHECKPOINT_FROZEN, 0, loses_power=False)
    machine.within(server.upkeep.checkpoint, CHECKPOINT_SECONDS)
    machine.crash_nowhere()
    machine.kill()
    disk = machine.disk
    if not disk.powered:
        return "no power"
    disk.heal()
    disk.fill_up(None)
    needed = _needed(disk)
    if not needed:
        return "the journal has one file"
    path = disk.root / chance.choice(needed)
    data = disk.read(path)
    disk.remove(path)
    disk.sync_folder(disk.root)
    if machine.start():
        said = f"the server started without its journal file {path.name}"
        system.anomalies.append(Anomaly("started-with-loss", said))
        return said
    if "missing" in machine.failures[-1]:
        system.world.mark(marks.GAP_REFUSED)
    file = disk.create(path)
    file.write([data])
    file.sync()
    file.close()
    disk.sync_folder(disk.root)
    return f"{path.name} was lost and is back"


def _needed(disk: SimDisk) -> Sequence[str]:
    """The journal files behind the newest checkpoint, less the last one: a loss of the last one cannot be seen."""
    held = checkpoint.newest(disk, disk.root)
    assert held is not None, "a server has begun the folder"
    return [name for name in journal_file.names(disk, disk.root) if name >= journal_file.name_of(held.lsn + 1)][:-1]


def scarce_memory(system: SimSystem, chance: random.Random) -> str:
    """The next allocations fail in which the commit loop arranges the keys of commits that are under way.

    The disk is slow meanwhile, so that commits of the same keys wait for it one behind the other.
    """
    system.world.failing_allocations = fail = chance.randint(1, 3)
    factor = chance.choice((5.0, 30.0, 200.0))
    system.victim(chance).speed.factor = factor
    return f"{fail} allocations fail, and the disk is {factor:g} times slower"


def enough_memory(system: SimSystem) -> None:
    """The end of `scarce_memory`."""
    system.world.failing_allocations = 0
    for machine in system.machines:
        machine.speed.factor = 1.0


@contextmanager
def scarce(world: World) -> Iterator[None]:
    """Have allocations fail as the world says."""

    class ScarceLayer(key_index.Layer):
        """The keys of one commit that is not durable yet."""

        def put(self, keys: IndexKeys, values: Ints) -> None:
            """Put the keys, unless memory is scarce."""
            if world.failing_allocations:
                world.failing_allocations -= 1
                world.mark(marks.NO_MEMORY)
                raise MemoryError
            super().put(keys, values)

    with patch.object(key_index, "Layer", ScarceLayer):
        yield
