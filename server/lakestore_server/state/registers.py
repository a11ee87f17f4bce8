"""Registers: named positions in other systems, for example a partition of a Kafka topic, which commits move with
rows.

- A register is opened under an epoch, the LSN of its opening; only the newest epoch moves it.
- It keeps its value, and the LSN and mark of the commit that set it, which tell a retry from a new commit. It keeps no
  answers.
- Time never ends a register, because a program that was paused for long must not start again from zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from lakestore.model.alteration import feed_of
from lakestore_server.state.commit_record import RegisterChange, RegistersDrop, RegistersMove


class Register(NamedTuple):
    """A register."""

    epoch: int
    value: str
    owner: str
    """The principal that opened it first; empty in an embedded server."""
    moved: int = 0
    """LSN of the commit that set the value; 0 before the first."""
    mark: int = 0
    """Checksum of the request that set it, which tells a retry from another request."""


class RegisterUpdate(NamedTuple):
    """A register from one value to the next."""

    register: str
    epoch: int
    before: str
    after: str
    moved: int
    """LSN of the commit that set `before`; 0 if none has."""

    @property
    def stays(self) -> bool:
        """Whether the value stays the same: then only the register's epoch is checked."""
        return self.before == self.after


class RegisterUpdates(NamedTuple):
    """The register updates of a request, its mark, and their bytes."""

    each: tuple[RegisterUpdate, ...] = ()
    mark: int = 0
    nbytes: int = 0


NO_MOVES = RegisterUpdates()

FEED_VALUES_MAX = 64
"""Values of one feed in memory, for cuts before its newest one."""
Values = tuple[tuple[int, str], ...]
"""(LSN, value), ascending."""


class Registers:
    """The registers that the commit loop knows."""

    def __init__(self, frozen: Mapping[str, Register] | None = None) -> None:
        self.known: dict[str, Register] = dict(frozen or {})
        """By name."""
        self._count = Counter(register.owner for register in self.known.values())
        self._feeds: dict[str, dict[str, Values]] = {}
        """Table to its feeds by register name. Other threads read it: each mapping is a value."""
        for name, register in self.known.items():
            self._fed(name, ((register.moved, register.value),))

    def count(self, owner: str) -> int:
        return self._count[owner]

    def said(self, table: str, lsn: int) -> list[tuple[str, str]]:
        """Each feed of a table with its value at a commit; empty if unknown. Any thread may call it after the commit is
        published."""
        feeds = self._feeds.get(table, {})
        return [(name, next((value for at, value in reversed(v) if at <= lsn), "")) for name, v in feeds.items()]

    def _fed(self, name: str, values: Values | None) -> None:
        """Note a feed's values, or its end."""
        found = feed_of(name)
        if found is None:
            return
        feeds = dict(self._feeds.get(found.table, {}))
        if values is None:
            feeds.pop(name, None)
        else:
            feeds[name] = values
        self._feeds[found.table] = feeds

    def _moved(self, name: str, lsn: int, value: str) -> None:
        found = feed_of(name)
        if found is None:
            return
        values = (*self._feeds.get(found.table, {}).get(name, ()), (lsn, value))
        if len(values) > FEED_VALUES_MAX:  # thin out the older half: an earlier value promises less
            values = (*values[: FEED_VALUES_MAX // 2 : 2], *values[FEED_VALUES_MAX // 2 :])
        self._fed(name, values)

    def frozen(self) -> Mapping[str, Register]:
        return dict(self.known)

    def apply(self, lsn: int, change: RegisterChange) -> None:
        """Apply that registers were opened, moved or dropped."""
        known = self.known
        if isinstance(change, RegistersMove):
            for name, value in zip(change.names, change.values, strict=True):
                held = known[name]
                known[name] = Register(held.epoch, value, held.owner, lsn, change.mark)
                self._moved(name, lsn, value)
        elif isinstance(change, RegistersDrop):
            for name in change.names:
                self._less(known.pop(name).owner)
                self._fed(name, None)
        else:
            for name in change.names:
                before = known.get(name)
                if before is None:
                    self._count[change.owner] += 1
                    known[name] = Register(change.epoch, "", change.owner)
                    self._fed(name, ())
                else:
                    known[name] = before._replace(epoch=change.epoch)

    def _less(self, owner: str) -> None:
        self._count[owner] -= 1
        if not self._count[owner]:
            del self._count[owner]
