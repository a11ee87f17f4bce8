"""Yield points of long work: a caller installs a listener, and long functions call it at places where they hold no
lock.

Few processors serve callers who wait for a few rows, a bulk load, checkpoints and merges. Bulk work may pause between
two yield points, or start again. The long functions (sorts, checksums, searches) do not know why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LISTENER: ContextVar[Callable[[], None] | None] = ContextVar("listener", default=None)
"""The listener of the current thread."""


def yield_point() -> None:
    """A yield point: a place in long work where no lock is held that a commit needs. It may take a while, or raise."""
    listener = _LISTENER.get()
    if listener is not None:
        listener()


@contextmanager
def at_yield_points(listener: Callable[[], None] | None) -> Iterator[None]:
    """Within the block, call `listener` (or nothing, for None) at each yield point of this thread."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
