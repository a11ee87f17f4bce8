"""A world of greenlets: tasks of several processes run interleaved in one thread, in virtual time, as a seed says.

A task runs until it blocks, sleeps, or passes a point at which the seed lets another one go first. Time goes on by a
little with every switch, and jumps to the next timer when no task can run. Nothing in a world asks the machine for
the time, for chance or for the order of anything.
"""

from __future__ import annotations

import gc
import random
import traceback
from bisect import insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Any

import pytest
from greenlet import getcurrent, greenlet

STEPS_MAX = 60_000
"""Switches of a run; more are a run that does not end."""
TICK_SECONDS = 1e-6
"""Time that a read of the clock takes."""


class Killed(BaseException):
    """The task's process has ended: nothing it does counts any more."""


class Stuck(Exception):
    """No task can ever run again, or they run without an end; the text says where each of them waits."""


@dataclass(eq=False)
class Process:
    """Tasks that end, and are stopped, together; and their wall clock."""

    name: str
    tasks: list[Task] = field(default_factory=list)
    is_dead: bool = False
    is_paused: bool = False
    parked: list[Task] = field(default_factory=list)
    """Tasks that would run if the process were not paused."""
    skew_us: int = 0
    """The wall clock of this process less the world's."""
    frozen_us: int | None = None
    """The time at which the wall clock stands still, if it does."""


class Task:
    """One thread of a process. Tasks are told apart and ordered by their numbers, never by their addresses."""

    __slots__ = (
        "failure",
        "greenlet",
        "is_blocked",
        "is_over",
        "name",
        "number",
        "process",
        "stalled_until",
        "thread",
        "token",
        "waits",
    )

    def __init__(self, number: int, name: str, process: Process) -> None:
        self.number, self.name, self.process = number, name, process
        self.greenlet: greenlet
        self.is_blocked = self.is_over = False
        self.stalled_until = 0.0
        self.token = 0
        """Raised with every wake-up: an older timer of this task is void."""
        self.waits: Any = None
        self.failure: BaseException | None = None
        self.thread: Any = None

    def __lt__(self, other: Task) -> bool:
        return self.number < other.number

    def __repr__(self) -> str:
        return f"{self.process.name}/{self.name}#{self.number}"


