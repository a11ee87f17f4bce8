"""The queue in front of the commit loop: bounded, in two lanes, so that small work need not wait behind a bulk load.

Work of one producer or register stays in order: what follows a large request of it waits in the same lane.
Who puts work in waits for room for a while, and is then told when to come again.
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
from lakestore_server.commit.precedence import Pace, Precedence
from lakestore_server.commit.request import Change, Request, Work

SMALL_BYTES_MAX = 64 << 10
"""A request up to here goes before larger ones of others."""
SMALL_STRETCH = 1.25
"""A bulk load fills what there is; this much beyond is left for small requests."""
BESIDE_PART, BESIDE_TURNS = 16, 256
"""The part of a group that large requests fill for so many turns behind a small one: the next small one waits until
that commit is made.
"""
COMPARED_MAX = 1_024
"""Keys up to which a request's are compared with those of an insert; of larger ones they are taken to meet."""
HELD_SECONDS_MAX = 1.0
"""The time after which whoever the pace refuses comes again at the latest: a checkpoint may end at any moment."""
COMING_SECONDS_MAX = 0.015
"""The wait for a small request that has come and is being decoded, before a large commit is made."""
TURNS_PASSED_MAX = 16
"""So many turns in a row go by a large request that waits, then it has one: acknowledgements alone never end."""


class Room(Enum):
    """Which lanes may go into the next commit."""

    NONE = 0
    SMALL = 1
    ANY = 2


