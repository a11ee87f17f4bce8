"""Threads, locks, queues, clocks and chance of the standard library, on a world.

`installed` puts them in the place of the real ones for the thread that runs the world; other threads of the process
go on with the real ones. Conditions, events, semaphores and futures are the library's own, upon these locks.
"""

from __future__ import annotations

import _thread
import os
import queue
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import thread as futures
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from lakestore_server.host import priority
from tests.simulation.world import Killed, Task, World

PACKAGES = ("lakestore", "lakestore_server", "jepsen")
"""Packages whose modules may hold a primitive under a name of their own."""


class Lock:
    """A lock of tasks; whoever comes first when it is free has it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._process = world.current.process if world.current else world.outside
        self._is_held = False
        self._waiters: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As a lock of the library."""
        world = self._world
        if self._process.is_dead and blocking and self._is_held:
            raise Killed  # whoever waits for a lock of a process that has ended is what is left of it
        world.point()
        until = None if timeout < 0 else world.now + timeout
        while self._is_held:
            if not blocking:
                return False
            task = world.current
            assert task is not None
            self._waiters.append(task)
            if not world.block(until, self):
                if task in self._waiters:
                    self._waiters.remove(task)
                if self._is_held:
                    return False
        self._is_held = True
        return True

    def release(self) -> None:
        """As a lock of the library."""
        if not self._is_held:
            if self._process.is_dead:
                return  # a task that unwinds never got it
            raise RuntimeError("release unlocked lock")
        self._is_held = False
        while self._waiters:
            task = self._waiters.popleft()
            if task.is_blocked:
                self._world.wake(task)
                return

    @property
    def is_orphan(self) -> bool:
        """Whether the process that made it has ended."""
        return self._process.is_dead

    def locked(self) -> bool:
        """Whether somebody has it."""
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class RLock:
    """A lock that its owner may take again."""

    def __init__(self, world: World) -> None:
        self._lock, self._world = Lock(world), world
        self._owner: Task | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As a lock of the library."""
        task = self._world.current
        if self._count and (self._owner is task or self._lock.is_orphan):
            self._owner, self._count = task, self._count + 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._count = task, 1
        return True

    def release(self) -> None:
        """As a lock of the library."""
        task = self._world.current
        if self._owner is not task or not self._count:
            if self._lock.is_orphan:
                self._count = 0
                return
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    # The protocol by which a condition lets go of a lock and takes it again.

    def _is_owned(self) -> bool:
        return self._owner is self._world.current and self._count > 0

    def _release_save(self) -> int:
        count, self._count, self._owner = self._count, 0, None
        self._lock.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        self._lock.acquire()
        self._owner, self._count = self._world.current, count


class Thread:
    """A thread as a task of the process that begins it."""

    def __init__(
        self,
        world: World,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._world, self._target, self._args, self._kwargs = world, target, args, dict(kwargs or {})
        self.name, self.daemon = name or "thread", daemon
        self._hash = int(world.monotonic() * 1e9)
        self._task: Task | None = None
        self._joined: list[Task] = []

    def __hash__(self) -> int:
        """By its beginning: a pool joins the threads of a set, whose order must not be that of addresses."""
        return self._hash

    @property
    def ident(self) -> int | None:
        """The number of the task."""
        return self._task.number if self._task else None

    def start(self) -> None:
        """Begin."""
        current = self._world.current
        assert current is not None
        self._task = self._world.spawn(self.name, current.process, self._run)
        self._task.thread = self

    def _run(self) -> None:
        try:
            if self._target is not None:
                self._target(*self._args, **self._kwargs)
        finally:
            task = self._task
            assert task is not None
            task.is_over = True
            for waiting in self._joined:
                self._world.wake(waiting)

    def is_alive(self) -> bool:
        """Whether it has begun and not ended."""
        return self._task is not None and not self._task.is_over

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        if self._task is None:
            raise RuntimeError("cannot join thread before it is started")
        until = None if timeout is None else self._world.now + timeout
        while not self._task.is_over:
            current = self._world.current
            assert current is not None
            self._joined.append(current)
            if not self._world.block(until, self):
                return


class _Installed:
    """The replacements of one world, for the thread that runs it."""

    def __init__(self, world: World) -> None:
        self.world, self.os_thread = world, _thread.get_ident()
        self.simulated: dict[str, Callable[..., Any]] = {}
        """By the primitive's name."""
        self._undo: list[tuple[Any, str, Any]] = []

    def here(self) -> bool:
        """Whether a task of the world asks."""
        return self.world.current is not None and _thread.get_ident() == self.os_thread

    def put(self, place: Any, name: str, value: Any) -> None:
        """Put a value in the place of another one."""
        self._undo.append((place, name, getattr(place, name)))
        setattr(place, name, value)

    def undo(self) -> None:
        """Put everything back."""
        for place, name, value in reversed(self._undo):
            setattr(place, name, value)

    def _current_thread(self) -> Any:
        task = self.world.current
        assert task is not None
        if task.thread is None:
            task.thread = Thread(self.world, name=task.name)
        return task.thread

    def replacements(self) -> list[tuple[Any, str, Callable[..., Any]]]:
        """(module, name, the simulated function) of all there is to replace."""
        world = self.world
        locks: list[tuple[Any, str, Callable[..., Any]]] = [
            (threading, "Lock", lambda: Lock(world)),
            (threading, "_allocate_lock", lambda: Lock(world)),
            (threading, "RLock", lambda: RLock(world)),
            (threading, "Thread", lambda *args, **named: Thread(world, *args, **_without_group(named))),
            (threading, "current_thread", self._current_thread),
            (threading, "get_ident", lambda: world.current.number if world.current else 0),
            (threading, "_time", world.monotonic),
            (queue, "time", world.monotonic),
            (queue, "SimpleQueue", queue._PySimpleQueue),  # type: ignore[attr-defined]
        ]
        clocks: list[tuple[Any, str, Callable[..., Any]]] = [
            (time, "monotonic", world.monotonic),
            (time, "monotonic_ns", lambda: int(world.monotonic() * 1e9)),
            (time, "perf_counter", world.monotonic),
            (time, "time", lambda: world.time_us() / 1e6),
            (time, "time_ns", lambda: world.time_us() * 1_000),
            (time, "sleep", world.sleep),
        ]
        # All tasks are one thread of the system: one that gives way would slow the whole process, and its children.
        turns = [(priority, name, lambda: None) for name in ("give_way", "take_short_turns")]
        draw = world.bytes.randbytes
        chances = [(os, "urandom", draw), (random, "_urandom", draw)]
        return [*locks, *clocks, *turns, *chances, (acero, "_filter_table", filtered)]


