"""The shares of HTTP that a caller may take: bytes of bodies that are held, and requests that are answered at once.

A caller beyond its share of bytes is `Exhausted`; one with many requests waits its turn, and the others go on. All of
it runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from lakestore.errors import Exhausted
from lakestore.limits import Limits
from lakestore_server.host.permits import share_of

THREADS = 40
"""Requests that are answered at once: starlette's own pool of threads."""


class HttpShares:
    """The shares of one port's callers."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held: Counter[str] = Counter()
        """Owner to bytes; those of nobody in particular under the empty name."""
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @property
    def held_bytes(self) -> int:
        """The bytes of all bodies."""
        return self._held.total()

    def hold(self, owner: str, nbytes: int) -> None:
        """Note more bytes of an owner's, or `Exhausted` with the bytes noted: `let_go` of all of them follows."""
        self._held[owner] += nbytes
        most = self._limits.http_bodies_bytes
        if self._held.total() > most or (owner and self._held[owner] > share_of(most, self._limits)):
            raise Exhausted("too many large requests at once: try again later")

    def let_go(self, owner: str, nbytes: int) -> None:
        """Note that so many bytes are held no more."""
        self._held[owner] -= nbytes
        if not self._held[owner]:
            del self._held[owner]

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """The owner's turn to be answered; no wait without an owner."""
        if not owner:
            yield
            return
        semaphore = self._turns.get(owner)
        if semaphore is None:
            semaphore = self._turns[owner] = asyncio.Semaphore(share_of(THREADS, self._limits))
        async with semaphore:
            yield
