"""Registers: named positions in other systems, such as one partition of a Kafka topic, which commits move with rows.

A register is opened under an epoch, the LSN of its opening, and only the newest epoch moves it. It keeps its value and
the LSN and the mark of the commit that set it, and no answers: these tell a retry from a new commit. Time alone never
ends a register, for a program that was paused for long must not begin anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from lakestore_server.state.commit_record import RegisterChange, RegistersDrop, RegistersMove


class Register(NamedTuple):
    """A register as the server keeps it."""

    epoch: int
    value: str
    owner: str
    """The principal that opened it first; empty in a process of its own."""
    moved: int = 0
    """LSN of the commit that set the value; 0 before the first."""
    mark: int = 0
    """Checksum of the request that did, which tells its retry from another request."""


class Registers:
    """The registers that the commit loop knows."""

    def __init__(self, frozen: Mapping[str, Register] | None = None) -> None:
        self.known: dict[str, Register] = dict(frozen or {})
        """By name."""
        self._count = Counter(register.owner for register in self.known.values())

    def count(self, owner: str) -> int:
        """The number of an owner's registers."""
        return self._count[owner]

    def frozen(self) -> Mapping[str, Register]:
        """All of them as of now, as a value."""
        return dict(self.known)

    def apply(self, lsn: int, change: RegisterChange) -> None:
        """Note that registers were opened, moved or dropped."""
        known = self.known
        if isinstance(change, RegistersMove):
            for name, value in zip(change.names, change.values, strict=True):
                held = known[name]
                known[name] = Register(held.epoch, value, held.owner, lsn, change.mark)
        elif isinstance(change, RegistersDrop):
            for name in change.names:
                self._less(known.pop(name).owner)
        else:
            for name in change.names:
                before = known.get(name)
                if before is None:
                    self._count[change.owner] += 1
                    known[name] = Register(change.epoch, "", change.owner)
                else:
                    known[name] = before._replace(epoch=change.epoch)

    def _less(self, owner: str) -> None:
        self._count[owner] -= 1
        if not self._count[owner]:
            del self._count[owner]
