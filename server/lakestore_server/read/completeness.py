"""Completeness of cuts: the time through which a table's data is complete, from commits and feeds (docs/time.md).

A cut is complete through a time if the clock has passed it, the cut has every commit to the table until then, and every
feed of the table has declared it in a commit of the cut. A head may become complete; a past cut cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lakestore.errors import NotFresh
from lakestore.model import times
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.host.clock import Clock
from lakestore_server.read.positions import AT_WAIT_SECONDS, reached
from lakestore_server.state import swaps
from lakestore_server.state.view import TableState, View

LOOK_SECONDS = 0.25
"""Seconds between two looks at a clock that nears a time."""


@dataclass(frozen=True, slots=True)
class Lack:
    """The reason why a cut is not complete."""

    table: str
    through_us: int | None
    """The time through which the table is complete; None if unknown."""
    why: str
    passes: bool
    """Whether a later head may be complete."""

    def error(self, wanted_us: int) -> NotFresh:
        known = f"is complete through {times.text_of(self.through_us)}" if self.through_us else "is not complete"
        made = NotFresh(f"table {self.table} {known}, and {times.text_of(wanted_us)} was required: {self.why}")
        made.table = self.table
        made.complete_through = times.moment_of(self.through_us) if self.through_us else None
        return made


def complete_through_us(engine: Engine, view: View, name: str, now_us: int) -> int | None:
    """The time through which the head of a table is complete: that of its slowest feed, or now without feeds. None if a
    feed has given no time. `view` was taken before, as in `Completeness`."""
    texts = [text for _, text in engine.loop.state.registers.said(name, view.lsn)]
    moments = [times.micros_of(text) if text else None for text in texts]
    known = [moment for moment in moments if moment is not None]
    return min([now_us, *known]) if len(known) == len(moments) else None


class Completeness:
    """Judges the completeness of cuts. Thread-safe."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine, self._clock = engine, clock

    def cut(self, names: Sequence[str], at: int | None, asked: pb.Requirement) -> int:
        """The LSN of a cut that meets a requirement: `at`, or the head, which is waited for; else `NotFresh`."""
        engine = self._engine
        fresh_us = engine.now_us() - asked.freshness_us if asked.freshness_us else 0
        wanted_us = max(asked.complete_through_us, fresh_us)
        end = self._clock.monotonic() + min(asked.wait_ms / 1_000, AT_WAIT_SECONDS)
        view = engine.view if at is None else reached(engine, at)
        while True:
            now_us = engine.now_us()
            if view.clock_us <= wanted_us < now_us:
                view = engine.settled()
            lsn = view.lsn if at is None else at
            lack = self._lack(view, names, lsn, wanted_us, now_us, is_head=at is None)
            if lack is None:
                return lsn
            left = end - self._clock.monotonic()
            if not lack.passes or left <= 0:
                raise lack.error(wanted_us)
            engine.wait_beyond(view.lsn, min(left, LOOK_SECONDS))
            view = engine.view

    def _lack(
        self, view: View, names: Sequence[str], lsn: int, wanted_us: int, now_us: int, *, is_head: bool
    ) -> Lack | None:
        """The worst reason; None for a complete cut."""
        if wanted_us >= now_us:
            return Lack(names[0], now_us - 1, "that lies ahead of the server's clock, so commits may still come", True)
        lacks = [
            lack
            for name in names
            for lack in (
                *([] if is_head else _behind(view, view.named(name), lsn, wanted_us)),
                *self._behind_feeds(name, lsn, wanted_us, is_head=is_head),
            )
        ]
        return min(lacks, key=lambda lack: (lack.passes, lack.through_us or 0), default=None)

    def _behind_feeds(self, name: str, lsn: int, wanted_us: int, *, is_head: bool) -> Iterator[Lack]:
        # The view was taken first: the commit loop has undone nothing up to this view since.
        for feed, said in self._engine.loop.state.registers.said(name, lsn):
            through_us = times.micros_of(said) if said else None
            if through_us is None:
                said_so = f"holds {said[:40]!r}, which is no time" if said else "has said no time by this cut"
                yield Lack(name, None, f"its feed {feed!r} {said_so}", is_head)
            elif through_us < wanted_us:
                advice = "wait for it, or ask for less" if is_head else "read the head, or ask for less"
                yield Lack(name, through_us, f"its feed {feed!r} has come no further: {advice}", is_head)


def _behind(view: View, state: TableState, lsn: int, wanted_us: int) -> Iterator[Lack]:
    """The commits that a past cut lacks, also commits of a table that was replaced since."""
    while lsn < state.swapped_lsn:
        before = swaps.state_at(view, state, lsn)
        yield from _behind_commits(view, before, lsn, wanted_us)
        lsn = next(each.lsn for each in state.former if lsn < each.lsn)
    yield from _behind_commits(view, state, lsn, wanted_us)


def _behind_commits(view: View, state: TableState, lsn: int, wanted_us: int) -> Iterator[Lack]:
    """The commits to a table until the time that a past cut lacks."""
    marked = min(view.marks.lsn(wanted_us), view.lsn)
    missing = []
    for log in state.logs:
        end = log.at_lsn(max(lsn, state.log_start_lsn)).end
        first = log.lsn_beyond(end)
        if first is not None and first <= max(marked, log.at_time(wanted_us).lsn):
            missing.append(view.marks.time_us(first, log.at_lsn(first).time_us))
    if missing:
        yield Lack(state.table.name, min(missing) - 1, "the cut lacks later commits: read a later one", False)
