"""Linearizability by a real search, in the manner of Wing and Gong with Lowe's memory of configurations.

A history of one key is linearizable if its calls can be put into one order that keeps the real-time order of calls that
did not overlap, in which a model takes every answer. The search goes through such orders depth first. A configuration,
which is the calls that are placed and the model's state, is never entered twice. Calls of unknown outcome may take
effect at any time after their invocation, or never: they are tried last, and a configuration that has spent more of
them than one that failed before has failed, too. A read that the state of the moment agrees with is placed at once, as
nothing can come of its waiting. The budget is a number of configurations, not of seconds, so a verdict replays.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from jepsen.operation import NEVER

BUDGET: Final = 100_000
"""Configurations that the search of one key may enter."""


class Impossible:
    """A model's answer to a call that cannot have gone so in that state."""


IMPOSSIBLE: Final = Impossible()
State = Hashable
Model = Callable[[Any, Any, Any], State | Impossible]
"""The state after (state, what was asked, what was answered); the answer is None where the outcome is unknown."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call on one key. Places are those of the history's lines, which respect real time."""

    begins: int
    ends: float
    """The place of the completion; `NEVER` if the outcome is unknown."""
    asked: Hashable
    answer: Hashable = None
    process: int | str = 0
    reads: bool = False
    """Whether it never changes a state."""
    after: int = -1
    """The operation, by `operation`, behind whose effect this one lies; -1 for none."""
    operation: int = -1
    """The index of the invocation in the history."""
    seconds: tuple[float, float] = (0.0, NEVER)
    """The times of invocation and completion."""

    @property
    def known(self) -> bool:
        """Whether it has happened for certain, with this answer."""
        return self.ends != NEVER

    def __str__(self) -> str:
        asked = " ".join(str(each) for each in self.asked) if isinstance(self.asked, tuple) else str(self.asked)
        told = f" -> {self.answer}" if self.known else " -> ?"
        until = f"{self.seconds[1]:.4f}" if self.seconds[1] != NEVER else "…"
        return f"{asked}{told} (process {self.process}, {self.seconds[0]:.4f}-{until} s)"


class Answer(StrEnum):
    """Verdicts on one key."""

    POSSIBLE = "possible"
    IMPOSSIBLE = "impossible"
    UNKNOWN = "unknown"
    """The budget is used up."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: its verdict and the longest order that it has found."""

    answer: Answer
    order: tuple[Step, ...]
    state: State
    """The state behind the order."""
    stuck: tuple[Step, ...] = ()
    """The calls of which one must follow the order, and none can."""
    entered: int = 0
    """Configurations."""


def search(model: Model, initial: State, steps: Sequence[Step], budget: int = BUDGET) -> Found:
    """The verdict on the calls of one key."""
    return _Search(model, initial, steps, budget).run()


@dataclass(slots=True)
class _Configuration:
    """A node of the search. Bits of `placed` count from `first`, the first known call that is not placed."""

    first: int
    placed: int
    spent: int
    """The unknown calls that are placed, as bits."""
    state: State
    depth: int
    """The length of the order so far."""
    known: int
    """The number of placed calls that are known."""
    untried: Iterator[tuple[Step, int, bool]] = field(default_factory=lambda: iter(()))