class CommitQueue:
    """Thread-safe. `pace` holds large requests back, and has room or none; `refuse` raises when down; `precedence`
    tells of small requests before they are queued."""

    def __init__(self, limits: Limits, pace: Pace, refuse: Callable[[], None], precedence: Precedence) -> None:
        self._limits, self._pace, self._refuse, self._precedence = limits, pace, refuse, precedence
        precedence.on_none_coming = self.wake
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._turns: deque[threading.Condition] = deque()
        """Waits for a turn, the first one first: a change wakes that one alone."""
        self._coming = 0
        """Bytes of requests that had their turns and are not queued yet."""
        self.held_seconds = 0.0
        """The time that requests waited for room and for turns, added up."""
        self._small: deque[Work] = deque()
        self._large: deque[Request] = deque()
        self._in_large: Counter[tuple[str, str]] = Counter()
        """Producer or register to its requests in the large lane."""
        self._passed = 0
        """Turns since the large lane had one while something waited in it."""
        self._beside = 0
        """Turns for which a small request is expected beside large ones."""
        self.may_give_way = False
        """Whether the requests that were taken last may be given back."""
        self._given_back = 0
        """The first so many of the large lane were: they are not given back again."""
        self._nbytes = 0
        self._closed = self._poked = False

    def __len__(self) -> int:
        return len(self._small) + len(self._large)

    @property
    def nbytes(self) -> int:
        """Rows that wait."""
        return self._nbytes

    def await_room(self, seconds: float, retry_after: Callable[[], float], nbytes: int = SMALL_BYTES_MAX + 1) -> None:
        """Wait until there is room for so much; `Exhausted` when the time is over."""
        stretch = SMALL_STRETCH if is_small(nbytes) else 1.0
        with self._lock:
            self._await(self._changed, lambda: 0.0 if self._has_room(stretch) else math.inf, seconds, retry_after)

    @contextmanager
    def turn(self, seconds: float, retry_after: Callable[[], float], nbytes: int) -> Iterator[None]:
        """Wait as for room, and large ones for others and the pace too; bytes are on their way while the block runs."""
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
        """Seconds until a turn may come; 0 for now, infinite for when something changes."""
        if turn is not self._turns[0] or not self._has_room():
            return math.inf
        return self._held()

    def _held(self) -> float:
        """Seconds for which the pace holds large requests back."""
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
        """Wait as long as `pause` gives more than 0; `Exhausted` when the time is over."""
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
        """Wake those for whom a change may be room, and the first one that waits for a turn."""
        self._changed.notify_all()
        if self._turns:
            self._turns[0].notify()

    def _has_room(self, stretch: float = 1.0) -> bool:
        limits = self._limits
        full = len(self) >= limits.queue_commits * stretch or self._nbytes >= limits.queue_bytes * stretch
        return not full and not self._pace.is_full(stretch)

    def put(self, *several: Work) -> None:
        """Add work, all at once; it is refused when the server is down."""
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
        """Wait for work: one operation or task, or the requests of one group; empty once closed, or when poked."""
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

    def give_back(self, requests: Sequence[Request]) -> bool:
        """Have the large requests that were taken last wait again if small ones of others came meanwhile; whether so.

        Those that others have passed just before go on: requests are made in vain only where small ones are few. What
        waits may be more than the bounds by these requests, until they are taken again.
        """
        if not (self.may_give_way and self._small):
            return False
        with self._lock:
            following, others = self._parted(requests)
            self.may_give_way = not others  # an operation stays where it is for this turn
            if not others or not isinstance(others[0], Request):
                return False
            back, self._small = [*requests, *following], others
            self._large.extendleft(reversed(back))
            self._in_large.update(name for request in back for name in request.ordered_by)
            self._given_back = len(requests)
            self._nbytes += sum(request.nbytes for request in requests)
            return True

    def _parted(self, requests: Sequence[Request]) -> tuple[list[Request], deque[Work]]:
        """(the small requests that come behind these or behind one another in the order of a name, the rest)."""
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
        """Whether a small request is worth a moment's wait: nothing else is to be done before large ones."""
        return self._precedence.is_coming and not (self._small or self._poked or self._closed)

    def _is_large_due(self) -> bool:
        """Whether a large request has waited long enough, and no earlier one of its producer still does."""
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
        """Whether some work waits for which there is room."""
        return room is not Room.NONE and bool(self._small or (self._large and room is Room.ANY))

    def _group(self, *, takes_large: bool) -> Sequence[Request]:
        """Small requests up to the next operation, then large ones while the group has room.

        Small ones go alone, as it takes them longer to be made together with a large one than apart; unless the large
        one has just let others pass.
        """
        group: list[Request] = []
        named: set[tuple[str, int] | str] = set()
        inserts: list[Change] = []
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
                break  # it may repeat a request of this group, and is judged once that has happened or was refused
            if any(_touches(change, insert) for insert in inserts for change in following.changes):
                break  # an answer shows the rows of the group's cut: they must be those of its own moment
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
        """Whether the queue is closed, and nothing waits in it."""
        return self._closed and not len(self)

    def poke(self) -> None:
        """Let the next `take` give nothing: the commit loop is to look at something else."""
        with self._lock:
            self._poked = True
            self._tell()

    def wake(self) -> None:
        """Something that made no room has changed."""
        with self._lock:
            self._tell()

    def close(self) -> None:
        """Nothing more comes in; what waits is still given out."""
        with self._lock:
            self._closed = True
            self._tell()

    def abandon(self) -> list[Work]:
        """Everything that waits, which nobody will do any more."""
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


def _touches(change: Change, insert: Change) -> bool:
    """Whether a change may be of a row that the answer of an insert before it shows. Another insert leaves such a row
    alone, but for a key whose row was ignored by its version."""
    if change.table.uuid != insert.table.uuid or (change.insert and change.table.merge.engine != "versioned"):
        return False
    if max(len(change.keys), len(insert.keys)) > COMPARED_MAX:
        return True
    return not set(insert.keys.listed()).isdisjoint(change.keys.listed())


def _known_again_by(request: Request) -> Sequence[tuple[str, int] | str]:
    """Marks of a request of which a retry has one at least: its producer's sequence, or the registers it moves."""
    if request.producer:
        return [(request.producer, request.sequence)]
    return [move.register for move in request.moves.each]
