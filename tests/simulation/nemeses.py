"""Nemeses of the simulated system: the faults that only a simulation can have at any moment, and have again.

A fault befalls one machine of several, the leader's in half of all cases. Its end mends every machine in the same way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from jepsen.schedule import Nemesis, Planned
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.host.crash_points import CrashPoint
from tests.simulation import marks, planned_losses
from tests.simulation.log_link import Cut
from tests.simulation.machine import Machine
from tests.simulation.system import Shared, SimSystem
from tests.support.shared_log import Faults, SharedLog

QUIET_SHARE = 0.25
"""Of all runs so many have no fault."""
KINDS_MAX, FAULTS_MAX = 4, 6
HOURS = 3600
LONE = "server"
"""The name of a machine that is the only one."""
LOG_FAULTS = "lost", "unanswered", "twice", "somewhere", "strangers", "skips", "no_room"
STORE_FAULTS = "lost", "unanswered", "refused"
WEATHER = {"hole": (0.05,), "mute": (0.1, 0.3, 0.6)}
"""The chances of a kind of weather, of which one is drawn, where they are not those of most."""
DUTY_SECONDS, DONE = 20.0, "done"
RESCALE = "rescale"
"""No fault, but it must change no answer. Workloads that look at buckets and offsets of rows cannot have it, so runs
have it on request."""
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


def _kill(system: SimSystem, chance: random.Random) -> str:
    machine = system.victim(chance)
    machine.kill()
    return _told(machine, "killed")


def _told(machine: Machine, text: str) -> str:
    """What happened, and to which of several machines."""
    return text if machine.name == LONE else f"{machine.name}: {text}"


def _power(system: SimSystem, chance: random.Random) -> str:
    """Now, or some steps of the disk later; the whole index may go with it."""
    machine, steps = system.victim(chance), chance.choice((0, 0, 1, 2, 3, 5, 8, 13))
    seed = None if chance.random() < 0.2 else chance.getrandbits(32)
    lost = ("index",) if chance.random() < 0.1 else ()
    if steps and machine.is_up:
        machine.disk.lose_power_after(steps)
        for _ in range(50):
            if not machine.disk.powered:
                break
            system.world.sleep(0.01)
    machine.lose_power(seed, lost=lost)
    return _told(machine, f"power lost {steps} steps later, seed {seed}, lost {lost}")


def _crash_point(system: SimSystem, chance: random.Random) -> str:
    """At any point; mostly at one of a checkpoint that begins now: its steps are many, and soon over."""
    of_checkpoint = chance.random() < 0.7
    of_trim = of_checkpoint and chance.random() < 0.3
    point = chance.choice(OF_TRIM if of_trim else OF_CHECKPOINT if of_checkpoint else tuple(CrashPoint))
    passes, power = chance.choice((0, 0, 0, 1) if of_checkpoint else (0, 0, 1, 3)), chance.random() < 0.7
    machine = system.victim(chance)
    machine.crash_at(point, passes, loses_power=power)
    if of_checkpoint and machine.server is not None and machine.is_up:
        machine.server.upkeep.checkpointer.wake()
    return _told(machine, f"{point} after {passes} passes, {'with' if power else 'without'} the power")


def _after_crash_point(system: SimSystem) -> None:
    for machine in system.machines:
        machine.crash_nowhere()
        if not machine.is_up and not machine.disk.powered:
            machine.lose_power(machine.chance.getrandbits(32))
    system.restart()


def _pause(system: SimSystem, chance: random.Random) -> str:
    machine = system.victim(chance)
    life = machine.life
    if life is not None and not life.process.is_dead:
        system.world.pause(life.process)
        return _told(machine, "stopped")
    return "nobody there"


def _resume(system: SimSystem) -> None:
    for machine in system.machines:
        life = machine.life
        if life is not None and life.process.is_paused:
            system.world.resume(life.process)


def _weather(system: SimSystem, chance: random.Random) -> str:
    machine = system.victim(chance)
    weather = machine.network.weather
    kinds = chance.sample(("lost", "late", "unanswered", "hole", "slow", "mute"), chance.randint(1, 3))
    for kind in kinds:
        setattr(weather, kind, chance.choice(WEATHER.get(kind, (0.02, 0.1, 0.3))))
    return _told(machine, ", ".join(kinds))


def _calm(system: SimSystem) -> None:
    for machine in system.machines:
        machine.network.weather.calm()


def _fail_step(system: SimSystem, chance: random.Random) -> str:
    steps = "sync", "sync_folder", "write", "create", "rename", "truncate", ""
    what, after = chance.choice(steps), chance.randint(0, 6)
    machine = system.victim(chance)
    machine.disk.fail(what, after=after)
    return _told(machine, f"{what or 'any step'} fails after {after}")


def _fail_checkpoint(system: SimSystem, chance: random.Random) -> str:
    """A checkpoint that begins now comes as far as its segments, or its own file, and no further."""
    steps = chance.choice((tuple(f"create {digit}" for digit in range(10)), ("create checkpoint",), ("rename checkp",)))
    machine = system.victim(chance)
    for step in steps:
        machine.disk.fail(step)
    told = _checkpoint(machine)
    system.failed_in = None if told == DONE else machine.life
    return _told(machine, f"{steps[0]} fails: {told}")


def _checkpoint(machine: Machine) -> str:
    """A checkpoint at this moment, and what came of it: the duty tries again by itself long after a run."""
    server = machine.server
    if server is None or not machine.is_up:
        return "nobody there"
    error = machine.within(server.upkeep.checkpoint, DUTY_SECONDS)
    return type(error).__name__ if error else DONE


def _checkpoint_again(system: SimSystem) -> str:
    """The same server goes on where the last checkpoint has failed."""
    _heal_disk(system)
    failed_in = system.failed_in
    machine = next((each for each in system.machines if each.life is failed_in), system.machines[0])
    told = _checkpoint(machine)
    if told == DONE and failed_in is not None and failed_in is machine.life:
        system.world.mark(marks.BEHIND_FAILED)
    return told


def _heal_disk(system: SimSystem) -> None:
    for machine in system.machines:
        machine.disk.heal()
        machine.disk.fill_up(None)
    if not all(machine.is_up for machine in system.machines):
        system.restart()


def _full(system: SimSystem, chance: random.Random) -> str:
    room, machine = chance.randint(0, 12), system.victim(chance)
    machine.disk.fill_up(room)
    return _told(machine, f"full after {room} writes")


def _slow(system: SimSystem, chance: random.Random) -> str:
    factor, machine = chance.choice((5.0, 30.0, 200.0)), system.victim(chance)
    machine.speed.factor = factor
    return _told(machine, f"{factor:g} times slower")


def _fast(system: SimSystem) -> None:
    for machine in system.machines:
        machine.speed.factor = 1.0


def _clock(system: SimSystem, chance: random.Random) -> dict[str, Any]:
    """Another time, told with the seconds for which it has to stand before it may be believed."""
    machine = system.victim(chance)
    confirm = machine.limits.clock_confirm_seconds
    if chance.random() < 0.25:
        machine.freeze_clock()
        return {"how": "stands still", "confirm": confirm}
    seconds = chance.choice((-1, 1)) * chance.choice((1, 60, HOURS, 5 * HOURS, 30 * 24 * HOURS))
    machine.set_clock(seconds)
    return {"how": "jump", "seconds": seconds, "confirm": confirm}


def _clock_right(system: SimSystem) -> None:
    for machine in system.machines:
        machine.set_clock(0)


def _stall(system: SimSystem, chance: random.Random) -> str:
    """One thread of the server, or of a client, stands still for a time, as a swapped page or a debugger makes it."""
    life = system.victim(chance).life
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
    machine = system.victim(chance)
    server = machine.server
    if server is None or not machine.is_up:
        return "nobody there"
    duties: dict[str, Callable[[], object]] = {
        "checkpoint": server.upkeep.checkpointer.wake,
        "checkpoint in the foreground": server.upkeep.checkpoint,
        "retention": server.retention.run_once,
        "expiry": server.expiry.run_once,
        "scrub": server.upkeep.scrubber.run_once,
    }
    name = chance.choice(list(duties))
    error = machine.within(duties[name], DUTY_SECONDS)
    return _told(machine, f"{name}: {type(error).__name__ if error else 'done'}")


def _rescale(system: SimSystem, chance: random.Random) -> str:
    """A table gets another number of buckets, or a running rescale is stopped. A log table with one bucket is left
    alone: it has an order of all rows, which several buckets do not have."""
    leader = system.leader()
    server = None if leader is None else leader.server
    if server is None or leader is None or not leader.is_up:
        return "nobody there"
    view = server.engine.view
    tables = [state.table for uuid, state in view.tables.items() if not view.is_copy(uuid)]
    names = sorted(table.name for table in tables if table.keyed or table.buckets > 1)
    if not names:
        return "no table"
    request = pb.RescaleTableRequest(table=chance.choice(names), buckets=chance.choice((1, 2, 3, 5)))
    held = view.named(request.table)
    if held.table.uuid in view.rescales:
        request.abort = True
    error = leader.within(partial(server.service.verbs["RescaleTable"], request), DUTY_SECONDS)
    told = f"{request.table}: {'stopped' if request.abort else f'to {request.buckets} buckets'}"
    if error is None and not request.abort:
        system.world.mark(marks.RESCALED)
    return _told(leader, f"{told}: {type(error).__name__ if error else DONE}")


def _mark_swaps(system: SimSystem) -> None:
    leader = system.leader()
    if leader is not None and leader.server is not None:
        if any(state.former for state in leader.server.engine.view.tables.values()):
            system.world.mark(marks.SWAPPED)


# Faults of servers that share a journal


def _shared(system: SimSystem) -> Shared:
    assert system.shared is not None, "a server alone has no log"
    return system.shared


def _cut_from_log(system: SimSystem, chance: random.Random) -> str:
    """A partition between one server and the log, which may store what it does not answer."""
    machine = system.victim(chance)
    cut: Cut = chance.choice(("requests", "requests", "answers"))
    _shared(system).links[machine.name].cut = cut
    return _told(machine, f"{cut} do not come through")


def _mend_links(system: SimSystem) -> None:
    for link in _shared(system).links.values():
        link.mend()


def _cut_from_clients(system: SimSystem, chance: random.Random) -> str:
    """A partition between one server and its clients, while it goes on to talk with the log."""
    machine = system.victim(chance)
    machine.network.weather.hole = machine.network.weather.mute = 1.0
    return _told(machine, "no client comes through")


def _stall_log(system: SimSystem, chance: random.Random) -> str:
    """The log answers nobody for a time, as while a broker is replaced."""
    seconds = chance.choice((0.1, 0.4, 1.5))
    _shared(system).log.stall(seconds)
    return f"for {seconds} s"


def _fail_log(system: SimSystem, chance: random.Random) -> str:
    """Answers get lost; messages come late, twice or between those of strangers; a store refuses requests."""
    log = _shared(system).log
    names = LOG_FAULTS if isinstance(log, SharedLog) else STORE_FAULTS
    often = {name: chance.choice((0.0, 0.05, 0.3)) for name in names}
    log.faults = Faults(**often, delay=chance.choice((0.01, 0.2)), late=chance.choice((0.5, 3.0)))
    return ", ".join(f"{name} {value:g}" for name, value in often.items() if value)


def _heal_log(system: SimSystem) -> None:
    shared = _shared(system)
    shared.log.faults = shared.faults


def _all_down(system: SimSystem, chance: random.Random) -> str:
    """Every server is killed at once, some with the power."""
    told = []
    for machine in system.machines:
        if chance.random() < 0.5:
            machine.kill()
            told.append(_told(machine, "killed"))
        else:
            machine.lose_power(chance.getrandbits(32))
            told.append(_told(machine, "power lost"))
    return ", ".join(told)


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
        _Fault(RESCALE, _rescale, _mark_swaps),
        _Fault("log-cut", _cut_from_log, _mend_links),
        _Fault("clients-cut", _cut_from_clients, _calm),
        _Fault("log-stalls", _stall_log),
        _Fault("log-fails", _fail_log, _heal_log),
        _Fault("all-down", _all_down, _restart),
    )
}
"""All of them, by name."""
OF_SEVERAL = frozenset({"log-cut", "clients-cut", "log-stalls", "log-fails", "all-down"})
"""Faults that need servers with a shared journal."""


def possible(names: Iterable[str], servers: int) -> tuple[str, ...]:
    """Those of some names that so many servers can have."""
    return tuple(name for name in names if servers > 1 or name not in OF_SEVERAL)


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
