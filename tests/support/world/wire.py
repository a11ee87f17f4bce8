"""A wire that breaks where it is told: before a message is sent, after its answer was made, or in mid-stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import lakestore as ls
from lakestore.client.calls import transport_of
from lakestore.client.transport import Transport, Wire
from lakestore.errors import Unavailable
from lakestore.wire import rpc

Fault = Literal["unsent", "sent", "answered"] | int
"""`unsent`: the server never saw it, and the client knows; `sent`: it never saw it, and the client does not know;
`answered`: the answer is lost; a number: a stream breaks behind so many messages."""


class FaultyWire:
    """A wire in front of another. `fault` is asked about every call, by the RPC's name."""

    def __init__(self, wire: Wire, fault: Callable[[str], Fault | None]) -> None:
        self._wire, self.fault = wire, fault
        self.credentials, self.address = wire.credentials, wire.address
        self.seen: list[str] = []
        """Names of the RPCs that came to the server, in order."""

    @property
    def server(self) -> Any:
        """As the wire behind it says."""
        return self._wire.server

    def greet(self, seconds: float) -> None:
        """As the wire behind it."""
        self._wire.greet(seconds)

    def call(self, method: rpc.Method, request: Any, seconds: float) -> Any:
        """One try."""
        fault = self.fault(method.name)
        if fault in ("unsent", "sent"):
            raise _broken(method, sent=fault == "sent")
        self.seen.append(method.name)
        answer = self._wire.call(method, request, seconds)
        if fault is not None:
            raise _broken(method, sent=True)
        return answer

    def send(self, method: rpc.Method, request: Any) -> None:
        """As the wire behind it."""
        self._wire.send(method, request)

    def stream(self, method: rpc.Method, request: Any, seconds: float | None) -> Iterator[Any]:
        """The answers up to the fault."""
        fault = self.fault(method.name)
        if fault in ("unsent", "sent"):
            raise _broken(method, sent=fault == "sent")
        self.seen.append(method.name)
        left = {"answered": 0}.get(fault, fault) if isinstance(fault, str) else fault
        answers = self._wire.stream(method, request, seconds)
        try:
            for answer in answers:
                if left == 0:
                    raise _broken(method, sent=True)
                yield answer
                left = left - 1 if isinstance(left, int) else None
            if left is not None:
                raise _broken(method, sent=True)
        finally:
            close = getattr(answers, "close", None)
            if close:
                close()

    def close(self) -> None:
        """Close the wire behind it."""
        self._wire.close()


def _broken(method: rpc.Method, *, sent: bool) -> Unavailable:
    return Unavailable("the wire broke", applied="unknown" if sent and not method.reads else "no")


def over(lake: ls.Lake, fault: Callable[[str], Fault | None]) -> Transport:
    """A transport to the same server whose wire breaks."""
    transport: Any = lake.transport
    return transport_of(FaultyWire(transport.wire, fault))
