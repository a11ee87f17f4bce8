"""Waiting for what a server does in the background, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_SECONDS = 60.0


def until(done: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Return once `done` is true; fail when that takes too long."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.005)
