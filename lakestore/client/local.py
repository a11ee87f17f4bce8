"""A server inside this process: its verbs, called without a network."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

from lakestore.client.credentials import NOTHING
from lakestore.client.process import PROCESS
from lakestore.client.transport import Transport
from lakestore.release import RELEASE
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc


class Verbs(Protocol):
    """A server's verbs by the names of their RPCs."""

    def verb(self, name: str, /) -> Callable[..., Any]:
        """The verb of an RPC; the verb of `Changes` takes a second argument, the listener."""


class Encoded(Protocol):
    """A message of a change stream, which the server has encoded for all that are sent it."""

    @property
    def message(self) -> pb.ChangeBatch:
        """The message."""


class LocalTransport:
    """The verbs of a server in this process."""

    def __init__(self, verbs: Verbs) -> None:
        self.credentials = NOTHING
        self.server = pb.HelloAnswer(release=RELEASE, protocol=rpc.PROTOCOL, protocol_min=rpc.PROTOCOL_MIN)
        self._closed = False
        PROCESS.adopt(self)
        for method in rpc.methods():
            if method.name != "Changes":
                setattr(self, method.attribute, verbs.verb(method.name))
        self._follow = verbs.verb("Changes")
        self._streams: set[Generator[Encoded]] = set()
        self._abandoned: deque[Generator[Encoded]] = deque()

    def changes(self, request: pb.ChangesRequest) -> Iterator[pb.ChangeBatch]:
        """A change stream; it ends when this transport is closed."""
        self._end_abandoned()
        return _LocalStream(self, self._follow(request, self))

    def begun(self, stream: Generator[Encoded]) -> None:
        """Keep a stream from being ended by the garbage collector, which runs in any thread and under any lock."""
        self._streams.add(stream)

    def abandoned(self, stream: Generator[Encoded]) -> None:
        """Nobody listens to a stream any more: it is ended by the next call, for this one may come from anywhere."""
        self._abandoned.append(stream)

    def ended(self, stream: Generator[Encoded]) -> None:
        """End a stream now."""
        self._streams.discard(stream)
        stream.close()

    def _end_abandoned(self) -> None:
        while self._abandoned:
            self.ended(self._abandoned.popleft())

    def is_active(self) -> bool:
        """Whether somebody still listens to the streams."""
        return not self._closed

    def add_callback(self, _: Callable[[], None]) -> bool:
        """Nobody is called back: streams look now and then."""
        return False

    def orphaned(self) -> None:
        """The server's threads are in another process: refuse every call."""
        for method in rpc.methods():
            setattr(self, method.attribute, lambda _: PROCESS.check())

    def close(self) -> None:
        """End streams."""
        self._closed = True
        self._end_abandoned()


class _LocalStream:
    """The messages of a change stream of this process."""

    def __init__(self, transport: LocalTransport, stream: Generator[Encoded]) -> None:
        self._transport, self._stream = transport, stream
        transport.begun(stream)

    def __iter__(self) -> Iterator[pb.ChangeBatch]:
        return self

    def __next__(self) -> pb.ChangeBatch:
        return next(self._stream).message

    def close(self) -> None:
        """End the stream."""
        self._transport.ended(self._stream)

    def __del__(self) -> None:
        self._transport.abandoned(self._stream)


def attached(verbs: Verbs) -> Transport:
    """A transport to a server in this process."""
    transport: Any = LocalTransport(verbs)
    found: Transport = transport
    return found