def filtered(table: pa.Table | pa.RecordBatch, expression: pc.Expression) -> pa.Table | pa.RecordBatch:
    """The rows of an expression, found in this thread: Arrow would hand them to one of its own and wait."""
    whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(whole))
    chosen = acero.Declaration("filter", acero.FilterNodeOptions(expression))
    found = acero.Declaration.from_sequence([source, chosen]).to_table(use_threads=False)
    if whole is table:
        return found
    batches = found.combine_chunks().to_batches()
    return batches[0] if batches else table.slice(0, 0)


def _without_group(named: dict[str, Any]) -> dict[str, Any]:
    named.pop("group", None)
    return named


Place = tuple[Any, str, int | str | None, str]
"""(module or function, name, where in a default, the primitive's name)."""
_CAPTURED: dict[int, list[Place]] = {}


_INSTALLED: list[_Installed] = []
"""The worlds whose primitives are in place, the newest last."""
_STANDING: dict[tuple[str, int], Callable[..., Any]] = {}


def _standing(key: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """The simulated primitive for tasks of the world that is installed, the real one for everybody else.

    One function for the whole process: a module that is imported while a world runs keeps it, and tasks of later worlds
    call it.
    """

    def chosen(*args: Any, **kwargs: Any) -> Any:
        made = _INSTALLED[-1] if _INSTALLED else None
        call = made.simulated[key] if made is not None and made.here() else real
        return call(*args, **kwargs)

    return _STANDING.setdefault((key, id(real)), chosen)


@contextmanager
def installed(world: World) -> Iterator[None]:
    """The world's primitives in the place of the library's."""
    made = _Installed(world)
    heard = sys.unraisablehook
    made.put(sys, "unraisablehook", lambda told: None if told.exc_type is Killed else heard(told))
    try:
        chosen = {}
        real = {}
        for place, name, simulated in made.replacements():
            key = f"{place.__name__}.{name}"
            real[id(getattr(place, name))] = key
            made.simulated[key] = simulated
            chosen[key] = _standing(key, getattr(place, name))
        for place, name, at, key in _captured(real):
            made.put(place, name, chosen[key] if at is None else _with(getattr(place, name), at, chosen[key]))
        made.put(futures, "_global_shutdown_lock", Lock(world))  # held while a queue is put into
        for place, name, _ in made.replacements():
            made.put(place, name, chosen[f"{place.__name__}.{name}"])
        _INSTALLED.append(made)
        yield
    finally:
        if made in _INSTALLED:
            _INSTALLED.remove(made)
        made.undo()


def _with(defaults: Any, at: int | str, value: Any) -> Any:
    if isinstance(at, str):
        return {**defaults, at: value}
    return (*defaults[:at], value, *defaults[at + 1 :])


def _captured(real: Mapping[int, str]) -> list[Place]:
    """What modules, and the defaults of their functions, hold of the library by names of their own."""
    if len(sys.modules) not in _CAPTURED:
        _CAPTURED.clear()
        found: list[Place] = []
        _CAPTURED[len(sys.modules)] = found
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").partition(".")[0] in PACKAGES:
                found += _in_module(module, real)
    return _CAPTURED[len(sys.modules)]


def _in_module(module: Any, real: Mapping[int, str]) -> Iterator[Place]:
    for name, value in vars(module).items():
        if id(value) in real:
            yield module, name, None, real[id(value)]
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for member in vars(value).values():
                yield from _in_defaults(member, real)
        else:
            yield from _in_defaults(value, real)


def _in_defaults(function: Any, real: Mapping[int, str]) -> Iterator[Place]:
    if isinstance(function, FunctionType):
        for at, value in enumerate(function.__defaults__ or ()):
            if id(value) in real:
                yield function, "__defaults__", at, real[id(value)]
        for name, value in (function.__kwdefaults__ or {}).items():
            if id(value) in real:
                yield function, "__kwdefaults__", name, real[id(value)]
