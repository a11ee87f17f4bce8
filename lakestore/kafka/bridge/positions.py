"""Positions: the value of a register, which holds a partition's next offset and the topic's identity.

A position includes the cluster id and the topic id. A topic that was created again under its old name, or another
cluster at the old address, is noticed before its records are mistaken for later ones.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from lakestore.errors import Conflict, Corrupt

_VERSION = "1"
DEFAULT_SOURCE = "-"
"""The part of a register's name for an unnamed source."""


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Ends:
    """The current offsets of a partition."""

    low: int
    """The oldest offset that retention has left."""
    stable: int
    """The end of the records that no open transaction holds back."""
    high: int


@dataclass(frozen=True, slots=True)
class Position:
    """The next record of a partition, with the identity of its topic."""

    cluster: str
    topic_id: str
    next: int

    def encode(self) -> str:
        return f"{_VERSION} {self.cluster} {self.topic_id} {self.next}"

    @staticmethod
    def decode(value: str) -> Position | None:
        """Parse the output of `encode`; None for a register that never moved."""
        if not value:
            return None
        version, *parts = value.split(" ")
        if version != _VERSION or len(parts) != 3 or not parts[2].isdecimal():
            raise Corrupt(
                f"a bridge's register holds {value[:100]!r}, which this release cannot read: run the newest release"
            )
        return Position(parts[0], parts[1], int(parts[2]))


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """Topics for which the user has accepted a loss."""

    new_topics: Collection[str] = ()
    """Topics that were created again: read from the start position."""
    losses: Collection[str] = ()
    """Topics whose missing records are skipped."""


def prefix_of(bridge: str, source: str) -> str:
    """The prefix of the names of a bridge's registers for one source."""
    return f"bridge/{bridge}/{source or DEFAULT_SOURCE}/"


def register_of(bridge: str, source: str, place: Place) -> str:
    """The name of a partition's register."""
    return f"{prefix_of(bridge, source)}{place.topic}/{place.partition}"


def go_on(
    place: Place, position: Position, now: Position, ends: Ends, accepted: AcceptedLoss
) -> tuple[int | None, str]:
    """The offset to continue at (None: the start position), and a sentence if records are skipped.

    Raises `Conflict` if records would be lost or mistaken and the user has not accepted it.
    """
    where = f"partition {place.partition} of topic {place.topic!r}"
    if (position.cluster, position.topic_id) != (now.cluster, now.topic_id):
        if place.topic in accepted.new_topics:
            return None, f"{where} is read from its start, for the topic is another one than before"
        raise Conflict(_other(place, position, now))
    if position.next < ends.low:
        lost = ends.low - position.next
        if place.topic in accepted.losses:
            return (
                ends.low,
                f"{where}: offsets {position.next} to {ends.low - 1} are gone from Kafka, {lost} are passed over",
            )
        raise Conflict(
            f"{where} begins at offset {ends.low} by now, and this bridge stands at {position.next}: retention deleted"
            f" up to {lost} records before they were read; go on without them by --accept-loss {place.topic}"
        )
    if position.next > ends.high:
        if place.topic in accepted.losses:
            return ends.high, f"{where} ends at {ends.high}, before offset {position.next} where this bridge stood"
        raise Conflict(
            f"{where} ends at offset {ends.high}, and this bridge stands at {position.next}: Kafka has lost its last"
            f" {position.next - ends.high} records; go on at its end by --accept-loss {place.topic}"
        )
    return position.next, ""


def _other(place: Place, position: Position, now: Position) -> str:
    if position.cluster != now.cluster:
        return (
            f"topic {place.topic!r} is in Kafka cluster {now.cluster}, and this bridge has read it from cluster"
            f" {position.cluster}: is the address right? Read it from its start by --accept-new-topic {place.topic}"
        )
    return (
        f"topic {place.topic!r} was deleted and created again since this bridge read it (its id was"
        f" {position.topic_id} and is {now.topic_id} now): read it from its start by --accept-new-topic {place.topic}"
    )
