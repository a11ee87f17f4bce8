"""Work of the commit loop: requests of producers, other changes, and what must run while nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from lakestore_server.commit.request import Request
from lakestore_server.index.keys import IndexKeys
from lakestore_server.state.commit_record import CommitRecord
from lakestore_server.state.state import State
from lakestore_server.state.view import View

T = TypeVar("T")
IndexEntries = Sequence[tuple[IndexKeys, npt.NDArray[np.int64]]]
"""Keys of one table and their new values, several times."""


def _none(_: object) -> IndexEntries:
    return ()


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """An operation that happened."""

    view: View
    """The newest state, with the operation in it."""
    result: T
    """The value that `plan` returned."""


@dataclass(slots=True)
class Operation(Generic[T]):
    """A change that is no producer's: `plan` fills a record from the state and returns a result, or raises."""

    plan: Callable[[State, CommitRecord], T]
    entries: Callable[[T], IndexEntries] = _none
    """The index entries of a result, put once the record is durable."""
    answer: Future[Done[T]] = field(default_factory=Future)
    nbytes: int = 1024
    queued: float = 0.0
    """When, in monotonic seconds; set by the engine."""


@dataclass(slots=True)
class Task(Generic[T]):
    """Work that must run on the commit loop and writes no record."""

    run: Callable[[], T]
    answer: Future[T] = field(default_factory=Future)
    nbytes: int = 0


Work = Request | Operation[Any] | Task[Any]
