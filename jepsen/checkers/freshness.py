"""The writes that a read must show, by the place where its connection reads (docs/replicas.md).

- A read at the leader shows every write that was acknowledged before it.
- A read at a follower shows what its own connection was acknowledged before it. It also shows what others were
  acknowledged before the last of these writes was sent, because all servers apply the commits in one order.
- A process is one connection. Its number changes after an unknown outcome, as its client does.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from jepsen.history import History
from jepsen.operation import Call


@dataclass(frozen=True, slots=True)
class Bound:
    """The writes that one read must show."""

    place: int
    """Every write that was acknowledged before this place of the history."""
    own: int = -1
    """The last write of the reader's own connection, by the place of its invocation; -1 if none is due."""
    is_late: bool = False
    """Whether the read was at a follower, so that it may lack what others wrote before it."""

    def covers(self, write: Call) -> bool:
        """Whether the read must show a write."""
        return self.covers_write(write.invoked.index, write.acknowledged)

    def covers_write(self, begin: int, acknowledged: float) -> bool:
        """The same, by the places of the write's invocation and acknowledgement."""
        return acknowledged < self.place or begin == self.own

    @property
    def may_be_empty(self) -> bool:
        """Whether the read may be of a time before all writes of the run."""
        return self.is_late and self.own < 0


class Freshness:
    """The bounds of all reads of a history."""

    def __init__(self, history: History, writes: Iterable[Call]) -> None:
        """`writes`: the calls that change something. Those that were not acknowledged bind no reader."""
        self._late_until = history.late_until
        self._own: dict[int | str, list[tuple[float, int]]] = defaultdict(list)
        """By process the places of acknowledgement and invocation, ascending."""
        for call in writes if self._late_until >= 0 else ():
            if call.acknowledged < self._late_until:
                self._own[call.process].append((call.acknowledged, call.invoked.index))
        for each in self._own.values():
            each.sort()

    def bound(self, read: Call) -> Bound:
        """The writes that a read of the newest state must show."""
        index = read.invoked.index
        if index > self._late_until:
            return Bound(index)
        own = self._own.get(read.process, [])
        before = bisect_left(own, (index, -1))
        return Bound(own[before - 1][1], own[before - 1][1], True) if before else Bound(0, is_late=True)
