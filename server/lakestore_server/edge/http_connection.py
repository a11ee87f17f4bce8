"""An HTTP connection with limits of time: for a request whose sender is not known, and for the reader of its answer.

uvicorn has neither limit. A slow client costs one connection for some seconds, whether it is slow in the head or in the
body of a request; when there are too many, the one that has taken longest to get on goes, so that a client with a
request is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from lakestore.limits import Limits
from lakestore_server.edge.http_gate import ADVANCE, CERTIFICATE
from lakestore_server.edge.tls import names_of


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol with limits of time and number."""

    def __init__(self, *, limits: Limits, **given: Any) -> None:
        super().__init__(**given)
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self.waiting_since = 0.0
        self.is_advanced = False
        """Whether the sender of the present request is known, or the request is there whole."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        facts = {CERTIFICATE: names_of(transport.get_extra_info("peercert")), ADVANCE: self._advance}
        self.app = _told(self.app, facts)
        self._expect_head()
        if len(self.connections) > self._limits.http_connections:
            self._make_room()

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        cycle: Any = self.cycle  # None until the first request, which its type does not say
        return cycle is not None and not cycle.response_complete

    def on_response_complete(self) -> None:
        self.is_advanced = False
        super().on_response_complete()
        if not self.is_busy and not self.transport.is_closing():
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._timer)
        self._stop(self._writing)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop(self._writing)
        self._writing = self.loop.call_later(self._limits.http_stall_ms / 1000, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop(self._writing)
        super().resume_writing()

    def _expect_head(self) -> None:
        self._stop(self._timer)
        self.waiting_since = self.loop.time()
        self._timer = self.loop.call_later(self._limits.http_header_ms / 1000, self._give_up)

    def _advance(self) -> None:
        self.is_advanced = True
        self._stop(self._timer)

    def _give_up(self) -> None:
        if not self.is_advanced:
            self.transport.abort()

    def _make_room(self) -> None:
        behind = [each for each in self.connections if isinstance(each, GuardedProtocol) and not each.is_advanced]
        oldest = min(behind, key=lambda each: each.waiting_since, default=self)
        oldest.transport.abort()

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


def _told(application: Any, facts: Mapping[str, Any]) -> Callable[..., Any]:
    """The application with facts of the connection put into its scope."""

    async def told(scope: Any, receive: Any, send: Any) -> Any:
        scope.update(facts)
        return await application(scope, receive, send)

    return told
