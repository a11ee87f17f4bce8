"""A named subscription as a value: where its consumer stands. Kept in journal and checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lakestore.token import Place, Token


@dataclass(frozen=True, slots=True)
class Subscription:
    """One name, one consumer, one position."""

    name: str
    tables: tuple[str, ...]
    """Uuids."""
    lsn: int
    """Everything up to this commit was acknowledged, or, with a place, the cut of the snapshot that is read."""
    place: Place | None
    epoch: int
    """Raised by every opening: only the newest consumer reads and acknowledges."""
    acked_us: int
    """When it was last opened, acknowledged, or seen with a consumer."""

    def token(self, timeline: str) -> Token:
        """The position as a stream's token in the present timeline."""
        return Token(timeline, self.lsn, self.tables, self.place)

    def at(self, token: Token, time_us: int) -> Subscription:
        """The subscription moved to a token of its own; never back."""
        moved = replace(self, lsn=token.lsn, place=token.place)
        newest = moved if moved.order() > self.order() else self
        return replace(newest, acked_us=max(time_us, self.acked_us))

    def order(self) -> tuple[int, int, int, int, int]:
        """Positions of one subscription in the order in which a consumer reaches them."""
        if self.place is None:
            return (self.lsn, 1, 0, 0, 0)
        return (self.lsn, 0, self.tables.index(self.place.table), self.place.bucket, self.place.offset)

    def as_list(self) -> list[Any]:
        """The stored form."""
        place = [self.place.table, self.place.bucket, self.place.offset] if self.place else None
        return [self.name, list(self.tables), self.lsn, place, self.epoch, self.acked_us]

    @staticmethod
    def from_list(data: list[Any]) -> Subscription:
        """The subscription that `as_list` wrote."""
        name, tables, lsn, place, epoch, acked_us = data
        return Subscription(name, tuple(tables), lsn, Place(*place) if place else None, epoch, acked_us)
