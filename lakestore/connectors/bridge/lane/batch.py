"""Batches: records on their way through the stages of a lane, and words of one stage to a later one, in their order."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lakestore.connectors.bridge.lane.positions import Place
from lakestore.connectors.bridge.outcome import Mapped
from lakestore.connectors.bridge.records import Records
from lakestore.errors import LakestoreError


@dataclass(frozen=True, slots=True)
class Cut:
    """A place in a batch of source transactions behind which a commit may end."""

    highs: Sequence[int]
    """The records of each block that lie before."""
    moves: Mapping[Place, int]
    """The next offsets there, of all partitions that have moved since the batch's beginning."""
    names: str
    """The transactions behind the cut before, for messages."""


@dataclass(slots=True)
class Batch:
    """Records that are to be one commit, as far as that has room for them."""

    generation: int
    """The lane's; a lane that begins anew counts on, and batches of older ones are thrown away."""
    blocks: Sequence[Records]
    """One for each topic."""
    moves: Mapping[Place, int]
    """The next offset of each partition that goes on by this batch."""
    polled: float
    """The time at which its last record was taken from Kafka, by the monotonic clock."""
    nbytes: int
    mapped: Sequence[Mapped] = ()
    """The ends of each block, behind the second stage."""
    cuts: Sequence[Cut] = ()
    """Places to cut it; none: anywhere but between records that belong together."""

    @property
    def topics(self) -> set[str]:
        """The topics of its records."""
        return {records.topic for records in self.blocks}


@dataclass(slots=True)
class Opened:
    """Partitions that are open for this bridge and nobody else."""

    offsets: dict[Place, int] = field(default_factory=dict)
    until: dict[Place, int] = field(default_factory=dict)
    """The ends as of the opening, in front of records that an open transaction holds back."""
    topic_ids: dict[str, str] = field(default_factory=dict)
    refused: dict[str, LakestoreError] = field(default_factory=dict)
    """Topic to why it is not read."""


@dataclass(slots=True)
class Opening:
    """A word to the last stage: open the registers of partitions."""

    generation: int
    places: Sequence[Place]
    opened: Opened | None = None
    """The answer, once `done` is set; None for an opening that was thrown away."""
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def topics(self) -> set[str]:
        """The topics of its partitions."""
        return {place.topic for place in self.places}


@dataclass(slots=True)
class Release:
    """A word to the last stage: all that came before is committed or thrown away; these partitions are another's."""

    places: Sequence[Place]
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class Settling:
    """A word to the stages of a lane that reads source transactions: look at those that wait once more."""

    generation: int
    ends: Mapping[Place, float]
    """The times at which partitions were last at their ends."""
    polled: float
    waiting: Sequence[str] = ()
    """The transactions that still wait, once `done` is set."""
    done: threading.Event = field(default_factory=threading.Event)
    """Set once all that came before is committed or thrown away."""


Work = Batch | Opening | Release | Settling
