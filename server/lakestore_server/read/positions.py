"""Positions in a server's timeline: tokens as text, and waits for positions ahead."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from lakestore.errors import Invalid, PositionExpired, Unavailable
from lakestore.model import times
from lakestore.model.token import Place, Token, position_of
from lakestore_server.commit.engine import Engine
from lakestore_server.state import swaps
from lakestore_server.state.view import TableState, View

AT_WAIT_SECONDS = 30.0
TOKEN_CHARS_KEPT = 256
"""Length up to which a parsed token is cached: clients repeat a token in every read until they write again."""


_parsed = lru_cache(maxsize=256)(position_of)


def parse_token(text: str, engine: Engine) -> Token:
    """A token of this server's timeline."""
    token = _parsed(text) if len(text) <= TOKEN_CHARS_KEPT else position_of(text)
    engine.check_timeline(token.timeline, "the position")
    return token


def check_once(tables: Sequence[str]) -> None:
    """`Invalid` for a request that names a table twice."""
    if len(set(tables)) != len(tables):
        raise Invalid("the request names a table twice: name each of them once")


def check_place(view: View, place: Place, lsn: int) -> None:
    """`Invalid` for a place in a snapshot at an LSN that its table does not have."""
    logs = swaps.state_at(view, view.present(place.table), lsn).logs
    if place.bucket >= len(logs):
        raise Invalid(f"the position names bucket {place.bucket} of a table that has {len(logs)}")
    if place.offset > logs[place.bucket].head:
        raise Invalid("the position lies ahead of the server's history")


def reached(engine: Engine, lsn: int) -> View:
    """A view at or above `lsn`, after a wait if it lies ahead."""
    view = engine.view
    if view.lsn < lsn:
        view = engine.wait_beyond(lsn - 1, AT_WAIT_SECONDS)
    if view.lsn < lsn:
        raise Unavailable("the server has not reached this position yet: try again")
    return view


def lsn_at(engine: Engine, text: str, names: Sequence[str], *, is_end: bool = False) -> int:
    """The LSN of the cut that a token or a time names; a time means the last commit to these tables until then.
    `is_end` is for the end of changes: before its creation a table had none, while a cut would have no table."""
    time_us = times.micros_of(text)
    if time_us is None:
        return parse_token(text, engine).lsn
    if time_us >= engine.now_us():
        raise Invalid(f"the time {text} lies ahead of the server's clock: a read goes back, never forward")
    view = engine.settled() if engine.view.clock_us <= time_us else engine.view
    states = [view.named(name) for name in names]
    if time_us < view.time_us:
        states = [swaps.state_at_time(view, state, time_us) for state in states]
    created = [_created(each, time_us, len(states)) for each in states if each.created_us <= time_us or not is_end]
    return max([lsn_by_time(view, states, time_us), *created])


def lsn_by_time(view: View, states: Sequence[TableState], time_us: int, *, before: bool = False) -> int:
    """The LSN of the last commit to these tables at a time or earlier; 0 if there is none. Commits with stamps ahead
    are dated by the clock marks, to the minute. With `before` a commit of exactly this time does not count, because a
    stream that starts there sends it. `PositionExpired` if the log starts after the time."""
    last, marks = time_us - before, view.marks
    for state in states:
        begins = max(marks.time_us(log.base.lsn, log.base.time_us) for log in state.logs)
        if state.log_start_lsn and last < begins:
            error = PositionExpired(
                f"the log of table {state.table.name} starts at {times.text_of(begins)} (LSN {state.log_start_lsn}), "
                f"and {times.text_of(time_us)} was asked for: choose a later time"
                + (
                    ", or start at 'snapshot' or 'earliest'"
                    if before
                    else "; a longer retention keeps more from now on"
                )
            )
            error.earliest = view.token(max(each.log_start_lsn for each in states))
            raise error
    swapped = [state.swapped_lsn for state in states if state.former and state.former[-1].time_us <= last]
    return max([marks.lsn(last), *swapped, *(log.at_time(last).lsn for state in states for log in state.logs)])


def _created(state: TableState, time_us: int, tables: int) -> int:
    """The LSN of a table's creation; `Invalid` if it is after the time. Older releases stored no time."""
    if state.created_us > time_us:
        raise Invalid(f"table {state.table.name} did not exist at {times.text_of(time_us)}: choose a later time")
    return state.created_lsn if state.created_us or tables == 1 else 0
