"""Requests whose answers nobody waits for, such as the release of a lease."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from lakestore.errors import LakestoreError


class Partings:
    """Sends requests in their order, in a thread that lives while there are some.

    The garbage collector also puts requests. It runs in any thread and under any lock, for instance one of gRPC, so
    `put` waits for no lock and sends nothing itself.
    """

    def __init__(self, send: Callable[..., None]) -> None:
        """`send` raises `LakestoreError` if there is no connection. All requests that wait are dropped then."""
        self._send = send
        self._requests: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self._turn = threading.Lock()
        """Held by the thread that sends."""

    def put(self, *request: Any) -> None:
        """Send by `send(*request)`."""
        self._requests.put(request)
        if self._turn.acquire(blocking=False):
            is_running = False
            try:
                with suppress(RuntimeError):  # no thread can be started: the requests wait for the next one
                    _thread.start_new_thread(self._run, ())
                    is_running = True
            finally:
                if not is_running:
                    self._turn.release()

    def close(self, seconds: float) -> None:
        """Send what waits, after some seconds also beside a thread that still sends. Put nothing later."""
        self._turn.acquire(timeout=seconds)
        self._send_all()

    def _run(self) -> None:
        while True:
            try:
                self._send_all()
            finally:
                self._turn.release()
            if self._requests.empty() or not self._turn.acquire(blocking=False):
                return

    def _send_all(self) -> None:
        try:
            for request in self._taken():
                self._send(*request)
        except LakestoreError:
            for _dropped in self._taken():
                pass

    def _taken(self) -> Iterator[tuple[Any, ...]]:
        """The requests that wait, each taken out of the queue."""
        with suppress(Empty):
            while True:
                yield self._requests.get_nowait()
