"""Query processes: started before they are needed, bound to one principal, ended when nobody uses them.

1. A process that has seen a question belongs to one principal and one generation of the rights. Nobody else gets it.
2. At most `most` processes exist, and `NESTED` ones for sessions that hold an unfinished answer: such a session would
wait for itself. Questions are served in order of arrival; a principal at its share comes after the others.
3. A process of another principal that is idle makes room. So does an unused one, when the last use is long ago.
"""

from __future__ import annotations

import math
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lakestore.errors import Exhausted
from lakestore_server.host.child import Child
from lakestore_server.host.quota import NESTED

IDLE_SECONDS = 60.0
"""Time after its last question when a process ends."""
QUESTIONS_MAX = 10_000
"""Questions of one process, after which another one is started: what libraries leak ends with it."""
RETRY_AFTER_SECONDS = 0.5


@dataclass(slots=True, eq=False)
class QueryProcess:
    """One process."""

    child: Child
    owner: str | None = None
    """The principal that it is bound to; None before its first question."""
    generation: int = 0
    """The generation of the rights that it is bound to."""
    questions: int = 0
    idle_since: float = 0.0

    def resident_bytes(self) -> int:
        """Memory that the process uses now; 0 where the system does not tell."""
        return self._pages(1) * resource.getpagesize()

    def room_bytes(self) -> float:
        """Memory that the process may take before its wall, see `MemoryWatch`; infinite where the system does not tell.

        Memory that a library has freed and keeps mapped counts as taken. Resident memory does not show it.
        """
        wall = resource.RLIM_INFINITY
        with suppress(OSError, AttributeError):  # the process has ended; only Linux tells
            wall, _ = resource.prlimit(self.child.pid or -1, resource.RLIMIT_DATA)
        return math.inf if wall == resource.RLIM_INFINITY else wall - self._pages(5) * resource.getpagesize()

    def _pages(self, field: int) -> int:
        """A number of the kernel's `statm`: 1 is resident memory, 5 is memory that the process may write to."""
        with suppress(OSError, ValueError, IndexError):
            return int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[field])
        return 0

    def end(self) -> None:
        """Kill the process and wait for its end."""
        self.child.kill()
        self.child.close()


@dataclass(slots=True, eq=False)
class _Waiter:
    owner: str
    is_nested: bool


