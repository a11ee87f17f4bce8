"""Sequences: whether a request is its producer's next commit, one that was answered before, or neither.

An epoch counts only if this history gave it out. A producer that is not known is a new one only if its request proves
that: the first sequence of a name that was drawn since the last of its owner's was forgotten. Else the request may be
the retry of a commit that happened, and is `ProducerForgotten`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from lakestore.errors import (
    Applied,
    Conflict,
    Exhausted,
    Fenced,
    Invalid,
    LakestoreError,
    LimitReached,
    ProducerForgotten,
)
from lakestore.limits import Limits
from lakestore.rows.ipc import crc32c
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.request import Request
from lakestore_server.state.commit_record import Answer
from lakestore_server.state.producers import RESTED_US, Producers, ProducerState
from lakestore_server.state.registers import NO_MOVES, Move, Moves, Register

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


def check_name(producer: str, limits: Limits) -> None:
    """Refuse a name that is too long to be kept with every commit."""
    if len(producer) > limits.name_chars:
        raise Invalid(f"the producer's name has {len(producer)} characters, more than {limits.name_chars}")


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


CHARS_SHOWN = 120
"""Characters of a name or a value that an error shows: a status has room for a few thousand."""


def moves_of(request: pb.CommitRequest, limits: Limits) -> Moves:
    """The moves of a request, or `Invalid`."""
    if not request.registers:
        return NO_MOVES
    check_count(len(request.registers), limits)
    moves = tuple([Move(m.register, m.epoch, m.before, m.after, m.moved) for m in request.registers])
    if request.producer or request.progress:
        raise Invalid("a commit has registers, or a producer with its progress, and not both: send two commits")
    if not request.timeline:
        raise Invalid("a commit with registers names the timeline that they were opened in: send it as `timeline`")
    check_names([move.register for move in moves], limits)
    for move in moves:
        if len(move.after.encode()) > limits.register_bytes:
            name = shown(move.register)
            raise Invalid(f"the value of register {name} is longer than {limits.register_bytes} bytes: shorten it")
    if all(move.stays for move in moves):
        raise Invalid(
            f"register {shown(moves[0].register)} and all others of the commit stay where they are, so a retry would be"
            " applied again: move one, or commit without registers"
        )
    said = _said(moves, request.changes)
    return Moves(moves, crc32c(said), len(said))


def _said(moves: Sequence[Move], changes: Iterable[pb.Change]) -> bytes:
    """The words of a request, of which the mark is made; rows by their checksums."""
    said = [f"{move.register}\0{move.before}\0{move.after}\0{move.moved}" for move in moves]
    said += [f"{each.table}\0{each.kind}\0{each.crc32c}\0{each.as_of}\0{list(each.keep)}" for each in changes]
    return "\0".join(said).encode()


def check_count(count: int, limits: Limits) -> None:
    """`Invalid` for more registers than one principal may have."""
    if count > limits.registers:
        raise Invalid(f"{count} registers in one call are more than {limits.registers}: name fewer")


def check_names(names: Sequence[str], limits: Limits) -> None:
    """`Invalid` for names that are empty, too long or too many, or one that is there twice."""
    check_count(len(names), limits)
    seen: set[str] = set()
    for name in names:
        if not 1 <= len(name) <= limits.register_name_chars:
            raise Invalid(
                f"a register's name has 1 to {limits.register_name_chars} characters, and {shown(name)} has {len(name)}"
            )
        if name in seen:
            raise Invalid(f"register {shown(name)} is named twice: name it once")
        seen.add(name)


def repeated(moves: Moves, registers: Mapping[str, Register]) -> Answer | None:
    """The answer to moves that happened before; None for moves that may happen now; or their refusal."""
    if not moves.each:
        return None
    held = [_held(move, registers) for move in moves.each]
    pairs = list(zip(moves.each, held, strict=True))
    if all(_begins_at(move, register) for move, register in pairs):
        return None
    moved = [register for move, register in pairs if not move.stays]
    if all(register.mark == moves.mark and register.moved == moved[0].moved for register in moved):
        return Answer(moved[0].moved, (), is_repeated=True)
    raise _conflict(*next(pair for pair in pairs if not _begins_at(*pair)))


def _held(move: Move, registers: Mapping[str, Register]) -> Register:
    held = registers.get(move.register)
    if held is None or held.epoch != move.epoch:
        raise _fenced(move, held)
    return held


def _begins_at(move: Move, register: Register) -> bool:
    return register.moved == move.moved and register.value == move.before


def _fenced(move: Move, held: Register | None) -> LakestoreError:
    name = shown(move.register)
    if held is None:
        return Fenced(f"register {name} is not there: it was dropped, or never opened; open it anew")
    if held.epoch > move.epoch:
        return Fenced(f"register {name} was opened again with epoch {held.epoch}: stop, or open it anew")
    return Fenced(f"epoch {move.epoch} of register {name} was not given out in this history: open it anew")


def _conflict(move: Move, held: Register) -> LakestoreError:
    name, before, now = shown(move.register), shown(move.before), shown(held.value)
    if move.before == held.value:
        return Conflict(
            f"register {name} is at {now} again, by commit {held.moved} and not {move.moved}: open it anew, and go on"
            " from there"
        )
    return Conflict(
        f"register {name} is at {now}, and the commit expects it at {before}: open it anew, and go on from there"
    )


def shown(text: str) -> str:
    """A name or a value as an error shows it."""
    return repr(text if len(text) <= CHARS_SHOWN else f"{text[: CHARS_SHOWN - 1]}…")