class World:
    """One run's time, tasks and chance."""

    def __init__(self, seed: str, *, preempt: float = 0.05, steps_max: int = STEPS_MAX) -> None:
        self.chance = random.Random(f"{seed} schedule")
        self.bytes = random.Random(f"{seed} bytes")
        self.now = 1_000.0
        self.wall_us = 1_700_000_000_000_000
        self.preempt, self.steps_max = preempt, steps_max
        self.steps = 0
        self.trace: list[str] = []
        self.marks: Counter[str] = Counter()
        self.current: Task | None = None
        self.failing_allocations = 0
        """Allocations that fail next, of the kinds that a run lets fail."""
        self.outside = Process("world")
        """The process of what is not simulated: faults, and the one who looks on."""
        self._numbers = self._timers_made = 0
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Task | Callable[[], None], int]] = []
        self._tasks: list[Task] = []
        self._hub: greenlet | None = None
        self._stuck: Stuck | None = None

    # Time

    def monotonic(self) -> float:
        """Seconds that never go back."""
        self.now += TICK_SECONDS
        return self.now

    def time_us(self) -> int:
        """The wall clock of the process that asks, in microseconds."""
        self.now += TICK_SECONDS
        process = self.current.process if self.current else self.outside
        if process.frozen_us is not None:
            return process.frozen_us
        return self.wall_us + int((self.now - 1_000.0) * 1e6) + process.skew_us

    def sleep(self, seconds: float) -> None:
        """Let others run for so long."""
        self.block(self.now + max(seconds, 0.0), "sleep")

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function, which must not wait, after a time."""
        self._timers_made += 1
        heappush(self._timers, (self.now + seconds, self._timers_made, call, 0))

    # Tasks

    def spawn(self, name: str, process: Process, work: Callable[[], object]) -> Task:
        """Begin a task of a process."""
        self._numbers += 1
        task = Task(self._numbers, name, process)
        task.greenlet = greenlet(lambda: self._run(task, work), parent=self._hub)
        process.tasks.append(task)
        self._tasks.append(task)
        if process.is_dead:
            task.is_over = True
        else:
            self._make_ready(task)
        return task

    def _run(self, task: Task, work: Callable[[], object]) -> None:
        try:
            work()
        except Killed:
            pass
        except (KeyboardInterrupt, pytest.fail.Exception):
            raise  # in `run`: the end of the test is no failure of the task in which it came
        except BaseException as error:  # the boundary of the task, as of a thread
            task.failure = error
            if not task.process.is_dead:
                self.note(f"{task} failed: {type(error).__name__}: {error}")
        task.is_over = True

    def block(self, until: float | None, waits: Any) -> bool:
        """Wait for `wake` of this task, or for a time; whether it was woken."""
        task = self.current
        assert task is not None
        if task.process.is_dead:
            raise Killed
        task.is_blocked, task.waits = True, waits
        if until is not None:
            self._timers_made += 1
            heappush(self._timers, (until, self._timers_made, task, task.token))
        token = task.token
        self._switch(task)
        return task.token == token + 1

    def wake(self, task: Task) -> None:
        """Let a task that blocks go on."""
        if task.is_blocked and not task.is_over:
            task.token += 1
            self._make_ready(task)

    def point(self) -> None:
        """A point at which another task may go first."""
        if self.preempt and self.chance.random() < self.preempt:
            self.give_way()

    def give_way(self) -> None:
        """Let any task that can run go on, this one among them."""
        task = self.current
        if task is None or task.process.is_dead:
            return
        self._make_ready(task)
        self._switch(task)

    def _make_ready(self, task: Task) -> None:
        task.is_blocked = False
        if task.process.is_paused:
            task.process.parked.append(task)
        else:
            insort(self._ready, task)

    def _switch(self, task: Task) -> None:
        """Run what comes next, until it is this task's turn again."""
        following = self._next()
        if following is not task:
            if following is None:
                assert self._hub is not None
                self._hub.switch()
            else:
                self.current = following
                following.greenlet.switch()
        self.current = task
        if task.process.is_dead:
            raise Killed

    def _next(self) -> Task | None:
        """The task to run; None when there is none, and never will be."""
        self.steps += 1
        self.now += TICK_SECONDS
        if self.steps > self.steps_max:
            self._stuck = Stuck(f"the run does not end: {self.steps} switches\n{self.waiting()}")
            return None
        while True:
            self._fire()
            ready = self._ready
            if ready:
                at = int(self.chance.random() * len(ready)) if len(ready) > 1 else 0
                task = ready.pop(at)
                if task.stalled_until <= self.now:
                    return task
                self.later(task.stalled_until - self.now, partial(self._make_ready, task))
                continue
            if not self._timers:
                self._stuck = Stuck(f"every task waits for another one\n{self.waiting()}")
                return None
            self.now = max(self.now, self._timers[0][0])

    def _fire(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now:
            _, _, due, token = heappop(timers)
            if not isinstance(due, Task):
                running, self.current = self.current, None
                due()
                self.current = running
            elif due.is_blocked and due.token == token and not due.is_over:
                due.token += 2
                self._make_ready(due)

    # Processes

    def stall(self, task: Task, seconds: float) -> None:
        """Let a task stand still for a time, whatever wakes it."""
        task.stalled_until = self.now + seconds

    def pause(self, process: Process) -> None:
        """Stop a process, as SIGSTOP does."""
        process.is_paused = True
        process.parked += [task for task in self._ready if task.process is process]
        self._ready = [task for task in self._ready if task.process is not process]

    def resume(self, process: Process) -> None:
        """Let a stopped process go on."""
        process.is_paused = False
        parked, process.parked = process.parked, []
        for task in parked:
            if not task.is_over:
                insort(self._ready, task)

    def kill(self, process: Process) -> None:
        """End a process at once. Its tasks unwind, and nothing that they do meanwhile counts."""
        process.is_dead, process.is_paused = True, False
        process.parked.clear()
        self._ready = [task for task in self._ready if task.process is not process]
        running = self.current
        assert running is None or running.process is not process, "a process is killed from outside"
        for task in process.tasks:
            if not task.is_over:
                task.is_over = True
                if not task.greenlet:
                    continue  # it has never begun
                self.current = task
                task.greenlet.parent = getcurrent()
                task.greenlet.throw(Killed)
        self.current = running
        process.tasks.clear()

    # The run

    def run(self, main: Callable[[], object]) -> None:
        """Run a function as the first task to its end; `Stuck`, or what it raises."""
        self._hub = getcurrent()
        collects = gc.isenabled()
        gc.disable()  # when it runs depends on what ran in this process before
        first = self.spawn("main", self.outside, main)
        try:
            while not first.is_over and self._stuck is None:
                following = self._next()
                if following is None:
                    break
                self.current = following
                following.greenlet.switch()
        finally:
            self._end()
            if collects:
                gc.enable()
        if self._stuck is not None:
            raise self._stuck
        if first.failure is not None:
            raise first.failure

    def _end(self) -> None:
        self.current = None
        for process in dict.fromkeys(task.process for task in self._tasks):
            self.kill(process)
        self._tasks.clear()
        self._timers.clear()
        self.current = None

    # What came of it

    def note(self, text: str) -> None:
        """A line of the trace."""
        self.trace.append(f"{self.now - 1_000.0:12.6f} {text}")

    def mark(self, name: str) -> None:
        """Count an interesting state that was reached."""
        self.marks[name] += 1

    def waiting(self) -> str:
        """Each task that has not ended, and the place where it waits."""
        lines = []
        for task in self._tasks:
            if not task.is_over:
                state = "paused" if task.process.is_paused else "waits" if task.is_blocked else "ready"
                lines.append(f"  {task} {state}: {_place(task)}")
        return "\n".join(lines)


def _place(task: Task) -> str:
    """The innermost frames of a task that are not this package's."""
    frame = getattr(task.greenlet, "gr_frame", None)
    if frame is None:
        return "not begun, or running"
    stack = traceback.extract_stack(frame)
    shown = [entry for entry in stack if "/simulation/" not in entry.filename and "threading.py" not in entry.filename]
    return " < ".join(f"{entry.filename.rsplit('/', 2)[-1]}:{entry.lineno} {entry.name}" for entry in shown[:-6:-1])
