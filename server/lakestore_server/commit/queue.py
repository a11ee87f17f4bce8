"""The queue before the commit loop: bounded, with a small and a large lane, so that small work does not wait behind
a bulk load.

Work of one producer or register stays in order: a request after a large one of the same producer waits in the large
lane. A submitter waits for room for a while and is then told when to retry.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial

from lakestore.errors import Exhausted
from lakestore.limits import Limits
from lakestore_server.commit.priority import CommitPriority, Pace
from lakestore_server.commit.request import Request, TableChange, Work

SMALL_BYTES_MAX = 64 << 10
"""A request up to this size goes before larger ones of others."""
SMALL_STRETCH = 1.25
"""A bulk load fills the queue; small requests have this much more."""
BESIDE_PART, BESIDE_TURNS = 16, 256
"""Share of a group that large requests fill for this many turns after a small request, because the next small one waits
until the commit is built."""
COMPARED_MAX = 1_024
"""Number of keys up to which a request is compared with an insert; a larger one is assumed to meet it."""
HELD_SECONDS_MAX = 1.0
"""The longest retry hint for requests that the pace refuses: a checkpoint may end at any moment."""
COMING_SECONDS_MAX = 0.015
"""Wait for a small request that is being decoded, before a large commit is built."""
TURNS_PASSED_MAX = 16
"""Turns in a row that pass a waiting large request; then it has one, because acknowledgements never end."""


class Room(Enum):
    """The lanes that may go into the next commit."""

    NONE = 0
    SMALL = 1
    ANY = 2


class CommitQueue:
    """Thread-safe. `pace` delays large requests and tells whether the journal is full; `refuse` raises when the server
    is down; `priority` tells of small requests before they are queued."""

    def __init__(self, limits: Limits, pace: Pace, refuse: Callable[[], None], priority: CommitPriority) -> None:
        self._limits, self._pace, self._refuse, self._priority = limits, pace, refuse, priority
        priority.on_none_coming = self.wake
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._turns: deque[threading.Condition] = deque()
        """Waits for a turn, in order: a change wakes only the first."""
        self._coming = 0
        """Bytes of requests that had their turn and are not queued yet."""
        self.held_seconds = 0.0
        """Sum of the seconds that requests waited for room and turns."""
        self._small: deque[Work] = deque()
        self._large: deque[Request] = deque()
        self._in_large: Counter[tuple[str, str]] = Counter()
        """Producer or register to its number of requests in the large lane."""
        self._passed = 0
        """Turns since the large lane had one while work waited in it."""
        self._beside = 0
        """Turns in which a small request is expected next to large ones."""
        self.may_give_way = False
        """Whether the last taken requests may be given back."""
        self._given_back = 0
        """The first this many requests of the large lane were given back; they are not given back again."""
        self._nbytes = 0
        self._closed = self._poked = False

    def __len__(self) -> int:
        return len(self._small) + len(self._large)

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def await_room(self, seconds: float, retry_after: Callable[[], float], nbytes: int = SMALL_BYTES_MAX + 1) -> None:
        """Wait until there is room for `nbytes`; `Exhausted` after `seconds`."""
        stretch = SMALL_STRETCH if is_small(nbytes) else 1.0
        with self._lock:
            self._await(self._changed, lambda: 0.0 if self._has_room(stretch) else math.inf, seconds, retry_after)

    @contextmanager
    def turn(self, seconds: float, retry_after: Callable[[], float], nbytes: int) -> Iterator[None]:
        """Wait for room, and large requests also for others and the pace. The bytes count as coming while the block
        runs."""
        if is_small(nbytes):
            self.await_room(seconds, retry_after, nbytes)
            yield
            return
        with self._lock:
            mine = threading.Condition(self._lock)
            self._turns.append(mine)
            try:
                retry = partial(self._retry_seconds, retry_after)
                self._await(mine, lambda: self._pause(mine), seconds, retry)
                self._coming += nbytes
            finally:
                self._turns.remove(mine)
                self._tell()
        try:
            yield
        finally:
            with self._lock:
                self._coming -= nbytes
                self._tell()

    def _pause(self, turn: threading.Condition) -> float:
        """Seconds until a turn may come; 0 for now, infinity for the next change."""
        if turn is not self._turns[0] or not self._has_room():
            return math.inf
        return self._held()

    def _held(self) -> float:
        """Seconds for which the pace delays large requests."""
        return self._pace.wait(self._nbytes + self._coming)

    def _retry_seconds(self, retry_after: Callable[[], float]) -> float:
        return max(retry_after(), min(self._held(), HELD_SECONDS_MAX))

    def _await(
        self,
        place: threading.Condition,
        pause: Callable[[], float],
        seconds: float,
        retry_after: Callable[[], float],
    ) -> None:
        """Wait while `pause` returns more than 0; `Exhausted` after `seconds`."""
        end = time.monotonic() + seconds
        while not self._closed and (most := pause()):
            now = time.monotonic()
            if now >= end:
                self._refuse()
                raise Exhausted("the commit queue is full: send more slowly", retry_after=retry_after())
            place.wait(min(end - now, most))
            self.held_seconds += time.monotonic() - now
        self._refuse()

    def _tell(self) -> None:
        """Wake waiters for whom a change may mean room, and the first one that waits for a turn."""
        self._changed.notify_all()
        if self._turns:
            self._turns[0].notify()

    def _has_room(self, stretch: float = 1.0) -> bool:
        limits = self._limits
        full = len(self) >= limits.queue_commits * stretch or self._nbytes >= limits.queue_bytes * stretch
        return not full and not self._pace.is_full(stretch)

    def put(self, *several: Work) -> None:
        """Queue work, all at once; refused when the server is down."""
        with self._lock:
            self._refuse()
            for work in several:
                if isinstance(work, Request) and self._is_large(work):
                    self._large.append(work)
                    self._in_large.update(work.ordered_by)
                else:
                    self._small.append(work)
                self._nbytes += work.nbytes
            self._tell()

    def _is_large(self, request: Request) -> bool:
        if not is_small(request.nbytes):
            return True
        return bool(self._in_large) and any(name in self._in_large for name in request.ordered_by)

    def take(self, room: Callable[[], Room] = lambda: Room.ANY) -> list[Work]:
        """Wait for work: one operation or task, or the requests of one group; empty once closed or after `poke`."""
        with self._lock:
            self._changed.wait_for(lambda: self._poked or self.is_over or self._may_go(room()))
            if self._large and self._passed < TURNS_PASSED_MAX:
                self._changed.wait_for(lambda: not self._lets_small_come(), COMING_SECONDS_MAX)
            if self._poked:
                self._poked = False
                return []
            waiting, takes_large = len(self._large), room() is Room.ANY
            if takes_large and self._is_large_due():
                work: list[Work] = [self._pop_large()]
            elif self._small and not isinstance(self._small[0], Request):
                work = [self._small.popleft()]
            else:
                work = list(self._group(takes_large=takes_large))
            large = waiting - len(self._large)
            self.may_give_way = 0 < large == len(work) and not self._passed and not self._given_back
            self._given_back = max(self._given_back - large, 0)
            self._passed = self._passed + 1 if self._large and not large else 0
            self._nbytes -= sum(each.nbytes for each in work)
            self._tell()
            return work

    def take_all(self) -> list[Work]:
        """All waiting work, without waiting."""
        with self._lock:
            work: list[Work] = [*self._small, *self._large]
            self._small.clear()
            self._large.clear()
            self._in_large.clear()
            self._nbytes, self._poked = 0, False
            self._tell()
            return work

    def wait(self, seconds: float) -> None:
        """Wait until there is work, at most so long."""
        with self._lock:
            self._changed.wait_for(lambda: self._poked or self._closed or len(self), seconds)

    def give_back(self, requests: Sequence[Request]) -> bool:
        """Return the last taken large requests to the queue if small ones of others have come; True if so. Requests
        that were passed just before stay, so a commit is built in vain only if small requests are few. The queue may
        exceed its bounds by these requests until they are taken again."""
        if not (self.may_give_way and self._small):
            return False
        with self._lock:
            following, others = self._parted(requests)
            self.may_give_way = not others  # an operation stays in place for this turn
            if not others or not isinstance(others[0], Request):
                return False
            back, self._small = [*requests, *following], others
            self._large.extendleft(reversed(back))
            self._in_large.update(name for request in back for name in request.ordered_by)
            self._given_back = len(requests)
            self._nbytes += sum(request.nbytes for request in requests)
            return True

    def _parted(self, requests: Sequence[Request]) -> tuple[list[Request], deque[Work]]:
        """(the small requests after these, or after one another in a producer's order, and the rest)."""
        names = {name for request in requests for name in request.ordered_by}
        following, others = list[Request](), deque[Work]()
        for work in self._small:
            if isinstance(work, Request) and not names.isdisjoint(work.ordered_by):
                following.append(work)
                names.update(work.ordered_by)
            else:
                others.append(work)
        return following, others

    def _lets_small_come(self) -> bool:
        """Whether to wait a moment for a small request: nothing else is to be done before large ones."""
        return self._priority.is_coming and not (self._small or self._poked or self._closed)

    def _is_large_due(self) -> bool:
        """Whether a large request has waited long enough and no earlier request of its producer still waits."""
        if not self._large or self._passed < TURNS_PASSED_MAX:
            return False
        names = set(self._large[0].ordered_by)
        return not names or all(not isinstance(w, Request) or names.isdisjoint(w.ordered_by) for w in self._small)

    def _pop_large(self) -> Request:
        request = self._large.popleft()
        for name in request.ordered_by:
            self._in_large[name] -= 1
            if not self._in_large[name]:
                del self._in_large[name]
        return request

    def _may_go(self, room: Room) -> bool:
        return room is not Room.NONE and bool(self._small or (self._large and room is Room.ANY))

    def _group(self, *, takes_large: bool) -> Sequence[Request]:
        """Small requests up to the next operation, then large ones while the group has room. Small ones go alone,
        because a common commit with a large one would take them longer, unless the large one has just let others
        pass."""
        group: list[Request] = []
        named: set[tuple[str, int] | str] = set()
        inserts: list[TableChange] = []
        weight = 0
        large_max = max(self._limits.group_bytes // (BESIDE_PART if self._beside else 1), 1)
        takes_large = takes_large and (not self._small or self._passed > 0)
        self._beside = BESIDE_TURNS if self._small else max(self._beside - 1, 0)
        while weight < (self._limits.group_bytes if self._small else large_max):
            large = self._large[0] if self._large and takes_large else None
            following = self._small[0] if self._small else large
            if not isinstance(following, Request):
                break  # an operation has its own turn
            mine = _known_again_by(following)
            if not named.isdisjoint(mine):
                break  # it may repeat a request of this group; it is judged after that one happened or was refused
            if any(_touches(change, insert) for insert in inserts for change in following.changes):
                break  # an answer shows rows at the group's cut, which must be the request's own moment
            inserts += [change for change in following.changes if change.is_shown]
            if self._small:
                self._small.popleft()
            else:
                self._pop_large()
            group.append(following)
            weight += following.nbytes
            named.update(mine)
        return group

    @property
    def is_over(self) -> bool:
        """Whether the queue is closed and empty."""
        return self._closed and not len(self)

    def poke(self) -> None:
        """Let the next `take` return nothing, so that the commit loop looks at something else."""
        with self._lock:
            self._poked = True
            self._tell()

    def wake(self) -> None:
        """Note a change that made no room."""
        with self._lock:
            self._tell()

    def close(self) -> None:
        """Accept nothing more; waiting work is still handed out."""
        with self._lock:
            self._closed = True
            self._tell()

    def abandon(self) -> list[Work]:
        """Remove and return all waiting work."""
        with self._lock:
            left: list[Work] = [*self._small, *self._large]
            self._small.clear()
            self._large.clear()
            self._closed = True
            self._tell()
        return left


def is_small(nbytes: int) -> bool:
    """Whether a request goes before larger ones of others."""
    return nbytes <= SMALL_BYTES_MAX


def _touches(change: TableChange, insert: TableChange) -> bool:
    """Whether a change may concern a row that the answer of an earlier insert shows. Another insert does not, except
    for a key whose row was ignored by its version."""
    if change.table.uuid != insert.table.uuid or (change.insert and change.table.merge.engine != "versioned"):
        return False
    if max(len(change.keys), len(insert.keys)) > COMPARED_MAX:
        return True
    return not set(insert.keys.listed()).isdisjoint(change.keys.listed())


def _known_again_by(request: Request) -> Sequence[tuple[str, int] | str]:
    """Marks of a request: the producer's sequence, or the registers it moves. A retry shares at least one mark."""
    if request.producer:
        return [(request.producer, request.sequence)]
    return [move.register for move in request.moves.each]
