"""The schedule of a run: which nemesis breaks the system at which time, drawn from one seed."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

SystemT = TypeVar("SystemT", contravariant=True)
QUIET_SHARE = 0.25
"""The share of spans of time that are without a fault."""
SPAN_SECONDS = 3.0, 9.0
LEFT_OUT = "left out: "
"""The beginning of what `begin` returns when it broke nothing."""
TOGETHER_MAX = 3
"""Faults that may overlap."""


class Nemesis(Protocol[SystemT]):
    """One kind of fault. What `begin` and `end` return is recorded."""

    name: str
    needs: frozenset[str]
    """The parts of the system that it breaks, beside the server."""

    def begin(self, system: SystemT, chance: random.Random) -> Any:
        """Break something."""

    def end(self, system: SystemT) -> Any:
        """Mend what `begin` broke; also when it has been mended already."""


@runtime_checkable
class Excusing(Protocol):
    """A nemesis that excuses some errors: until everything heals, they do not count as defects."""

    excuses: frozenset[str]
    """Beginnings of such errors, as `Corrupt:`."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault to come: seconds since the run began, and the seed of its choices."""

    begins: float
    ends: float
    nemesis: str
    seed: int


def is_left_out(value: Any) -> bool:
    """Whether `begin` broke nothing, by what it returned."""
    return isinstance(value, str) and value.startswith(LEFT_OUT)


def plan(seed: int | str, seconds: float, names: Iterable[str]) -> list[Planned]:
    """The faults of a run: one span of time after the other, each with none, one or several kinds."""
    chance, kinds = random.Random(f"{seed} faults"), sorted(names)
    planned: list[Planned] = []
    now = min(1.0, seconds / 4)
    while kinds and now < seconds:
        until = min(now + chance.uniform(*SPAN_SECONDS), seconds)
        count = 0 if chance.random() < QUIET_SHARE else chance.randint(1, min(TOGETHER_MAX, len(kinds)))
        for name in chance.sample(kinds, count):
            begins = chance.uniform(now, now + (until - now) / 2)
            ends = chance.uniform(begins, until)
            planned.append(Planned(round(begins, 3), round(ends, 3), name, chance.getrandbits(32)))
        now = until
    return sorted(planned, key=lambda each: each.begins)


def lasting(planned: Sequence[Planned], names: Collection[str], seconds: float) -> list[Planned]:
    """The faults, some of them longer. Every second fault of a named kind lasts at least `seconds`. It ends earlier if
    the next fault of its kind begins."""
    made: list[Planned] = []
    for at, each in enumerate(planned):
        ends = each.ends
        if each.nemesis in names and each.seed % 2:
            following = (other.begins for other in planned[at + 1 :] if other.nemesis == each.nemesis)
            ends = max(ends, min(each.begins + seconds, next(following, math.inf)))
        made.append(replace(each, ends=round(ends, 3)))
    return made


def moments(planned: Sequence[Planned]) -> list[tuple[float, bool, Planned]]:
    """Beginnings (true) and ends (false) of faults in the order of their times."""
    both = [(each.begins, True, each) for each in planned] + [(each.ends, False, each) for each in planned]
    return sorted(both, key=lambda each: (each[0], each[1]))


def chosen(known: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The nemeses with these names. Raises `KeyError` for an unknown name."""
    return {name: known[name] for name in names}
