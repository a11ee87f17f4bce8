"""A named subscription as a value: the positions of its consumers. Journal and checkpoint store it.

A single consumer has one position for all tables; consumers that share a subscription have a mark for each bucket.
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
    """The next offset; a commit end except in a snapshot."""
    cut: int = NO_CUT
    """The LSN of the snapshot that is read."""
    by: int = 0
    """The session that moved it last."""
    since: int = 0
    """The offset of the mark when this session began; no other session has moved it since."""

    def order(self) -> tuple[int, int]:
        """Sort key of a bucket's marks in reading order."""
        return int(self.cut == NO_CUT), self.offset

    def counts(self, session: int, begin: int) -> bool:
        """Whether a session that began to read at `begin` may move the mark: no other session has moved it since."""
        return self.offset == begin or (self.by == session and begin >= self.since)

    def has(self, session: int, begin: int, end: int, cut: int) -> bool:
        """Whether a session that began at `begin` has moved the mark that far already: its answer may have been
        lost."""
        return self.by == session and begin >= self.since and self.order() >= Mark(end, cut).order()

    def moved(self, session: int, end: int, cut: int) -> Mark:
        return Mark(end, cut, session, self.since if self.by == session else self.offset)


Marks = tuple[tuple[Mark, ...], ...]
"""By table of the subscription and bucket."""
REFUSALS_KEPT = 8
"""Newest refusals per bucket that are remembered: this many sessions may each have undone what they read."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused acknowledgement of a bucket: earlier reads of the session no longer count."""

    table: int
    """The table's index in the subscription."""
    bucket: int
    session: int
    run: int
    """The session's first run that counts again."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A name and the positions of its consumers."""

    name: str
    tables: tuple[str, ...]
    """Uuids."""
    lsn: int
    """Everything up to this commit was acknowledged; with a place, the cut of the snapshot that is read."""
    place: Place | None
    epoch: int
    """Grows with every opening: only the newest consumer reads and acknowledges."""
    acked_us: int
    """Microseconds when it was last opened, acknowledged or seen with a consumer."""
    marks: Marks = ()
    """The marks of a shared subscription, which began at `lsn` and `place`; empty for one consumer alone."""
    refusals: tuple[Refusal, ...] = ()
    """The refusals of a shared subscription, oldest first."""

    @property
    def is_shared(self) -> bool:
        return bool(self.marks)

    def token(self, timeline: str) -> StreamPosition:
        return stream_position(timeline, self.lsn, self.tables, self.place)

    def at(self, token: Token, time_us: int) -> Subscription:
        """The subscription moved to a token of its own; never back."""
        moved = replace(self, lsn=token.lsn, place=place_of(token))
        newest = moved if moved.order() > self.order() else self
        return replace(newest, acked_us=max(time_us, self.acked_us))

    def order(self) -> tuple[int, int, int, int, int]:
        """Sort key of one consumer's positions in reading order."""
        if self.place is None:
            return (self.lsn, 1, 0, 0, 0)
        return (self.lsn, 0, self.tables.index(self.place.table), self.place.bucket, self.place.offset)

    def moved(self, move: SubscriptionMove) -> Subscription:
        marks = [list(table) for table in self.marks]
        for new in move.marks:
            marks[new.table][new.bucket] = new.mark
        refusals = self._refusals_after(move)
        return replace(self, acked_us=move.acked_us, marks=tuple(map(tuple, marks)), refusals=refusals)

    def expired(self, table: str, starts: Sequence[int]) -> Subscription:
        """A shared subscription after a truncate of a table: buckets that had rows are not read before a reset."""
        marks = [list(each) for each in self.marks]
        mine = marks[self.tables.index(table)]
        for bucket, start in enumerate(starts):
            if mine[bucket].cut != NO_CUT or mine[bucket].offset >= start > 0:
                mine[bucket] = Mark(max(start - 1, 0))
        return replace(self, marks=tuple(map(tuple, marks)))

    def following(self, source: str, copy: str) -> Subscription:
        """The subscription after a swap: `copy` has the place of `source`. A place in a snapshot from before it names
        buckets of the source, which are read until the snapshot ends."""
        if source not in self.tables:
            return self
        place = self.place
        if place is not None and place.table == source:
            place = replace(place, table=copy)
        return replace(self, tables=tuple(copy if uuid == source else uuid for uuid in self.tables), place=place)

    def _refusals_after(self, move: SubscriptionMove) -> tuple[Refusal, ...]:
        """The refusals that still matter: reads below a mark that another session has moved no longer count."""
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
    """The table's index in the subscription."""
    bucket: int
    mark: Mark


@dataclass(frozen=True, slots=True)
class SubscriptionMove:
    """New marks of a shared subscription; none if it only notes that its consumers are present."""

    name: str
    acked_us: int
    marks: tuple[MovedMark, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    """Refusals that are journaled before their sessions are told."""


@dataclass(frozen=True, slots=True)
class SubscriptionDrop:
    """The end of a subscription."""

    name: str
