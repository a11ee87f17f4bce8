"""The live offsets of keys and of ranges of keys, at one moment: a view and the index's answer that belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from lakestore.errors import Unavailable
from lakestore_server.commit.engine import Engine
from lakestore_server.index.collisions import KeyQuery, Probe
from lakestore_server.index.entry import live, table_prefix
from lakestore_server.index.overlay import Range
from lakestore_server.state.view import TableState, View

RETRIES = 20


class Bounded(Protocol):
    """A question for ranges of keys."""

    @property
    def bounds(self) -> Sequence[tuple[bytes, bytes]]:
        """The ranges as [low, high) of encoded keys."""


Question = TypeVar("Question", bound=Bounded)


@dataclass(frozen=True, slots=True)
class LiveRanges(Generic[Question]):
    """The first live keys of some ranges, at one moment."""

    view: View
    """The state that the ranges belong to."""
    question: Question
    """The question as it was put to this very view's table."""
    ranges: list[Range]


def of_keys(
    engine: Engine, name: str, encode: Callable[[TableState], KeyQuery], *, uuid: str = ""
) -> tuple[View, npt.NDArray[np.int64]]:
    """(view, live offset of each key) at one moment; `Unavailable` if the table changes under every attempt.

    With a uuid it is that table, whatever its name is by now; `NotFound` if it was dropped.
    """

    def held(view: View) -> TableState:
        return view.by_uuid(uuid) if uuid else view.named(name)

    index, moved_on = engine.index, _moved_on(name)
    probe: Probe | None = None
    for _ in range(RETRIES):
        state = held(engine.view)
        probe = probe or Probe(encode(state))
        with index.lock:
            view = engine.view
            reading = index.begin(probe.keys)
        if _is_another(held(view), state):
            probe = None
            continue
        try:
            found = probe.resolved(held(view), index.finish(reading))
        except Unavailable as error:
            moved_on = error
            continue
        if found is not None:
            return view, live(found.values)
        probe = probe.deeper()
    raise moved_on


def of_ranges(engine: Engine, name: str, ask: Callable[[TableState], Question], most: int) -> LiveRanges[Question]:
    """The first live keys of each range, `most` altogether; `Unavailable` as `of_keys`."""
    index, moved_on = engine.index, _moved_on(name)
    for _ in range(RETRIES):
        state = engine.view.named(name)
        question = ask(state)
        index.arrange(table_prefix(state.table.number))
        try:
            with index.lock:
                view = engine.view
                reading = index.begin_ranges(question.bounds, most)
            if not _is_another(view.named(name), state):
                return LiveRanges(view, question, index.finish_ranges(reading))
        except Unavailable as error:
            moved_on = error
    raise moved_on


def _moved_on(name: str) -> Unavailable:
    return Unavailable(f"table {name} keeps changing under the look-up: look up again")


def _is_another(now: TableState, asked: TableState) -> bool:
    """Whether keys that were encoded for a table mean nothing now: it was made anew, or truncated."""
    return (now.table.uuid, now.table.number) != (asked.table.uuid, asked.table.number)
