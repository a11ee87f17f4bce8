"""Named producers as the server keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lakestore.model import times
from lakestore.v1 import lakestore_pb2 as pb


@dataclass(frozen=True, slots=True)
class NamedProducer:
    """A named producer as the server keeps it."""

    name: str
    owner: str
    """The principal that opened it first; empty for a process that has its server inside."""
    epoch: int
    """The epoch of its newest opening."""
    last_sequence: int
    """Its newest commit under that epoch; 0 before the first."""
    progress: str
    """The first characters of what it attached last."""
    used: datetime
    """When it was last opened or wrote."""

    @staticmethod
    def of(entry: pb.ProducerEntry) -> NamedProducer:
        """The producer that the server tells of."""
        used = times.moment_of(entry.used_us)
        return NamedProducer(entry.name, entry.owner, entry.epoch, entry.last_sequence, entry.progress, used)
