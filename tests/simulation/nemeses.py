"""Nemeses of the simulated system: the faults that only a simulation can have at any moment, and have again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from jepsen.schedule import Nemesis, Planned
from lakestore_server.host.crash_points import CrashPoint
from tests.simulation import marks, planned_losses
from tests.simulation.system import SimSystem

QUIET_SHARE = 0.25
"""Of all runs so many have no fault."""
KINDS_MAX, FAULTS_MAX = 4, 6
HOURS = 3600
WEATHER = {"hole": (0.05,), "mute": (0.1, 0.3, 0.6)}
"""The chances of a kind of weather, of which one is drawn, where they are not those of most."""
DUTY_SECONDS, DONE = 20.0, "done"
OF_CHECKPOINT = tuple(point for point in CrashPoint if point.startswith(("checkpoint.", "segment.", "index.", "trim.")))
"""Points that a checkpoint passes."""
OF_TRIM = tuple(point for point in OF_CHECKPOINT if point.startswith("trim."))
"""Points of its end: what is removed by then may be gone, and what was named before not yet there."""


class _Fault:
    """One kind of fault, by two functions of the system."""

    needs: frozenset[str] = frozenset()

    def __init__(
        self,
        name: str,
        begin: Callable[[SimSystem, random.Random], Any],
        end: Callable[[SimSystem], Any] = lambda system: None,
    ) -> None:
        self.name, self._begin, self._end = name, begin, end

    def begin(self, system: SimSystem, chance: random.Random) -> Any:
        """Break something."""
        system.world.mark(f"fault {self.name}")
        return self._begin(system, chance)

    def end(self, system: SimSystem) -> Any:
        """Mend it."""
        return self._end(system)


class _Excused(_Fault):
    """A fault after which calls may end in errors that are defects else."""

    excuses = frozenset({"Internal: a defect of the server: MemoryError"})


def _restart(system: SimSystem) -> None:
    system.restart()


def _kill(system: SimSystem, _: random.Random) -> str:
    system.machine.kill()
    return "killed"


def _power(system: SimSystem, chance: random.Random) -> str:
    """Now, or some steps of the disk later; the whole index may go with it."""
    machine, steps = system.machine, chance.choice((0, 0, 1, 2, 3, 5, 8, 13))
    seed = None if chance.random() < 0.2 else chance.getrandbits(32)
    lost = ("index",) if chance.random() < 0.1 else ()
    if steps and machine.is_up:
        machine.disk.lose_power_after(steps)
        for _ in range(50):
            if not machine.disk.powered:
                break
            system.world.sleep(0.01)
    machine.lose_power(seed, lost=lost)
    return f"power lost {steps} steps later, seed {seed}, lost {lost}"


def _crash_point(system: SimSystem, chance: random.Random) -> str:
    """At any point; mostly at one of a checkpoint that begins now: its steps are many, and soon over."""
    of_checkpoint = chance.random() < 0.7
    of_trim = of_checkpoint and chance.random() < 0.3
    point = chance.choice(OF_TRIM if of_trim else OF_CHECKPOINT if of_checkpoint else tuple(CrashPoint))
    passes, power = chance.choice((0, 0, 0, 1) if of_checkpoint else (0, 0, 1, 3)), chance.random() < 0.7
    system.machine.crash_at(point, passes, loses_power=power)
    server = system.machine.server
    if of_checkpoint and server is not None and system.machine.is_up:
        server.upkeep.checkpointer.wake()
    return f"{point} after {passes} passes, {'with' if power else 'without'} the power"


def _after_crash_point(system: SimSystem) -> None:
    machine = system.machine
    machine.crash_nowhere()
    if not machine.is_up and not machine.disk.powered:
        machine.lose_power(machine.chance.getrandbits(32))
    system.restart()


def _pause(system: SimSystem, _: random.Random) -> str:
    life = system.machine.life
    if life is not None and not life.process.is_dead:
        system.world.pause(life.process)
        return "stopped"
    return "nobody there"


def _resume(system: SimSystem) -> None:
    life = system.machine.life
    if life is not None and life.process.is_paused:
        system.world.resume(life.process)


def _weather(system: SimSystem, chance: random.Random) -> str:
    weather = system.network.weather
    kinds = chance.sample(("lost", "late", "unanswered", "hole", "slow", "mute"), chance.randint(1, 3))
    for kind in kinds:
        setattr(weather, kind, chance.choice(WEATHER.get(kind, (0.02, 0.1, 0.3))))
    return ", ".join(kinds)


def _calm(system: SimSystem) -> None:
    system.network.weather.calm()


def _fail_step(system: SimSystem, chance: random.Random) -> str:
    steps = "sync", "sync_folder", "write", "create", "rename", "truncate", ""
    what, after = chance.choice(steps), chance.randint(0, 6)
    system.machine.disk.fail(what, after=after)
    return f"{what or 'any step'} fails after {after}"


def _fail_checkpoint(system: SimSystem, chance: random.Random) -> str:
    """A checkpoint that begins now comes as far as its segments, or its own file, and no further."""
    steps = chance.choice((tuple(f"create {digit}" for digit in range(10)), ("create checkpoint",), ("rename checkp",)))
    for step in steps:
        system.machine.disk.fail(step)
    told = _checkpoint(system)
    system.failed_in = None if told == DONE else system.machine.life
    return f"{steps[0]} fails: {told}"


def _checkpoint(system: SimSystem) -> str:
    """A checkpoint at this moment, and what came of it: the duty tries again by itself long after a run."""
    server = system.machine.server
    if server is None or not system.machine.is_up:
        return "nobody there"
    error = system.machine.within(server.upkeep.checkpoint, DUTY_SECONDS)
    return type(error).__name__ if error else DONE


def _checkpoint_again(system: SimSystem) -> str:
    """The same server goes on where the last checkpoint has failed."""
    _heal_disk(system)
    told, failed_in = _checkpoint(system), system.failed_in
    if told == DONE and failed_in is not None and failed_in is system.machine.life:
        system.world.mark(marks.BEHIND_FAILED)
    return told


def _heal_disk(system: SimSystem) -> None:
    system.machine.disk.heal()
    system.machine.disk.fill_up(None)
    if not system.machine.is_up:
        system.restart()


def _full(system: SimSystem, chance: random.Random) -> str:
    room = chance.randint(0, 12)
    system.machine.disk.fill_up(room)
    return f"full after {room} writes"


def _slow(system: SimSystem, chance: random.Random) -> str:
    system.machine.speed.factor = factor = chance.choice((5.0, 30.0, 200.0))
    return f"{factor:g} times slower"


def _fast(system: SimSystem) -> None:
    system.machine.speed.factor = 1.0


def _clock(system: SimSystem, chance: random.Random) -> dict[str, Any]:
    """Another time, told with the seconds for which it has to stand before it may be believed."""
    machine = system.machine
    confirm = machine.limits.clock_confirm_seconds
    if chance.random() < 0.25:
        machine.freeze_clock()
        return {"how": "stands still", "confirm": confirm}
    seconds = chance.choice((-1, 1)) * chance.choice((1, 60, HOURS, 5 * HOURS, 30 * 24 * HOURS))
    machine.set_clock(seconds)
    return {"how": "jump", "seconds": seconds, "confirm": confirm}


def _clock_right(system: SimSystem) -> None:
    system.machine.set_clock(0)


def _stall(system: SimSystem, chance: random.Random) -> str:
    """One thread of the server, or of a client, stands still for a time, as a swapped page or a debugger makes it."""
    life = system.machine.life
    servers = life.process.tasks if life and not life.process.is_dead else []
    clients = [task for task in system.world.outside.tasks if task.name not in ("main", "nemesis")]
    tasks = [task for task in (servers, servers, clients)[chance.randrange(3)] if not task.is_over]
    if not tasks:
        return "nobody there"
    task = chance.choice(tasks)
    system.world.stall(task, seconds := chance.choice((0.05, 0.5, 3.0)))
    return f"{task.name} for {seconds} s"


def _duty(system: SimSystem, chance: random.Random) -> str:
    """A duty is due at this moment."""
    server = system.machine.server
    if server is None or not system.machine.is_up:
        return "nobody there"
    duties: dict[str, Callable[[], object]] = {
        "checkpoint": server.upkeep.checkpointer.wake,
        "checkpoint in the foreground": server.upkeep.checkpoint,
        "retention": server.retention.run_once,
        "expiry": server.expiry.run_once,
        "scrub": server.upkeep.scrubber.run_once,
    }
    name = chance.choice(list(duties))
    error = system.machine.within(duties[name], DUTY_SECONDS)
    return f"{name}: {type(error).__name__ if error else 'done'}"


NEMESES: dict[str, Nemesis[SimSystem]] = {
    each.name: each
    for each in (
        _Fault("kill", _kill, _restart),
        _Fault("power", _power, _restart),
        _Fault("crash-point", _crash_point, _after_crash_point),
        _Fault("pause", _pause, _resume),
        _Fault("network", _weather, _calm),
        _Fault("disk-fails", _fail_step, _heal_disk),
        _Fault("disk-full", _full, _heal_disk),
        _Fault("checkpoint-fails", _fail_checkpoint, _checkpoint_again),
        _Fault("disk-slow", _slow, _fast),
        _Fault("index-problem", planned_losses.index_problem, _after_crash_point),
        _Fault("journal-lost", planned_losses.lose_journal_file, _restart),
        _Excused("memory", planned_losses.scarce_memory, planned_losses.enough_memory),
        _Fault("clock", _clock, _clock_right),
        _Fault("stall", _stall),
        _Fault("duty", _duty),
    )
}
"""All of them, by name."""


def plan(seed: str, seconds: float, names: tuple[str, ...]) -> list[Planned]:
    """The faults of a run: none in a quarter of all runs, else some of a few kinds, at any time and together."""
    chance = random.Random(f"{seed} faults")
    if chance.random() < QUIET_SHARE or not names:
        return []
    kinds = chance.sample(sorted(names), min(chance.randint(1, KINDS_MAX), len(names)))
    planned = []
    for _ in range(chance.randint(1, FAULTS_MAX)):
        begins = round(chance.uniform(0.0, seconds * 0.9), 4)
        ends = round(min(begins + chance.expovariate(4.0 / seconds), seconds), 4)
        planned.append(Planned(begins, ends, chance.choice(kinds), chance.getrandbits(32)))
    return sorted(planned, key=lambda each: (each.begins, each.ends))
