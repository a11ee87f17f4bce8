"""Signals of the server: the first asks for an orderly end, the second gets an end at once; a hang-up is told.

Python runs handlers in the main thread, and one whose signal came just before that began to wait runs after the wait.
So the numbers go through a pipe to a thread that does nothing else.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable

ENDS = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Made once, by the main thread."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._numbers, numbers = os.pipe()
        os.set_blocking(numbers, False)
        signal.set_wakeup_fd(numbers, warn_on_full_buffer=False)
        for number in (*ENDS, signal.SIGHUP):
            signal.signal(number, _noted)
        threading.Thread(target=self._read, name="signals", daemon=True).start()

    def _read(self) -> None:
        is_ending = False
        while True:
            for number in os.read(self._numbers, 64):
                if is_ending and number in ENDS:
                    os._exit(128 + number)
                is_ending = is_ending or number in ENDS
                self._told.put(number)

    def wait(self, hung_up: Callable[[], object]) -> None:
        """Until the server is to end; `hung_up` is called for each hang-up before."""
        while (number := self._told.get()) not in ENDS:
            if number == signal.SIGHUP:
                hung_up()


def _noted(*_: object) -> None:
    """There is a handler, so that the number goes through the pipe."""
