"""Waiting for what a server does in the background, with a limit."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from lakestore.client.retry import within
from lakestore.errors import LakestoreError

WAIT_SECONDS = 120.0
T = TypeVar("T")


def until(done: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Return once `done` is true; fail when that takes too long."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.005)


def first_of(ask: Callable[[], list[T]], what: str, seconds: float = WAIT_SECONDS) -> T:
    """The first of what is found, once something is."""
    there: list[T] = []

    def is_there() -> bool:
        there[:] = ask()
        return bool(there)

    until(is_there, what, seconds)
    return there[0]


def joined(*threads: threading.Thread) -> None:
    """Wait for threads that were told to end."""
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive(), f"{thread.name} does not end"


def refusal(call: Callable[[], object], text: str, seconds: float) -> LakestoreError:
    """The error of a call of so many seconds, which is made again until the error has this text: on a busy machine the
    time may be over before any server has answered."""
    found: list[LakestoreError] = []

    def says() -> bool:
        with pytest.raises(LakestoreError) as raised, within(seconds):
            call()
        found.append(raised.value)
        return bool(re.search(text, str(raised.value)))

    until(says, f"the error {text!r}")
    return found[-1]
