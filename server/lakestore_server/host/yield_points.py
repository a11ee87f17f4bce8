"""Stages of long work: whoever does it says what happens at each; whatever it calls says where they are.

Two processors have callers who wait for a few rows, and a bulk load, checkpoints and merges beside them. Each of these
may wait a moment, or begin anew, between two stages; sorts, checksums and searches know nothing of why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LISTENER: ContextVar[Callable[[], None] | None] = ContextVar("listener", default=None)
"""The listener of the thread that asks."""


def stage() -> None:
    """A place in long work where no lock is held that a commit takes. It may take a while, and raise."""
    listener = _LISTENER.get()
    if listener is not None:
        listener()


@contextmanager
def at_each_stage(listener: Callable[[], None] | None) -> Iterator[None]:
    """Have `listener`, or nothing, called at each stage that this thread comes to in the block."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
