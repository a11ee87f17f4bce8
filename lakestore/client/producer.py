"""Producers: a name, an epoch and the next sequence, so that a retried commit is applied once."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from lakestore.client.transport import Transport
from lakestore.errors import Exhausted, LakestoreError, Unavailable
from lakestore.v1 import lakestore_pb2 as pb

RETRY_SECONDS = 60.0
_PAUSE_FIRST, _PAUSE_MAX = 0.02, 1.0


@dataclass(slots=True)
class Producer:
    """One sequence of commits."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    epoch: int = 0
    sequence: int = 0
    progress: str = ""

    def request(self, changes: Sequence[pb.Change], progress: str = "") -> pb.CommitRequest:
        """The next commit."""
        self.sequence += 1
        return pb.CommitRequest(
            changes=changes, producer=self.name, epoch=self.epoch, sequence=self.sequence, progress=progress
        )


class ProducerPool:
    """Producers for single commits: each call takes one, so that callers in several threads do not mix."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._idle: list[Producer] = []

    def commit(self, changes: Sequence[pb.Change]) -> pb.CommitAnswer:
        """Commit once, trying again while the outcome is unknown."""
        with self._lock:
            producer = self._idle.pop() if self._idle else Producer()
        request = producer.request(changes)
        try:
            answer = retried(self._transport, request)
        except LakestoreError as error:
            if error.applied == "no":
                producer.sequence -= 1
                self._give_back(producer)
            raise
        self._give_back(producer)
        return answer

    def _give_back(self, producer: Producer) -> None:
        with self._lock:
            self._idle.append(producer)


def retried(transport: Transport, request: pb.CommitRequest) -> pb.CommitAnswer:
    """A commit sent until it is answered or the time is over; its sequence makes that safe."""
    deadline = time.monotonic() + RETRY_SECONDS
    pause = _PAUSE_FIRST
    unknown = False
    while True:
        try:
            return transport.commit(request)
        except LakestoreError as error:
            unknown = unknown or error.applied == "unknown"
            late = time.monotonic() + pause > deadline
            down = error.applied == "no" and "shutting down" in error.message
            if late or down or not isinstance(error, (Unavailable, Exhausted)):
                error.applied = "unknown" if unknown else "no"  # one refusal says nothing of the tries before it
                raise
        time.sleep(pause)
        pause = min(pause * 2, _PAUSE_MAX)
