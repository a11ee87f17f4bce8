"""A run: make tables, do operations while nemeses break things, heal, read to the end, judge.

The same code runs against processes and inside a simulation, whose threads and clock it does not know apart.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import lakestore as ls
from jepsen.anomaly import Anomaly
from jepsen.history import Recorder
from jepsen.operation import EXCUSE, HEALED, NEMESIS, READS, Invocation, Kind
from jepsen.schedule import Excusing, Nemesis, Planned, is_left_out, moments
from jepsen.verdict import Judged, Verdict, judge
from jepsen.workload import Client, Target, Workload, trouble

OPERATIONS = 1_000_000
HEAL_SECONDS = 60.0
"""Once everything has healed, every operation must succeed within this time (R36)."""
AGAIN_SECONDS = 0.25
LOOK_SECONDS = 0.5


class Unrecoverable(Exception):
    """A system that does not start any more, though nothing is broken: what it acknowledged is not to be had."""


class System(Target, Protocol):
    """A target whose faults can be mended."""

    def heal(self) -> Sequence[str] | None:
        """Mend and start whatever is broken or ended; `Unrecoverable` if it does not start.

        The defects that were seen: what no fault explains.
        """


@dataclass(frozen=True, slots=True)
class Course:
    """The length and the density of a run; with its seed and its faults it says all about it."""

    seed: int | str
    seconds: float
    processes: int = 4
    operations: int = OPERATIONS
    """The most that one process does in the main phase, which then ends if no fault is planned."""
    pause_seconds: float = 0.01
    """Between two operations of a process, on average."""
    hung_seconds: float | None = None
    """A call that has not ended after so long never will: the run is judged without it."""
    reads: str = "leader"
    """Where connections of the main phase read; the last phase reads at the leader."""
    nemeses_apart: bool = False
    """Whether each nemesis has a thread of its own, so that one that starts a server for long holds up no other."""


class Run:
    """One run of some workloads on one system."""

    def __init__(
        self,
        system: System,
        workloads: Sequence[Workload],
        nemeses: Mapping[str, Nemesis[Any]],
        planned: Sequence[Planned],
        course: Course,
        folder: Path | None = None,
        client: Callable[[Workload, int], Client] | None = None,
    ) -> None:
        """With a folder every operation is in the file of its workload's history as soon as it is recorded.

        `client` makes the client of a workload's process; by default the workload does, here.
        """
        self._system, self._workloads, self._nemeses = system, workloads, nemeses
        self._planned, self._course = planned, course
        self._client = client or (lambda workload, process: workload.client(system, process))
        files = {each.name: folder / f"{each.name}.jsonl" if folder else None for each in workloads}
        self._recorders = {name: Recorder(file) for name, file in files.items()}
        self._over = threading.Event()
        self._lock, self._working = threading.Lock(), 0
        self._begun: dict[Planned, Nemesis[Any]] = {}
        self._made: Counter[str] = Counter()
        self._sessions: dict[str, _Session] = {}
        """By the names of their threads."""
        self._hung: list[str] = []
        self.crashes: list[str] = []
        """Tracebacks of errors that no client may raise."""

    def run(self) -> Verdict:
        """Do it all."""
        began = time.monotonic()
        for recorder in self._recorders.values() if self._course.reads != "leader" else ():
            recorder.record(NEMESIS, Kind.INFO, READS, self._course.reads)
        with self._system.connect(-1) as lake:
            for each in self._workloads:
                each.setup(lake)
        self._main_phase()
        judged: list[Judged] = []
        try:
            self._heal()
            self._last_phase()
        except Unrecoverable as error:
            judged.append(Judged("run", (Anomaly("unrecoverable", str(error)),)))
        histories = {name: recorder.close() for name, recorder in self._recorders.items()}
        judged += [judge(each, histories[each.name]) for each in self._workloads]
        judged += [Judged("run", (Anomaly("hung", text),)) for text in self._hung]
        judged += [Judged.crashed(text) for text in self.crashes]
        return Verdict(self._course.seed, time.monotonic() - began, tuple(judged), dict(self._made))

    def _main_phase(self) -> None:
        threads = [threading.Thread(target=self._break, name="nemesis", daemon=True)]
        for workload in self._workloads:
            for process in range(self._course.processes):
                name = f"{workload.name}-{process}"
                given = workload, process
                threads.append(threading.Thread(target=self._work, args=given, name=name, daemon=True))
        self._working = len(threads) - 1
        for thread in threads:
            thread.start()
        threads[0].join()
        self._over.set()
        self._join(threads[1:])

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        """Wait for the ends of processes, but for none in a call that has hung."""
        limit = self._course.hung_seconds
        for thread in threads:
            while limit is not None and thread.is_alive():
                thread.join(LOOK_SECONDS)
                session = self._sessions.get(thread.name)
                if session is not None and session.seconds() > limit:
                    self._hung.append(f"{session.doing} of {thread.name} has not ended after {limit:g} s")
                    break
            else:
                thread.join()

    def _work(self, workload: Workload, process: int) -> None:
        chance = random.Random(f"{self._course.seed} {workload.name} {process}")
        session = self._session(workload, process)
        try:
            for number, invocation in enumerate(workload.operations(process, chance)):
                if self._over.is_set() or number >= self._course.operations:
                    break
                session.do(invocation)
                self._over.wait(chance.expovariate(1 / self._course.pause_seconds))
        except Exception:  # told in the verdict
            self.crashes.append(traceback.format_exc())
        finally:
            session.close()
            self._ended()

    def _ended(self) -> None:
        """The last process to end also ends a main phase in which no fault is to come."""
        with self._lock:
            self._working -= 1
            if not self._working and not self._planned:
                self._over.set()

    def _break(self) -> None:
        begun = time.monotonic()  # not the recorders' time: to make the tables may take long
        if self._course.nemeses_apart:
            self._break_apart(begun)
        else:
            self._break_by(moments(self._planned), begun)
        self._over.wait(max(begun + self._course.seconds - time.monotonic(), 0.0))

    def _break_by(self, schedule: Sequence[tuple[float, bool, Planned]], begun: float) -> None:
        for at, begins, planned in schedule:
            self._over.wait(max(begun + at - time.monotonic(), 0.0))
            self._move(planned, begins=begins)

    def _break_apart(self, begun: float) -> None:
        schedule = moments(self._planned)
        threads = [
            threading.Thread(
                target=self._break_by,
                args=([each for each in schedule if each[2].nemesis == name], begun),
                name=f"nemesis-{name}",
                daemon=True,
            )
            for name in sorted({each.nemesis for each in self._planned})
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _move(self, planned: Planned, *, begins: bool) -> None:
        nemesis = self._nemeses[planned.nemesis]
        if not begins and self._begun.pop(planned, None) is None:
            return
        f = f"{planned.nemesis}-{'begin' if begins else 'end'}"
        if begins and isinstance(nemesis, Excusing):
            for recorder in self._recorders.values():
                recorder.record(NEMESIS, Kind.INFO, EXCUSE, sorted(nemesis.excuses))
        try:
            if begins:
                self._begun[planned] = nemesis
            value = nemesis.begin(self._system, random.Random(planned.seed)) if begins else nemesis.end(self._system)
            error = ""
            with self._lock:
                self._made[planned.nemesis] += begins and not is_left_out(value)
        except Exception as raised:  # a fault that fails must not hide: it is told in the verdict
            value, error = None, f"{type(raised).__name__}: {raised}"
            self.crashes.append(traceback.format_exc())
        for recorder in self._recorders.values():
            recorder.record(NEMESIS, Kind.INFO, f, value, error)

    def _heal(self) -> None:
        for planned in list(self._begun):
            self._move(planned, begins=False)
        self.crashes += self._system.heal() or ()
        for recorder in self._recorders.values():
            recorder.record(NEMESIS, Kind.INFO, HEALED)

    def _last_phase(self) -> None:
        """Every process reads what is there; each operation is tried until it succeeds or its time is over."""
        threads = [
            threading.Thread(
                target=self._read, args=(workload, process), name=f"{workload.name}-last-{process}", daemon=True
            )
            for workload in self._workloads
            for process in range(self._course.processes)
        ]
        for thread in threads:
            thread.start()
        self._join(threads)

    def _read(self, workload: Workload, process: int) -> None:
        recorder = self._recorders[workload.name]
        session = self._session(workload, process, first=_LAST_PROCESSES)
        patience = HEAL_SECONDS
        try:
            for invocation in workload.last(process):
                deadline = time.monotonic() + patience
                while session.do(invocation) is not Kind.OK:
                    if time.monotonic() > deadline:
                        recorder.record(NEMESIS, Kind.INFO, "stuck", [process, invocation.f, invocation.value])
                        patience = 0.0  # the rest once each: what they read may say why
                        break
                    time.sleep(AGAIN_SECONDS)
        except Exception:  # told in the verdict
            self.crashes.append(traceback.format_exc())
        finally:
            session.close()

    def _session(self, workload: Workload, process: int, first: int = 0) -> _Session:
        recorder, processes = self._recorders[workload.name], self._course.processes
        session = _Session(lambda: self._client(workload, process), recorder, first + process, processes)
        name = f"{workload.name}-last-{process}" if first else f"{workload.name}-{process}"
        self._sessions[name] = session
        return session


_LAST_PROCESSES = 1_000_000
"""Numbers of processes of the last phase begin here."""


class _Session:
    """One process: its client, and a new process with a new client after a call whose outcome is unknown."""

    def __init__(self, connect: Callable[[], Client], recorder: Recorder, number: int, processes: int) -> None:
        """`connect` makes its client; `processes`: how many numbers further its next number is."""
        self._connect, self._recorder, self._number, self._processes = connect, recorder, number, processes
        self._client: Client | None = None
        self._since: float | None = None
        self.doing = ""
        """The function that is called, or was last."""

    def seconds(self) -> float:
        """The time for which a call has been under way; 0 for none."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def do(self, invocation: Invocation) -> Kind:
        """Do it and record both ends."""
        self.doing, self._since = invocation.f, time.monotonic()
        try:
            return self._do(invocation)
        finally:
            self._since = None

    def _do(self, invocation: Invocation) -> Kind:
        recorder = self._recorder
        recorder.invoke(self._number, invocation)
        try:
            if self._client is None:
                self._client = self._connect()
            value = self._client.invoke(invocation)
        except ls.LakestoreError as error:
            kind = Kind.FAIL if error.applied == "no" else Kind.INFO
            recorder.record(self._number, kind, invocation.f, invocation.value, trouble(error))
            if kind is Kind.INFO:
                self._number += self._processes
                self.close()
            return kind
        except BaseException:
            recorder.record(self._number, Kind.INFO, invocation.f, invocation.value, "the client crashed")
            raise
        recorder.record(self._number, Kind.OK, invocation.f, value)
        return Kind.OK

    def close(self) -> None:
        """End the client."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(ls.LakestoreError):
                client.close()


def turns(*choices: tuple[float, Iterator[Invocation]], chance: random.Random) -> Iterator[Invocation]:
    """Operations of several sorts in random order, each sort by its weight, without an end."""
    weights, sorts = zip(*choices, strict=True)
    while True:
        yield next(chance.choices(sorts, weights)[0])
