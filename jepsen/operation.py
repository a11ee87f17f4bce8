"""Operations: what a client asked for, and what it was told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

NEVER = float("inf")
"""The place of what has not happened, or nobody knows when."""
NEMESIS = "nemesis"
"""The process whose operations are faults."""
EXCUSE, HEALED = "excuse", "healed"
"""Beside faults a history tells which errors are no defects from here on, and that nothing is broken any more."""
READS = "reads"
"""The first note of a history whose connections do not read at the leader: where they read. At a follower a connection
sees its own writes. It may see the writes of other connections later (docs/replicas.md)."""
PAUSE, SHAPE = "pause", "shape"
"""Functions that ask nothing of a server: a rest, and a note of what was drawn, for those who judge a history again."""


class Kind(StrEnum):
    """The four kinds of a history's lines, as Jepsen names them."""

    INVOKE = "invoke"
    OK = "ok"
    """It happened, and the value is what was answered."""
    FAIL = "fail"
    """It did not happen, and never will."""
    INFO = "info"
    """It may have happened, or may yet happen."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """Something to do: a function's name and what it is called with, as JSON values."""

    f: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One line of a history. `time`: nanoseconds since the run began; `process`: a client's number, or the nemesis."""

    index: int
    time: int
    process: int | str
    kind: Kind
    f: str
    value: Any = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """An invocation with its completion. One that was never completed may have happened, as `INFO` says."""

    invoked: Operation
    completed: Operation | None

    @property
    def f(self) -> str:
        """The function's name."""
        return self.invoked.f

    @property
    def process(self) -> int | str:
        """The process that called."""
        return self.invoked.process

    @property
    def kind(self) -> Kind:
        """The outcome."""
        return self.completed.kind if self.completed else Kind.INFO

    @property
    def value(self) -> Any:
        """The answer of a call that is `OK`, else what it was called with."""
        return self.completed.value if self.completed and self.completed.kind is Kind.OK else self.invoked.value

    @property
    def ended(self) -> float:
        """The place by which the effect has happened, if it happens at all; `NEVER` if the outcome is unknown."""
        return self.completed.index if self.completed and self.kind is not Kind.INFO else NEVER

    @property
    def acknowledged(self) -> float:
        """The place of the acknowledgement; `NEVER` if there is none."""
        return self.completed.index if self.completed and self.kind is Kind.OK else NEVER
