"""The server's history as a client knows it: its timeline, and how far the client has seen it.

A server that is restored from a backup goes on under another timeline. Whatever depends on history says which one it
was made for, and a server of another one refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakestore.client.transport import Transport
from lakestore.model.token import Token
from lakestore.v1 import lakestore_pb2 as pb


@dataclass(frozen=True, slots=True)
class Point:
    """A point in a history that has been reached."""

    timeline: str = ""
    """Empty for a server that does not say."""
    lsn: int = 0


class History:
    """The newest point that a connection knows of. Thread-safe: a point is a value, and any recent one will do."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._seen = Point()

    @property
    def point(self) -> Point:
        """The newest point known here, without asking."""
        if not self._seen.timeline:
            server = self._transport.server
            self._seen = Point(server.timeline, server.lsn)
        return self._seen

    def seen(self, position: Token) -> None:
        """Note a commit of ours."""
        known = self.point
        if position.timeline != known.timeline or position.lsn > known.lsn:
            self._seen = Point(position.timeline, position.lsn)

    def renew(self) -> Point:
        """Ask the server for the newest point."""
        head = self._transport.head(pb.HeadRequest())
        self._seen = Point(head.timeline, head.lsn)
        return self._seen
