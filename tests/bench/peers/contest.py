"""A contest: several systems do the same work in turns within one run.

- Round 1 goes through the contestants in their order, round 2 backwards, and so on: a change of the machine's pace hits
  all of them.
- The first contestant is Lakestore. A ratio says how many times better Lakestore's median is than another's.
- A workload whose systems are not warm after `prepare` begins with rounds that do not count.
- A contestant that cannot be had is listed as missing, with what was tried. One that fails has no figures, and the
  failure is listed.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lakestore.errors import Unavailable

ROUNDS = 3
MORE, LESS = "more", "less"
"""Values of `Measure.better`: a rate is better if it is higher, a time if it is lower."""


class Missing(RuntimeError):
    """A contestant cannot be had; the text says what was tried."""


class Failed(RuntimeError):
    """A contestant began and could not do the work; the text says how it ended."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that differs from what the system is shipped with."""

    name: str
    value: str
    source: str
    """The document that recommends this value, or the trial that chose it. The page prints it."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A released system, and how it is started for a workload."""

    name: str
    version: str
    start: Callable[[Path], AbstractContextManager[Any]]
    """Starts the system with its data in a folder. Raises `Missing` or `Unavailable` if it cannot be had."""
    fairness: str
    """Whether a write is on the disk or only in the page cache when the system acknowledges it. The page prints it."""
    settings: Sequence[Setting] = ()


@dataclass(frozen=True, slots=True)
class Measure:
    """One row of a workload's table."""

    name: str
    unit: str
    better: str = MORE
    digits: int = 0
    cause: str = ""
    """Why Lakestore is behind, shown if it is."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Work that every contestant does in its turn."""

    title: str
    what: str
    """One paragraph for the page: what is sent, how much, and when it counts as done."""
    measures: Sequence[Measure]
    contestants: Sequence[Contestant]
    prepare: Callable[[Any, float], Any]
    """(system, scale) -> stage. Makes tables, fills them and warms the system up; none of this counts."""
    turn: Callable[[Any, int], Mapping[str, float]]
    """(stage, number of the round) -> value of each measure that the system has. Raises `Failed` if rows lack."""
    warm_rounds: int = 0
    """Rounds before those that count, because a JVM compiles its hot code during the first minute of work."""


@dataclass(slots=True)
class _Player:
    contestant: Contestant
    stage: Any = None
    missing: str = ""
    failure: str = ""
    turns: list[Mapping[str, float]] = field(default_factory=list)

    @property
    def plays(self) -> bool:
        return not self.missing and not self.failure

    def description(self) -> dict[str, Any]:
        contestant = self.contestant
        return {
            "name": contestant.name,
            "version": contestant.version,
            "fairness": contestant.fairness,
            "settings": [asdict(setting) for setting in contestant.settings],
            "missing": self.missing,
            "failure": self.failure,
        }


def outcome(workload: Workload, folder: Path, *, rounds: int = ROUNDS, scale: float = 1.0) -> dict[str, Any]:
    """Run a workload and return the contest as a table's file has it. `scale` shortens the work of a trial run."""
    players = [_Player(contestant) for contestant in workload.contestants]
    order = []
    with ExitStack() as stack:
        for number, player in enumerate(players):
            _enter(player, workload, stack, folder / str(number), scale)
        for number in range(workload.warm_rounds + rounds):
            is_backwards = (number - workload.warm_rounds) % 2
            turns = [player for player in (reversed(players) if is_backwards else players) if player.plays]
            for player in turns:
                _play(player, workload, number)
            if number >= workload.warm_rounds:
                order.append([player.contestant.name for player in turns])
    ours = players[0]
    if not ours.plays:
        raise AssertionError(f"{ours.contestant.name}: {ours.missing or ours.failure}")
    return {
        "what": workload.what,
        "warm_rounds": workload.warm_rounds,
        "order": order,
        "contestants": [player.description() for player in players],
        "rows": [_row(measure, players) for measure in workload.measures],
    }


def _enter(player: _Player, workload: Workload, stack: ExitStack, folder: Path, scale: float) -> None:
    try:
        system = stack.enter_context(player.contestant.start(folder))
    except (Missing, Unavailable) as error:
        player.missing = str(error)
        return
    try:
        player.stage = workload.prepare(system, scale)
    except Failed as error:
        player.failure = f"before round 1: {error}"
    _note(f"{player.contestant.name} is ready{player.failure}")


def _play(player: _Player, workload: Workload, number: int) -> None:
    os.sync()  # a sync of this system does not wait for what another one has left in the page cache
    began, counted = time.monotonic(), number - workload.warm_rounds
    name = f"round {counted + 1}" if counted >= 0 else "a round to warm up"
    try:
        values = dict(workload.turn(player.stage, number))
    except Failed as error:
        player.failure = f"in {name}: {error}"
        _note(f"{name}, {player.contestant.name}: {player.failure}")
        return
    if counted >= 0:
        player.turns.append(values)
    shown = ", ".join(f"{key} {value:,.4g}" for key, value in values.items())
    _note(f"{name}, {player.contestant.name}: {shown} ({time.monotonic() - began:.0f} s)")


def _row(measure: Measure, players: Sequence[_Player]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for player in players:
        rounds = [turn[measure.name] for turn in player.turns if measure.name in turn]
        if rounds and player.plays:
            values[player.contestant.name] = summary(rounds)
    ours = values.get(players[0].contestant.name)
    for value in values.values():
        if ours is None or value is ours:
            value["ratio"] = None
        else:
            value["ratio"] = advantage(measure.better, ours["median"], value["median"])
    return {**asdict(measure), "values": values}


def summary(rounds: Sequence[float]) -> dict[str, Any]:
    """Median and spread: the distance of the least from the greatest, as a part of the median."""
    median = statistics.median(rounds)
    return {"rounds": list(rounds), "median": median, "spread": (max(rounds) - min(rounds)) / median if median else 0.0}


def paced(rate: int, count: int) -> Iterator[int]:
    """Yield 0 to `count` - 1 at `rate` numbers a second. A late number does not delay the next one."""
    began = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        yield number


def percentiles(took: Sequence[float]) -> tuple[float, float]:
    """Median and 99th percentile."""
    half, tail = np.percentile(took, [50, 99])
    return float(half), float(tail)


def advantage(better: str, ours: float, theirs: float) -> float | None:
    """How many times better ours is; None if that is no number."""
    large, small = (ours, theirs) if better == MORE else (theirs, ours)
    return large / small if small else None


def _note(text: str) -> None:
    sys.stderr.write(f"  {time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()
