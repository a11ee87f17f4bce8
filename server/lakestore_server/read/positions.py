"""Positions in a server's history: tokens as text, and waiting for one that lies ahead."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from lakestore.errors import Invalid, PositionExpired, Unavailable
from lakestore.model import times
from lakestore.model.token import Place, Token, position_of
from lakestore_server.commit.engine import Engine
from lakestore_server.state.view import TableState, View

AT_WAIT_SECONDS = 30.0
TOKEN_CHARS_KEPT = 256
"""Characters up to which a parsed token is kept: clients name the same token in every read until they write again."""


_parsed = lru_cache(maxsize=256)(position_of)


def parse_token(text: str, engine: Engine) -> Token:
    """A token of this server's history."""
    token = _parsed(text) if len(text) <= TOKEN_CHARS_KEPT else position_of(text)
    engine.check_timeline(token.timeline, "the position")
    return token


def check_once(tables: Sequence[str]) -> None:
    """`Invalid` for a request that names a table twice."""
    if len(set(tables)) != len(tables):
        raise Invalid("the request names a table twice: name each of them once")


def check_place(view: View, place: Place) -> None:
    """`Invalid` for a place in a snapshot that its table does not have."""
    logs = view.by_uuid(place.table).logs
    if place.bucket >= len(logs):
        raise Invalid(f"the position names bucket {place.bucket} of a table that has {len(logs)}")
    if place.offset > logs[place.bucket].head:
        raise Invalid("the position lies ahead of the server's history")


def reached(engine: Engine, lsn: int) -> View:
    """A view at or beyond `lsn`, waited for if it lies ahead."""
    view = engine.view
    if view.lsn < lsn:
        view = engine.wait_beyond(lsn - 1, AT_WAIT_SECONDS)
    if view.lsn < lsn:
        raise Unavailable("the server has not reached this position yet: try again")
    return view


def lsn_at(engine: Engine, text: str, names: Sequence[str], *, is_end: bool = False) -> int:
    """The LSN of the cut that a token or a time names; a time means the last commit to these tables until then.

    `is_end` is for the end of changes, of which a table had none before it was created: a cut of it would be no table.
    """
    time_us = times.micros_of(text)
    if time_us is None:
        return parse_token(text, engine).lsn
    if time_us >= engine.now_us():
        raise Invalid(f"the time {text} lies ahead of the server's clock: a read goes back, never forward")
    view = engine.settled() if engine.view.clock_us <= time_us else engine.view
    states = [view.named(name) for name in names]
    created = [_created(each, time_us, len(states)) for each in states if each.created_us <= time_us or not is_end]
    return max([lsn_by_time(view, states, time_us), *created])


def lsn_by_time(view: View, states: Sequence[TableState], time_us: int, *, before: bool = False) -> int:
    """The LSN of the last commit to these tables at a time or before; 0 when there is none.

    Commits whose stamps are ahead of their time are found by the marks beside them, to the minute.

    With `before` a commit of that very time does not count, as a stream that starts there is to send it.
    `PositionExpired` if the log no longer reaches back to the time.
    """
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
    return max([marks.lsn(last), *(log.at_time(last).lsn for state in states for log in state.logs)])


def _created(state: TableState, time_us: int, tables: int) -> int:
    """The LSN at which a table was created; `Invalid` if that was after the time. Older releases noted no time."""
    if state.created_us > time_us:
        raise Invalid(f"table {state.table.name} did not exist at {times.text_of(time_us)}: choose a later time")
    return state.created_lsn if state.created_us or tables == 1 else 0
