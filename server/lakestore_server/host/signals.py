"""Signals of the server: the first asks for an orderly end, the second gets an end at once; a hang-up is told.

Python runs handlers in the main thread, and one whose signal came just before that began to wait runs after the wait.
So the numbers go through a pipe to a thread that does nothing else; a storm of them may fill it, so handlers tell of
ends, too. Each way counts by itself.
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
        handled = _Ends(self._told)
        for number in ENDS:
            signal.signal(number, lambda number, _: handled.came(number))
        signal.signal(signal.SIGHUP, lambda *_: None)  # it goes through the pipe
        threading.Thread(target=self._read, name="signals", daemon=True).start()

    def _read(self) -> None:
        read = _Ends(self._told)
        while True:
            numbers = os.read(self._numbers, 4096)
            if signal.SIGHUP in numbers:
                self._told.put(signal.SIGHUP)
            for number in filter(ENDS.__contains__, numbers):
                read.came(number)

    def wait(self, hung_up: Callable[[], object]) -> None:
        """Until the server is to end; `hung_up` is called for hang-ups before."""
        while self._told.get() not in ENDS:
            hung_up()


class _Ends:
    """The signals to end that came by one way. Takes no lock: handlers run within one another."""

    def __init__(self, told: queue.SimpleQueue[int]) -> None:
        self._told, self._is_ending = told, False

    def came(self, number: int) -> None:
        """Tell the first one; end the process at the second."""
        if self._is_ending:
            os._exit(128 + number)
        self._is_ending = True
        self._told.put(number)
