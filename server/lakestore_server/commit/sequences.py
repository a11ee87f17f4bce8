"""Sequences: whether a request is its producer's next commit, one that was answered before, or neither.

An epoch counts only if this history gave it out. A producer that is not known is a new one only if its request proves
that: the first sequence of a name that was drawn since the last of its owner's was forgotten. Else the request may be
the retry of a commit that happened, and is `ProducerForgotten`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from lakestore.errors import Applied, Exhausted, Fenced, Invalid, LimitReached, ProducerForgotten
from lakestore_server.commit.request import Request
from lakestore_server.state.commit_record import Answer
from lakestore_server.state.producers import RESTED_US, Producers, ProducerState

RETRY_SECONDS: Final = RESTED_US / 1e6 / 10
"""When a principal at its limit is to come again."""


class Sequences:
    """The requests of one group, one after the other, before any of them is applied."""

    def __init__(self, producers: Producers, time_us: int, refused: Collection[str] = ()) -> None:
        """`refused` are producers of which an earlier request of the group was refused."""
        self._producers, self._time_us, self._refused = producers, time_us, refused
        self._last: dict[str, int] = {}
        """The newest admitted sequence of each producer."""
        self._new: Counter[tuple[str, bool]] = Counter()
        """Owner, and whether named, to the number of producers that begin in this group."""
        self._progress: Counter[str] = Counter()
        """Owner to the bytes of progress that the group adds at most."""

    def answer(self, request: Request) -> Answer | None:
        """The answer that a request got before; None for a next commit, which is to be `admitted`; or its refusal."""
        if not request.producer:
            return None
        known = self._producers.known(request.producer)
        if known is None:
            if request.producer in self._last or (request.producer in self._refused and request.sequence > 1):
                self._check_next(request, 0)
            else:
                self._check_new(request)
            self._check_progress(request, request.owner, "")
            return None
        _check_epoch(request, known)
        if request.sequence > known.last_sequence:
            self._check_next(request, known.last_sequence)
            self._check_progress(request, known.owner, known.progress)
            return None
        answer = known.answers.get(request.sequence)
        if answer is None:
            raise Invalid(
                f"sequence {request.sequence} of producer {request.producer!r} is too old to answer", applied="unknown"
            )
        return answer

    def admitted(self, request: Request) -> None:
        """Note a request that goes into the group."""
        if not request.producer:
            return
        if request.producer not in self._last and self._producers.known(request.producer) is None:
            self._new[request.owner, request.is_named] += 1
        self._last[request.producer] = request.sequence
        if request.progress:
            known = self._producers.known(request.producer)
            self._progress[known.owner if known else request.owner] += len(request.progress.encode())

    def _check_next(self, request: Request, done: int) -> None:
        last = self._last.get(request.producer, done)
        if request.sequence != last + 1:
            raise Invalid(
                f"sequence {request.sequence} of producer {request.producer!r} does not follow {last}",
                applied=_applied(request),
            )

    def _check_progress(self, request: Request, owner: str, before: str) -> None:
        more = len(request.progress.encode()) - len(before.encode()) if request.progress else 0
        most = self._producers.limits.progress_total_bytes
        if more > 0 and self._producers.progress_of(owner) + self._progress[owner] + more > most:
            raise LimitReached(
                f"{_whose(owner)} producers whose progress takes {most:,} bytes in all, the limit: keep it elsewhere,"
                " or drop producers that are no longer used (`lakestore producers --drop NAME`)"
            )

    def _check_new(self, request: Request) -> None:
        if request.epoch:
            raise ProducerForgotten(
                f"the server does not know producer {request.producer!r}, which was dropped: open it anew"
            )
        horizon = self._producers.horizon(request.owner)
        if request.sequence != 1 or (request.born is not None and request.born < horizon):
            raise ProducerForgotten(
                "the server no longer knows this client's producer, which has rested too long: write anew",
                applied=_applied(request),
            )
        more = self._new[request.owner, request.is_named] + 1
        if request.is_named:
            check_named(self._producers, request.owner, more)
        elif not self._producers.has_room(request.owner, more, self._time_us):
            raise Exhausted(
                f"{_whose(request.owner)} {self._producers.limits.unnamed_producers} producers that have all written in"
                " the last minutes, the limit: let the clients live longer, or wait",
                retry_after=RETRY_SECONDS,
            )


def check_named(producers: Producers, owner: str, more: int = 1) -> None:
    """`LimitReached` if an owner may not have so many more named producers."""
    if producers.named_of(owner) + more > producers.limits.producers:
        raise LimitReached(
            f"{_whose(owner)} {producers.limits.producers} named producers, the limit: drop those that are no longer"
            " used (`lakestore producers --drop NAME`)"
        )


def _check_epoch(request: Request, known: ProducerState) -> None:
    if request.epoch < known.epoch:
        raise Fenced(f"producer {request.producer!r} was opened again with epoch {known.epoch}")
    if request.epoch > known.epoch:
        raise Fenced(
            f"epoch {request.epoch} of producer {request.producer!r} was not given out in this history of the server:"
            " open the producer anew",
            applied=_applied(request),
        )


def _applied(request: Request) -> Applied:
    """The outcome of a request without its producer's memory; who names the timeline knows what it has sent before.

    Clients up to protocol 4 give a producer up, and so go on with another one, only if the outcome is unknown.
    """
    return "no" if request.timeline else "unknown"


def _whose(owner: str) -> str:
    return f"{owner} has" if owner else "this process has"
