"""Known producers: named ones until they are dropped, those with random names for a time.

- A named producer stays until a record drops it.
- A producer whose client drew the name at random is remembered for `unnamed_producer_seconds` after its last commit,
  longer than any client retries. An owner at the limit loses the ones that were idle longest, but none that was idle
  for less than `RESTED_US`.

The *horizon* of an owner is the highest LSN of a commit by a forgotten unnamed producer. With a new name a client sends
the newest LSN it knows: an unknown name drawn at or above the horizon has committed nothing. So a retry is never taken
for a new commit, however late it comes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from lakestore.limits import DEFAULT, Limits
from lakestore_server.state.commit_record import Answer, ProducerChange, ProducerCommit, ProducerDrop

RESTED_US = 300_000_000
"""Microseconds for which an unnamed producer must be idle before the limit may remove it: clients retry for a
minute."""
_DRAWN = re.compile(r"(?:.*/)?[0-9a-f]{32}", re.DOTALL)


def is_drawn(name: str, epoch: int) -> bool:
    """Whether the name was drawn at random, for clients before protocol 5, which do not say so."""
    return epoch == 0 and _DRAWN.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer with its newest answers, for retries."""

    epoch: int = 0
    last_sequence: int = 0
    progress: str = ""
    answers: Mapping[int, Answer] = field(default_factory=dict)
    """By sequence."""
    owner: str = ""
    """The principal that first opened it or wrote; empty in an embedded server and in older data."""
    is_named: bool = True
    """Whether a user chose the name; False for a random name."""
    used_us: int = 0
    """Microseconds of its last opening or write."""
    lsn: int = 0
    """The commit of this last use."""

    def after(self, lsn: int, time_us: int, commit: ProducerCommit, answers_kept: int) -> ProducerState:
        """The producer after one of its commits, or after an opening with a new epoch."""
        last, answers = (0, {}) if commit.epoch > self.epoch else (self.last_sequence, self.answers)
        if commit.sequence:
            last, answers = commit.sequence, {**answers, commit.sequence: Answer(lsn, commit.results)}
            answers.pop(commit.sequence - answers_kept, None)
        return ProducerState(
            max(commit.epoch, self.epoch),
            last,
            commit.progress or self.progress,
            answers,
            self.owner or commit.owner,
            commit.is_named or (self.is_named and bool(self.lsn)),
            time_us,
            lsn,
        )


@dataclass(frozen=True, slots=True)
class FrozenProducers:
    """All producers at one LSN, as a value."""

    known: Mapping[str, ProducerState] = field(default_factory=dict)
    """By name; unnamed ones in the order of their last commits."""
    horizons: Mapping[str, int] = field(default_factory=dict)
    """By owner; absent if nothing was forgotten."""

    def dated(self, lsn: int, time_us: int) -> FrozenProducers:
        """The same; producers of older releases get this commit as their last one."""
        return replace(
            self, known={n: p if p.lsn else replace(p, used_us=time_us, lsn=lsn) for n, p in self.known.items()}
        )


class Producers:
    """The producers that the commit loop knows."""

    def __init__(self, limits: Limits = DEFAULT, frozen: FrozenProducers | None = None) -> None:
        self.limits = limits
        self.named: dict[str, ProducerState] = {}
        self._unnamed: dict[str, ProducerState] = {}
        """In the order of their last commits."""
        self._of_owner: dict[str, dict[str, None]] = {}
        """Names of an owner's unnamed producers, in the same order."""
        self._named_of: dict[str, int] = {}
        self._progress_of: Counter[str] = Counter()
        """Owner to the bytes of all progress."""
        self._horizons: dict[str, int] = {}
        self._due_us = 0
        """The time up to which no producer is too old."""
        if frozen is not None:
            self._horizons.update(frozen.horizons)
            for name, state in frozen.known.items():
                self._put(name, state)

    def known(self, name: str) -> ProducerState | None:
        """A producer; None if it is unknown, dropped or forgotten."""
        return self.named.get(name) or self._unnamed.get(name)

    def horizon(self, owner: str) -> int:
        """The highest LSN of a commit by a forgotten unnamed producer of an owner; 0 for none."""
        return self._horizons.get(owner, 0)

    def named_of(self, owner: str) -> int:
        return self._named_of.get(owner, 0)

    def progress_of(self, owner: str) -> int:
        """The bytes of progress of all of an owner's producers."""
        return self._progress_of[owner]

    def has_room(self, owner: str, more: int, time_us: int) -> bool:
        """Whether an owner may have `more` unnamed producers; idle ones are removed for them."""
        names = self._of_owner.get(owner, {})
        over = len(names) + more - self.limits.unnamed_producers
        if over > len(names):
            return False
        return all(self._unnamed[name].used_us <= time_us - RESTED_US for name in islice(names, max(over, 0)))

    def apply(self, lsn: int, time_us: int, change: ProducerChange) -> None:
        if isinstance(change, ProducerDrop):
            self._take(change.producer)
            return
        name, kept = change.producer, self.limits.producer_answers
        named = self.named.get(name)
        if named is not None and not change.progress and (named.owner or not change.owner):  # nothing to count again
            self.named[name] = named.after(lsn, time_us, change, kept)
            return
        state = (self._take(name) or ProducerState()).after(lsn, time_us, change, kept)
        self._put(name, state)
        if not state.is_named:
            names = self._of_owner[state.owner]
            while len(names) > self.limits.unnamed_producers:
                self._forget(next(iter(names)))

    def grow_old(self, time_us: int) -> None:
        """Remove the unnamed producers that were idle too long at this time."""
        if time_us <= self._due_us:  # called at every commit
            return
        kept_us = self.limits.unnamed_producer_seconds * 1_000_000
        while self._unnamed and self._oldest().used_us < time_us - kept_us:
            self._forget(next(iter(self._unnamed)))
        self._due_us = (self._oldest().used_us if self._unnamed else time_us) + kept_us

    def frozen(self) -> FrozenProducers:
        return FrozenProducers({**self.named, **self._unnamed}, dict(self._horizons))

    def idle(self, oldest_us: int) -> Iterator[str]:
        """The names of named producers last used before a time."""
        return (name for name, state in self.named.items() if state.used_us < oldest_us)

    def _oldest(self) -> ProducerState:
        return next(iter(self._unnamed.values()))

    def _forget(self, name: str) -> None:
        state = self._take(name)
        if state is not None:
            self._horizons[state.owner] = max(self.horizon(state.owner), state.lsn)

    def _put(self, name: str, state: ProducerState) -> None:
        self._progress_of[state.owner] += len(state.progress.encode())
        if state.is_named:
            self.named[name] = state
            self._named_of[state.owner] = self.named_of(state.owner) + 1
        else:
            self._unnamed[name] = state
            self._of_owner.setdefault(state.owner, {})[name] = None

    def _take(self, name: str) -> ProducerState | None:
        state = self._popped(name)
        if state is not None:
            self._progress_of[state.owner] -= len(state.progress.encode())
            if not self._progress_of[state.owner]:
                del self._progress_of[state.owner]
        return state

    def _popped(self, name: str) -> ProducerState | None:
        state = self._unnamed.pop(name, None)
        if state is not None:
            names = self._of_owner[state.owner]
            del names[name]
            if not names:
                del self._of_owner[state.owner]
            return state
        state = self.named.pop(name, None)
        if state is not None:
            self._named_of[state.owner] -= 1
            if not self._named_of[state.owner]:
                del self._named_of[state.owner]
        return state
