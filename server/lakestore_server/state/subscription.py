"""A named subscription as a value: the positions of its consumers. Journal and checkpoint keep it.

One consumer alone has one position for all tables; consumers that share a subscription have a mark for each bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lakestore.model.token import Place, StreamPosition, Token, place_of, stream_position

NO_CUT = -1


@dataclass(frozen=True, slots=True)
class Mark:
    """The acknowledged position of one bucket of a shared subscription."""

    offset: int
    """The next one; a commit end but in a snapshot."""
    cut: int = NO_CUT
    """The LSN of the snapshot that is read."""
    by: int = 0
    """The session that moved it last."""
    since: int = 0
    """The offset at which that session found the mark: nobody else has moved the mark since."""

    def order(self) -> tuple[int, int]:
        """Marks of one bucket in the order in which a consumer reaches them."""
        return int(self.cut == NO_CUT), self.offset

    def counts(self, session: int, begin: int) -> bool:
        """Whether a session that began to read at an offset may move it: if nobody else has since."""
        return self.offset == begin or (self.by == session and begin >= self.since)

    def has(self, session: int, begin: int, end: int, cut: int) -> bool:
        """Whether a session that began to read at an offset has moved it that far: its answer may have been lost."""
        return self.by == session and begin >= self.since and self.order() >= Mark(end, cut).order()

    def moved(self, session: int, end: int, cut: int) -> Mark:
        """The mark behind what a session has acknowledged."""
        return Mark(end, cut, session, self.since if self.by == session else self.offset)


Marks = tuple[tuple[Mark, ...], ...]
"""By table of the subscription and bucket."""
REFUSALS_KEPT = 8
"""Refusals that are remembered of a bucket, the newest ones: so many sessions may each have undone what they read."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused acknowledgement of a bucket: what its session has read of it in an earlier run counts no more."""

    table: int
    """The table's place among those of the subscription."""
    bucket: int
    session: int
    run: int
    """The first run of the session that counts again."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """One name and the positions of its consumers."""

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
    marks: Marks = ()
    """The marks of a shared subscription, whose `lsn` and `place` are where it began; empty for one consumer alone."""
    refusals: tuple[Refusal, ...] = ()
    """The refusals of a shared subscription, the oldest first."""

    @property
    def is_shared(self) -> bool:
        """Whether several consumers read it."""
        return bool(self.marks)

    def token(self, timeline: str) -> StreamPosition:
        """The position as a stream's token in the present timeline."""
        return stream_position(timeline, self.lsn, self.tables, self.place)

    def at(self, token: Token, time_us: int) -> Subscription:
        """The subscription moved to a token of its own; never back."""
        moved = replace(self, lsn=token.lsn, place=place_of(token))
        newest = moved if moved.order() > self.order() else self
        return replace(newest, acked_us=max(time_us, self.acked_us))

    def order(self) -> tuple[int, int, int, int, int]:
        """Positions of one consumer in the order in which a consumer reaches them."""
        if self.place is None:
            return (self.lsn, 1, 0, 0, 0)
        return (self.lsn, 0, self.tables.index(self.place.table), self.place.bucket, self.place.offset)

    def moved(self, move: SubscriptionMove) -> Subscription:
        """A shared subscription with new marks."""
        marks = [list(table) for table in self.marks]
        for new in move.marks:
            marks[new.table][new.bucket] = new.mark
        refusals = self._refusals_after(move)
        return replace(self, acked_us=move.acked_us, marks=tuple(map(tuple, marks)), refusals=refusals)

    def expired(self, table: str, starts: Sequence[int]) -> Subscription:
        """A shared subscription of a table that was emptied: no bucket that had a row is read on before a reset."""
        marks = [list(each) for each in self.marks]
        mine = marks[self.tables.index(table)]
        for bucket, start in enumerate(starts):
            if mine[bucket].cut != NO_CUT or mine[bucket].offset >= start > 0:
                mine[bucket] = Mark(max(start - 1, 0))
        return replace(self, marks=tuple(map(tuple, marks)))

    def _refusals_after(self, move: SubscriptionMove) -> tuple[Refusal, ...]:
        """The refusals that still matter: what lies below a mark that another session has moved counts no more."""
        if not (self.refusals or move.refusals):
            return ()
        moved = {(new.table, new.bucket): new.mark.by for new in move.marks}
        kept = [r for r in self.refusals if moved.get((r.table, r.bucket), r.session) == r.session]
        for new in move.refusals:
            kept = [r for r in kept if (r.table, r.bucket, r.session) != (new.table, new.bucket, new.session)]
            here = [r for r in kept if (r.table, r.bucket) == (new.table, new.bucket)]
            kept = [r for r in kept if r not in here[: len(here) - REFUSALS_KEPT + 1]] + [new]
        return tuple(kept)


@dataclass(frozen=True, slots=True)
class MovedMark:
    """A new mark of one bucket."""

    table: int
    """The table's place among those of the subscription."""
    bucket: int
    mark: Mark


@dataclass(frozen=True, slots=True)
class SubscriptionMove:
    """New marks of a shared subscription; none when it is only noted that its consumers are there."""

    name: str
    acked_us: int
    marks: tuple[MovedMark, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    """Refusals that their sessions are about to be told."""


@dataclass(frozen=True, slots=True)
class SubscriptionDrop:
    """The end of a subscription."""

    name: str
