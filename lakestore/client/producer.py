"""Producers: a name, an epoch and the next sequence, so that a retried commit is applied once."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from lakestore.client.process import PROCESS
from lakestore.client.transport import Transport
from lakestore.errors import LakestoreError
from lakestore.v1 import lakestore_pb2 as pb


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
        self._idle: deque[Producer] = deque()
        """Taken and given back without a lock, so that no fork can inherit one that is held."""

    def commit(self, changes: Sequence[pb.Change]) -> pb.CommitAnswer:
        """Commit once."""
        PROCESS.check()
        producer = self._taken()
        request = producer.request(changes)
        try:
            answer = self._transport.commit(request)
        except LakestoreError as error:
            if error.applied == "no":
                producer.sequence -= 1
                self._idle.append(producer)
            raise
        self._idle.append(producer)
        return answer

    def _taken(self) -> Producer:
        with suppress(IndexError):
            return self._idle.pop()
        return Producer()