class _Search:
    def __init__(self, model: Model, initial: State, steps: Sequence[Step], budget: int) -> None:
        self._model, self._initial, self._budget = model, initial, budget
        self._known = sorted((each for each in steps if each.known), key=lambda each: each.begins)
        self._maybe = sorted(
            (each for each in steps if not each.known and not each.reads), key=lambda each: each.begins
        )
        self._numbers = {each.operation: number for number, each in enumerate(self._known)}
        self._maybe_numbers = {each.operation: number for number, each in enumerate(self._maybe)}
        self._bound = {each.after for each in steps}
        self._failed: dict[tuple[int, int, State], list[int]] = {}
        self._order: list[Step] = []
        self._best: tuple[int, tuple[Step, ...], State, tuple[Step, ...]] = (-1, (), initial, ())
        self._entered = 0

    def run(self) -> Found:
        """Search."""
        stack = list[_Configuration]()
        entered = self._enter(_Configuration(0, 0, 0, self._initial, 0, 0))
        while entered is not None or stack:
            if entered is not None:
                if entered.known == len(self._known):
                    return Found(Answer.POSSIBLE, tuple(self._order), entered.state, (), self._entered)
                if self._entered >= self._budget:
                    return self._told(Answer.UNKNOWN)
                stack.append(entered)
            top = stack[-1]
            del self._order[top.depth :]
            tried = next(top.untried, None)
            if tried is None:
                stack.pop()
                entered = None
                continue
            entered = self._followed(top, *tried)
        return self._told(Answer.IMPOSSIBLE)

    def _told(self, answer: Answer) -> Found:
        _, order, state, stuck = self._best
        return Found(answer, order, state, stuck, self._entered)

    def _followed(self, top: _Configuration, step: Step, number: int, known: bool) -> _Configuration | None:
        """The configuration behind another call, unless that is impossible or was entered before."""
        state = self._model(top.state, step.asked, step.answer)
        if isinstance(state, Impossible):
            return None
        self._order.append(step)
        made = _Configuration(top.first, top.placed, top.spent, state, top.depth + 1, top.known)
        if known:
            self._place(made, number)
        elif state == top.state and step.operation not in self._bound:
            return None
        else:
            made.spent |= 1 << number
        return self._enter(made)

    def _place(self, made: _Configuration, number: int) -> None:
        made.placed |= 1 << (number - made.first)
        made.known += 1
        while made.placed & 1:
            made.placed >>= 1
            made.first += 1

    def _enter(self, made: _Configuration) -> _Configuration | None:
        """Place the reads that agree, look whether the rest was tried before, and list what may follow."""
        candidates, limit = self._candidates(made)
        while any([self._agrees(made, number) for number in candidates]):
            candidates, limit = self._candidates(made)
        failed = self._failed.setdefault((made.first, made.placed, made.state), [])
        if any(before & made.spent == before for before in failed):
            return None
        failed.append(made.spent)
        self._entered += 1
        following = [(self._known[number], number, True) for number in candidates]
        following.sort(key=lambda each: each[0].ends)
        if made.known > self._best[0]:
            self._best = (made.known, tuple(self._order), made.state, tuple(each[0] for each in following))
        following += [(self._maybe[number], number, False) for number in self._possible(made, limit)]
        made.untried = iter(following)
        return made

    def _agrees(self, made: _Configuration, number: int) -> bool:
        """Place a read if the state agrees with it; whether it was."""
        step = self._known[number]
        if not step.reads or isinstance(self._model(made.state, step.asked, step.answer), Impossible):
            return False
        self._place(made, number)
        self._order.append(step)
        made.depth += 1
        return True

    def _candidates(self, made: _Configuration) -> tuple[list[int], float]:
        """The known calls of which each may be next, and the place before which every next call has begun."""
        limit, found = NEVER, list[int]()
        for number in range(made.first, len(self._known)):
            if made.placed >> (number - made.first) & 1:
                continue
            step = self._known[number]
            if step.begins > limit:
                break
            limit = min(limit, step.ends)
            if step.after < 0 or self._is_placed(made, step.after):
                found.append(number)
        return [number for number in found if self._known[number].begins < limit], limit

    def _is_placed(self, made: _Configuration, operation: int) -> bool:
        if operation in self._maybe_numbers:
            return bool(made.spent >> self._maybe_numbers[operation] & 1)
        number = self._numbers.get(operation, -1)
        return number < made.first or bool(made.placed >> (number - made.first) & 1)

    def _possible(self, made: _Configuration, limit: float) -> Iterator[int]:
        """The unknown calls that may be next; of several that would do the same the first, as it waits longest."""
        seen = set[Hashable]()
        for number, step in enumerate(self._maybe):
            if step.begins >= limit:
                return
            if made.spent >> number & 1 or step.asked in seen:
                continue
            seen.add(step.asked)
            yield number