class Pool:
    """The processes of one server. Thread-safe."""

    def __init__(
        self, start: Callable[[], Child], *, most: int, share: int, resident_bytes: int, room_bytes: int
    ) -> None:
        """A principal with `share` of `most` processes gets another one only while nobody with fewer waits. A process
        of more than `resident_bytes`, or with less than `room_bytes` before its wall, is not used again.
        """
        self._start, self._most, self._share = start, most, share
        self._resident_bytes, self._room_bytes = resident_bytes, room_bytes
        self._changed = threading.Condition()
        self._idle: list[QueryProcess] = []
        """In the order in which they became idle."""
        self._busy: set[QueryProcess] = set()
        self._busy_of: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []
        self._warm_until = 0.0
        self._is_closed = False

    @property
    def size(self) -> int:
        """The number of processes."""
        with self._changed:
            return len(self._idle) + len(self._busy)

    @property
    def bound(self) -> int:
        """The number of processes that belong to a principal, or will at once."""
        counts = self.counts()
        return counts["idle"] + counts["busy"]

    def counts(self) -> dict[str, int]:
        """State to the number of processes: `unused`, `idle` (bound to a principal), `busy`."""
        with self._changed:
            unused = sum(each.owner is None for each in self._idle)
            return {"unused": unused, "idle": len(self._idle) - unused, "busy": len(self._busy)}

    def take(
        self, owner: str, generation: int, seconds: float, is_over: Callable[[], bool], *, held: int = 0
    ) -> QueryProcess:
        """A process for one question of a principal, after a wait of at most `seconds`. Raises `Exhausted`.

        The wait also ends, with the same error, when `is_over` is true at a `wake`. `held` is the number of processes
        that answer the question's session already. If these are all, there is no wait.
        """
        if held >= self._most + NESTED:
            raise Exhausted(f"the session holds {held} unfinished answers, one in each process: read or close one")
        waiter = _Waiter(owner, is_nested=held > 0)
        with self._changed:
            self._waiting.append(waiter)
            try:
                self._changed.wait_for(lambda: self._is_next(waiter) or self._is_closed or is_over(), seconds)
                if self._is_closed or is_over() or not self._is_next(waiter):
                    raise self._refusal(owner)
                process, leaving = self._chosen(owner, generation)
            finally:
                self._waiting.remove(waiter)
                self._changed.notify_all()
            self._busy.add(process)
            self._busy_of[owner] += 1
        for each in leaving:
            each.end()
        process.owner, process.generation = owner, generation
        process.questions += 1
        return process

    def give_back(self, process: QueryProcess, generation: int) -> None:
        """Return a process whose question is answered. It is ended if the rights have changed, or if it is worn."""
        is_worn = (
            process.questions >= QUESTIONS_MAX
            or process.resident_bytes() > self._resident_bytes
            or process.room_bytes() < self._room_bytes
        )
        is_kept = process.generation == generation and not is_worn
        with self._changed:
            self._leave(process)
            is_kept = is_kept and not self._is_closed and len(self._idle) + len(self._busy) < self._most
            if is_kept:
                process.idle_since = time.monotonic()
                self._idle.append(process)
        if not is_kept:
            process.end()

    def discard(self, process: QueryProcess) -> None:
        """End a process whose question has failed or was ended."""
        process.end()
        with self._changed:
            self._leave(process)

    def wake(self) -> None:
        """Let those who wait look at `is_over`."""
        with self._changed:
            self._changed.notify_all()

    def warm(self, seconds: float = IDLE_SECONDS) -> None:
        """Keep an unused process for a while, if there is room: its imports are done when a question comes."""
        with self._changed:
            self._warm_until = max(self._warm_until, time.monotonic() + seconds)
        self._start_unused()

    def end_idle(self) -> None:
        """End all processes that are not at work."""
        with self._changed:
            leaving, self._idle = self._idle, []
        for each in leaving:
            each.end()

    def _start_unused(self) -> None:
        with self._changed:
            is_full = len(self._idle) + len(self._busy) >= self._most
            if self._is_closed or is_full or any(each.owner is None for each in self._idle):
                return
            process = QueryProcess(self._start(), idle_since=time.monotonic())
            self._idle.append(process)
        process.child.start()

    def tend(self, generation: int) -> None:
        """End processes that were idle for long or whose rights have changed; replace an unused one that was taken."""
        now = time.monotonic()
        with self._changed:
            is_warm = now < self._warm_until
            leaving = [each for each in self._idle if self._leaves(each, now, generation, is_warm=is_warm)]
            self._idle = [each for each in self._idle if each not in leaving]
        for each in leaving:
            each.end()
        if is_warm:
            self._start_unused()

    def close(self) -> None:
        """End all processes, for good."""
        with self._changed:
            self._is_closed = True
            leaving, self._idle = self._idle, []
            busy = list(self._busy)
            self._changed.notify_all()
        for each in busy:
            each.child.kill()
        for each in leaving:
            each.end()

    def _is_next(self, waiter: _Waiter) -> bool:
        waiting = [each for each in self._waiting if len(self._busy) < self._most + NESTED * each.is_nested]
        within = (each for each in waiting if not each.owner or self._busy_of[each.owner] < self._share)
        return next(within, next(iter(waiting), None)) is waiter

    def _chosen(self, owner: str, generation: int) -> tuple[QueryProcess, list[QueryProcess]]:
        """A process, and those that end to make room for it: one of this principal, else an unused one, else a new
        one.
        """
        leaving = [each for each in self._idle if each.child.has_ended]
        self._idle = [each for each in self._idle if each not in leaving]
        mine = [each for each in self._idle if (each.owner, each.generation) == (owner, generation)]
        unused = [each for each in self._idle if each.owner is None]
        if found := (mine or unused)[-1:]:
            self._idle.remove(found[0])
            return found[0], leaving
        beyond = max(len(self._idle) + len(self._busy) + 1 - self._most, 0)
        leaving += self._idle[:beyond]
        del self._idle[:beyond]
        return QueryProcess(self._start()), leaving

    def _leave(self, process: QueryProcess) -> None:
        self._busy.discard(process)
        owner = process.owner or ""
        self._busy_of[owner] -= 1
        if not self._busy_of[owner]:
            del self._busy_of[owner]
        self._changed.notify_all()

    @staticmethod
    def _leaves(process: QueryProcess, now: float, generation: int, *, is_warm: bool) -> bool:
        if process.owner is None:
            return not is_warm
        return process.generation != generation or now - process.idle_since >= IDLE_SECONDS

    def _refusal(self, owner: str) -> Exhausted:
        mine = f"{owner} has {self._busy_of[owner]} of them: " if owner and self._busy_of[owner] else ""
        said = f"{mine}{self._most} queries run, the limit (query_processes): try again when one has ended"
        return Exhausted(said, retry_after=RETRY_AFTER_SECONDS)
