"""Positions: the value of a register, which says of one partition how far a bridge has come, and of which topic.

The cluster's id and the topic's own id are in it, so that a topic made anew under its old name, or another cluster
behind the old address, is noticed before a record of it is taken for a later one of the old.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from lakestore.errors import Conflict, Corrupt

_VERSION = "1"
DEFAULT_SOURCE = "-"
"""The part of a register's name that stands for the only, unnamed source."""


class Place(NamedTuple):
    """One partition."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Ends:
    """The offsets that a partition has now."""

    low: int
    """The oldest record that retention has left."""
    stable: int
    """Behind the newest record that no open transaction holds back."""
    high: int
    """Behind the newest record."""


@dataclass(frozen=True, slots=True)
class Position:
    """The next record of a partition."""

    cluster: str
    topic_id: str
    next: int

    def encode(self) -> str:
        """The register's value."""
        return f"{_VERSION} {self.cluster} {self.topic_id} {self.next}"

    @staticmethod
    def decode(value: str) -> Position | None:
        """The position that `encode` wrote; None for a register that nobody has moved."""
        if not value:
            return None
        version, *parts = value.split(" ")
        if version != _VERSION or len(parts) != 3 or not parts[2].isdecimal():
            raise Corrupt(
                f"a bridge's register holds {value[:100]!r}, which this release cannot read: run the newest release"
            )
        return Position(parts[0], parts[1], int(parts[2]))


@dataclass(frozen=True, slots=True)
class Accepted:
    """Topics of which the user has said that what is gone is gone."""

    new_topics: Collection[str] = ()
    """Made anew: read from the start position on."""
    losses: Collection[str] = ()
    """Records that are gone are passed over."""


def prefix_of(bridge: str, source: str) -> str:
    """The beginning of the names of a bridge's registers for one source."""
    return f"bridge/{bridge}/{source or DEFAULT_SOURCE}/"


def register_of(bridge: str, source: str, place: Place) -> str:
    """The name of a partition's register."""
    return f"{prefix_of(bridge, source)}{place.topic}/{place.partition}"


def go_on(place: Place, held: Position, now: Position, ends: Ends, accepted: Accepted) -> tuple[int | None, str]:
    """The offset at which to go on, None for the start position; and a sentence if records are passed over.

    `Conflict` with a sentence where records would be lost or taken for others and nobody has accepted that.
    """
    where = f"partition {place.partition} of topic {place.topic!r}"
    if (held.cluster, held.topic_id) != (now.cluster, now.topic_id):
        if place.topic in accepted.new_topics:
            return None, f"{where} is read from its start, for the topic is another one than before"
        raise Conflict(_other(place, held, now))
    if held.next < ends.low:
        lost = ends.low - held.next
        if place.topic in accepted.losses:
            return (
                ends.low,
                f"{where}: offsets {held.next} to {ends.low - 1} are gone from Kafka, {lost} are passed over",
            )
        raise Conflict(
            f"{where} begins at offset {ends.low} by now, and this bridge stands at {held.next}: up to {lost} records"
            f" are gone by retention before they were read; go on without them by --accept-loss {place.topic}"
        )
    if held.next > ends.high:
        if place.topic in accepted.losses:
            return ends.high, f"{where} ends at {ends.high}, before offset {held.next} where this bridge stood"
        raise Conflict(
            f"{where} ends at offset {ends.high}, and this bridge stands at {held.next}: Kafka has lost its last"
            f" {held.next - ends.high} records; go on at its end by --accept-loss {place.topic}"
        )
    return held.next, ""


def _other(place: Place, held: Position, now: Position) -> str:
    if held.cluster != now.cluster:
        return (
            f"topic {place.topic!r} is in Kafka cluster {now.cluster}, and this bridge has read it from cluster"
            f" {held.cluster}: is the address right? Read it from its start by --accept-new-topic {place.topic}"
        )
    return (
        f"topic {place.topic!r} was deleted and made anew since this bridge read it (its id was {held.topic_id} and is"
        f" {now.topic_id} now): read it from its start by --accept-new-topic {place.topic}"
    )
