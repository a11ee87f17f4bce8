"""Counterexamples of linearizability: as few calls as show it, the longest order of them, and bars for a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jepsen.anomaly import Anomaly
from jepsen.checkers.linear import BUDGET, Answer, Found, Model, State, Step, search
from jepsen.operation import NEVER

SHRINK_SEARCHES = 400
"""Searches that making a counterexample small may take."""
SHRINK_BUDGET = 20_000
SHOWN_MAX = 8
"""Calls of the order that a sentence shows."""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Calls of one key that no order explains."""

    key: Any
    steps: tuple[Step, ...]
    """The calls that contradict one another, and those of the order before."""
    found: Found

    @property
    def sentence(self) -> str:
        """The contradiction in one sentence."""
        order = self.found.order[-SHOWN_MAX:]
        before = "; ".join(str(each) for each in order) or "nothing"
        left = "…; " if len(order) < len(self.found.order) else ""
        stuck = "; ".join(str(each) for each in self.found.stuck)
        return f"key {self.key}: after {left}{before} the state is {self.found.state}, and none can follow of: {stuck}"

    @property
    def anomaly(self) -> Anomaly:
        """The anomaly of the key."""
        return Anomaly("nonlinearizable", self.sentence, tuple(sorted({each.operation for each in self.steps})))

    @property
    def picture(self) -> dict[str, Any]:
        """The calls as bars, as JSON: `place` in the longest order, from 0, None for a call outside of it; `stuck` for
        one that cannot follow; an `ends` of None is an unknown outcome."""
        places = {each.operation: place for place, each in enumerate(self.found.order)}
        stuck = {each.operation for each in self.found.stuck}
        bars = [
            {
                "process": each.process,
                "label": str(each).split(" (process")[0],
                "begins": each.seconds[0],
                "ends": None if each.seconds[1] == NEVER else each.seconds[1],
                "place": places.get(each.operation),
                "stuck": each.operation in stuck,
            }
            for each in sorted(self.steps, key=lambda step: step.begins)
        ]
        return {"key": self.key, "state": str(self.found.state), "bars": bars}


@dataclass(frozen=True, slots=True)
class Keys:
    """The verdict on many keys."""

    counterexamples: tuple[Counterexample, ...]
    undecided: tuple[Any, ...]
    """Keys whose budget was used up."""
    keys: int
    steps: int


def check_keys(model: Model, initial: State, keys: Mapping[Any, Sequence[Step]], budget: int = BUDGET) -> Keys:
    """Each key's calls, searched by themselves."""
    wrong, undecided = list[Counterexample](), list[Any]()
    for key, steps in keys.items():
        found = search(model, initial, steps, budget)
        if found.answer is Answer.IMPOSSIBLE:
            wrong.append(counterexample(model, initial, key, steps))
        elif found.answer is Answer.UNKNOWN:
            undecided.append(key)
    return Keys(tuple(wrong), tuple(undecided), len(keys), sum(len(each) for each in keys.values()))


def counterexample(model: Model, initial: State, key: Any, steps: Sequence[Step]) -> Counterexample:
    """A small counterexample of calls that are impossible.

    The history ends with the first answer that makes it so, the culprit. Then calls go without which the culprit is
    still impossible and all others are still possible: none goes of which another answer tells.
    """

    def answer(tried: Sequence[Step]) -> Answer:
        return search(model, initial, tried, SHRINK_BUDGET).answer

    kept = _ended(steps, lambda tried: answer(tried) is Answer.IMPOSSIBLE)
    culprit = max((each for each in kept if each.known), key=lambda each: each.ends)

    def shows(tried: Sequence[Step]) -> bool:
        innocent = _until(tried, int(culprit.ends) - 1)
        return answer(tried) is Answer.IMPOSSIBLE and answer(innocent) is Answer.POSSIBLE

    if shows(kept):
        kept = _without(kept, culprit, shows)
    found = search(model, initial, kept)
    used = {each.operation for each in found.order}
    shown = tuple(each for each in kept if each.known or each.operation in used)
    return Counterexample(key, shown, found)


Fails = Callable[[Sequence[Step]], bool]


def _ended(steps: Sequence[Step], fails: Fails) -> list[Step]:
    """The shortest beginning of the history that fails; all of it if the search of a part takes too long."""
    places = sorted(int(each.ends) for each in steps if each.known)
    low, high = 0, len(places) - 1
    while low < high:
        middle = (low + high) // 2
        if fails(_until(steps, places[middle])):
            high = middle
        else:
            low = middle + 1
    cut = _until(steps, places[low])
    return cut if fails(cut) else list(steps)


def _until(steps: Iterable[Step], place: int) -> list[Step]:
    """The history as it was at a place: calls that had not ended are unknown then."""
    begun = (each for each in steps if each.begins <= place)
    return [each if each.ends <= place else _unknown(each) for each in begun if each.ends <= place or not each.reads]


def _unknown(step: Step) -> Step:
    return replace(step, ends=NEVER, answer=None)


def _without(steps: list[Step], culprit: Step, shows: Fails) -> list[Step]:
    """Without the calls that do not matter, in parts of half the size time after time."""
    told = set(_values(culprit.answer))
    bound = {each.after for each in steps} | {culprit.operation}
    needed = {each.operation for each in steps if not each.reads and told & set(_values(each.asked))} | bound
    searches, size = 0, max(len(steps) // 2, 1)
    while searches < SHRINK_SEARCHES:
        at = 0
        while at < len(steps) and searches < SHRINK_SEARCHES:
            part = [each for each in steps[at : at + size] if each.operation in needed]
            tried = [*steps[:at], *part, *steps[at + size :]]
            searches += 1
            if len(tried) < len(steps) and shows(tried):
                steps, at = tried, at + len(part)
            else:
                at += size
        if size == 1:
            break
        size = max(size // 2, 1)
    return steps


def _values(value: object) -> Iterator[object]:
    """The values inside of a value, but for None and what says no more than yes or no."""
    if isinstance(value, tuple):
        for each in value:
            yield from _values(each)
    elif value is not None and not isinstance(value, bool):
        yield value
