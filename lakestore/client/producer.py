"""Producers: a name, an epoch and the next sequence, so a repeated commit is applied once.

A producer belongs to one timeline. If the server was restored or forgot it, a producer with a random name continues
under a new name, unless the outcome of a request is unknown.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from lakestore.client.transport import PROCESS, Transport, message_bytes
from lakestore.errors import LakestoreError, OtherTimeline, ProducerForgotten
from lakestore.model import times
from lakestore.model.token import Token
from lakestore.rows.ranges import check_commit
from lakestore.v1 import lakestore_pb2 as pb


@dataclass(frozen=True, slots=True)
class Point:
    """A point in a server's history."""

    timeline: str = ""
    """Empty if the server does not send it."""
    lsn: int = 0


class History:
    """The newest point that a connection has seen. Thread-safe: points are values, and any recent one will do."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._seen = Point()

    @property
    def point(self) -> Point:
        if not self._seen.timeline:
            server = self._transport.server
            self._seen = Point(server.timeline, server.lsn)
        return self._seen

    def remember(self, position: Token) -> None:
        known = self.point
        if position.timeline != known.timeline or position.lsn > known.lsn:
            self._seen = Point(position.timeline, position.lsn)

    def renew(self) -> Point:
        head = self._transport.head(pb.HeadRequest())
        self._seen = Point(head.timeline, head.lsn)
        return self._seen


@dataclass(frozen=True, slots=True)
class NamedProducer:
    """A named producer as the server keeps it."""

    name: str
    owner: str
    """Principal that opened it first; empty if the server is in the same process."""
    epoch: int
    last_sequence: int
    """Its newest commit in that epoch; 0 before the first."""
    progress: str
    """The first characters of its progress."""
    used: datetime
    """When it was last opened or wrote."""

    @staticmethod
    def of(entry: pb.ProducerEntry) -> NamedProducer:
        used = times.moment_of(entry.used_us)
        return NamedProducer(entry.name, entry.owner, entry.epoch, entry.last_sequence, entry.progress, used)


@dataclass(slots=True)
class Producer:
    """One sequence of commits."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    epoch: int = 0
    sequence: int = 0
    progress: str = ""
    timeline: str = ""
    """The timeline it writes to; empty if the server does not send it."""
    born: int | None = None
    """LSN up to which the history was seen when the name was drawn; None for a name that a user gave."""

    @staticmethod
    def drawn(point: Point) -> Producer:
        return Producer(timeline=point.timeline, born=point.lsn)

    @staticmethod
    def opened(name: str, info: pb.ProducerInfo) -> Producer:
        return Producer(name, info.epoch, info.last_sequence, info.progress, info.timeline)

    def request(self, changes: Sequence[pb.Change], progress: str = "") -> pb.CommitRequest:
        request = pb.CommitRequest(changes=changes, progress=progress)
        self.sign(request)
        return request

    def sign(self, request: pb.CommitRequest) -> None:
        """Make a request this producer's next commit."""
        self.sequence += 1
        request.producer, request.epoch, request.sequence = self.name, self.epoch, self.sequence
        request.timeline = self.timeline
        if self.born is not None:
            request.born = self.born


def is_over(error: LakestoreError) -> bool:
    """True if the server cannot serve the producer of a request any more."""
    return isinstance(error, (OtherTimeline, ProducerForgotten))


class ProducerPool:
    """Producers for single commits. Each call takes one, so threads do not share a sequence."""

    def __init__(self, transport: Transport, history: History) -> None:
        self._transport, self._history = transport, history
        self._idle: deque[Producer] = deque()
        """Used without a lock, so a fork cannot inherit a locked one."""

    def commit(self, changes: Sequence[pb.Change]) -> pb.CommitAnswer:
        PROCESS.check()
        check_commit(sum(len(change.rows) for change in changes), message_bytes(self._transport.server))
        producer = self._taken()
        try:
            return self._committed(producer, changes)
        except LakestoreError as error:
            if not is_over(error) or error.applied == "unknown":
                raise
        return self._committed(Producer.drawn(self._history.renew()), changes)

    def _committed(self, producer: Producer, changes: Sequence[pb.Change]) -> pb.CommitAnswer:
        request = producer.request(changes)
        try:
            answer = self._transport.commit(request)
        except LakestoreError as error:
            if error.applied == "no" and not is_over(error):
                producer.sequence -= 1
                self._idle.append(producer)
            raise
        self._idle.append(producer)
        return answer

    def _taken(self) -> Producer:
        point = self._history.point
        with suppress(IndexError):
            while True:
                idle = self._idle.pop()
                if idle.timeline == point.timeline:
                    return idle
        return Producer.drawn(point)
