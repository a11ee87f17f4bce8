"""Python's garbage collector in a process that keeps very many objects.

A full collection looks at every object and lets nothing else run: 1.4 s with 100,000 segments, again at each
checkpoint, measured. Objects that survived a long one are frozen, so that none looks at them again; reference counts
free them as ever. When as many have come as were frozen before, all are looked at once more: cycles that died since go.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator

PAUSE_SECONDS = 0.03
"""A full collection that takes more of a processor is long."""
FROZEN_MIN = 100_000
"""Frozen objects from which on it is worth to wait until they have doubled."""


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No collection within the block, which makes objects that stay: a start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Collector:
    """Keeps full collections short, from `begin` to `end`."""

    def __init__(self, pause_seconds: float = PAUSE_SECONDS, frozen_min: int = FROZEN_MIN) -> None:
        self._pause_seconds, self._frozen_min = pause_seconds, frozen_min
        self._looked_at = 0
        """Frozen objects when all were looked at last."""
        self._began = 0.0

    def begin(self) -> None:
        """Freeze what is there now, and what survives long collections from now on."""
        gc.collect()
        gc.freeze()
        self._looked_at = gc.get_freeze_count()
        gc.callbacks.append(self._told)

    def end(self) -> None:
        """Leave the collector as it was; idempotent."""
        if self._told in gc.callbacks:
            gc.callbacks.remove(self._told)
            gc.unfreeze()

    def _told(self, phase: str, about: dict[str, int]) -> None:
        """Python's word that a collection begins or ends, in the thread in which it is."""
        if about["generation"] < 2:
            return
        if phase == "start":
            self._began = time.thread_time()
        elif time.thread_time() - self._began > self._pause_seconds:
            self._freeze()

    def _freeze(self) -> None:
        gc.freeze()
        frozen = gc.get_freeze_count()
        if frozen > 2 * max(self._looked_at, self._frozen_min):
            self._looked_at = frozen
            gc.unfreeze()  # the next full collection, which is a long one, looks at all and freezes what it leaves
