"""Sequences: whether a request is its producer's next commit, a repeat, or neither.

An epoch counts only if this timeline granted it. An unknown producer is new only if its request proves so: it is the
first sequence of a name drawn after the owner's last forgotten producer. Otherwise the request may be the retry of a
commit, and is `ProducerForgotten`.

Register updates are judged alike. A request whose updates all begin at the present state is the next one. A request
whose mark (a checksum of updates and rows) is stored with all of these registers since one LSN is a repeat of that
commit. Any other request is refused whole. No group has two requests that update the same register.
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
from lakestore_server.state.registers import NO_MOVES, Register, RegisterUpdate, RegisterUpdates

RETRY_SECONDS: Final = RESTED_US / 1e6 / 10
"""Seconds after which a principal at its limit should retry."""


class Sequences:
    """The requests of one group in order, before any of them is applied."""

    def __init__(self, producers: Producers, time_us: int, refused: Collection[str] = ()) -> None:
        """`refused` are producers with an earlier refused request in the group."""
        self._producers, self._time_us, self._refused = producers, time_us, refused
        self._last: dict[str, int] = {}
        """The newest admitted sequence of each producer."""
        self._new: Counter[tuple[str, bool]] = Counter()
        """(owner, is named) to the number of producers that begin in this group."""
        self._progress: Counter[str] = Counter()
        """Owner to the most bytes of progress that the group adds."""

    def answer(self, request: Request) -> Answer | None:
        """The first answer of a repeated request; None for a next commit, which must be `admitted`; or its refusal."""
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
                " or drop unused producers (`lakestore producers --drop NAME`)"
            )

    def _check_new(self, request: Request) -> None:
        if request.epoch:
            raise ProducerForgotten(
                f"the server does not know producer {request.producer!r}, which was dropped: open it again"
            )
        horizon = self._producers.horizon(request.owner)
        if request.sequence != 1 or (request.born is not None and request.born < horizon):
            raise ProducerForgotten(
                "the server no longer knows this client's producer, which was idle for too long: write again",
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
    """`LimitReached` if an owner may not have `more` named producers."""
    if producers.named_of(owner) + more > producers.limits.producers:
        raise LimitReached(
            f"{_whose(owner)} {producers.limits.producers} named producers, the limit: drop those that are no longer"
            " used (`lakestore producers --drop NAME`)"
        )


def check_name(producer: str, limits: Limits) -> None:
    """Refuse a name that is too long to be stored with every commit."""
    if len(producer) > limits.name_chars:
        raise Invalid(f"the producer's name has {len(producer)} characters, more than {limits.name_chars}")


def _check_epoch(request: Request, known: ProducerState) -> None:
    if request.epoch < known.epoch:
        raise Fenced(f"producer {request.producer!r} was opened again with epoch {known.epoch}")
    if request.epoch > known.epoch:
        raise Fenced(
            f"epoch {request.epoch} of producer {request.producer!r} was not granted in this timeline:"
            " open the producer again",
            applied=_applied(request),
        )


def _applied(request: Request) -> Applied:
    """Whether a request of an unknown producer may have been applied; a client that names the timeline knows what it
    sent before. Clients up to protocol 4 give up a producer and continue with another only if the outcome is
    unknown."""
    return "no" if request.timeline else "unknown"


def _whose(owner: str) -> str:
    return f"{owner} has" if owner else "this process has"


CHARS_SHOWN = 120
"""Characters of a name or value in an error: a gRPC status has room for a few thousand."""


def register_updates(request: pb.CommitRequest, limits: Limits) -> RegisterUpdates:
    """The register updates of a request, or `Invalid`."""
    if not request.registers:
        return NO_MOVES
    check_count(len(request.registers), limits)
    moves = tuple([RegisterUpdate(m.register, m.epoch, m.before, m.after, m.moved) for m in request.registers])
    if request.producer or request.progress:
        raise Invalid("a commit has registers, or a producer with its progress, and not both: send two commits")
    if not request.timeline:
        raise Invalid("a commit with registers names the timeline that they were opened in: send it as `timeline`")
    check_names([move.register for move in moves], limits)
    for move in moves:
        if len(move.after.encode()) > limits.register_bytes:
            name = value_text(move.register)
            raise Invalid(f"the value of register {name} is longer than {limits.register_bytes} bytes: shorten it")
    if all(move.stays for move in moves):
        raise Invalid(
            f"register {value_text(moves[0].register)} and all others of the commit stay where they are, so a retry"
            " would be applied again: move one, or commit without registers"
        )
    said = _said(moves, request.changes)
    return RegisterUpdates(moves, crc32c(said), len(said))


def _said(moves: Sequence[RegisterUpdate], changes: Iterable[pb.Change]) -> bytes:
    """The content of a request for its mark; rows by their checksums."""
    said = [f"{move.register}\0{move.before}\0{move.after}\0{move.moved}" for move in moves]
    said += [f"{each.table}\0{each.kind}\0{each.crc32c}\0{each.as_of}\0{list(each.keep)}" for each in changes]
    return "\0".join(said).encode()


def check_count(count: int, limits: Limits) -> None:
    """`Invalid` for more registers than one principal may have."""
    if count > limits.registers:
        raise Invalid(f"{count} registers in one call are more than {limits.registers}: name fewer")


def check_names(names: Sequence[str], limits: Limits) -> None:
    """`Invalid` for names that are empty, too long, too many or repeated."""
    check_count(len(names), limits)
    seen: set[str] = set()
    for name in names:
        if not 1 <= len(name) <= limits.register_name_chars:
            raise Invalid(
                f"a register's name has 1 to {limits.register_name_chars} characters, and {value_text(name)} has"
                f" {len(name)}"
            )
        if name in seen:
            raise Invalid(f"register {value_text(name)} is named twice: name it once")
        seen.add(name)


def repeated(moves: RegisterUpdates, registers: Mapping[str, Register]) -> Answer | None:
    """The answer to updates that happened before; None for updates that may happen now; or their refusal."""
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


def _held(move: RegisterUpdate, registers: Mapping[str, Register]) -> Register:
    held = registers.get(move.register)
    if held is None or held.epoch != move.epoch:
        raise _fenced(move, held)
    return held


def _begins_at(move: RegisterUpdate, register: Register) -> bool:
    return register.moved == move.moved and register.value == move.before


def _fenced(move: RegisterUpdate, held: Register | None) -> LakestoreError:
    name = value_text(move.register)
    if held is None:
        return Fenced(f"register {name} is not there: it was dropped, or never opened: open it again")
    if held.epoch > move.epoch:
        return Fenced(f"register {name} was opened again with epoch {held.epoch}: stop, or open it again")
    return Fenced(f"epoch {move.epoch} of register {name} was not granted in this timeline: open it again")


def _conflict(move: RegisterUpdate, held: Register) -> LakestoreError:
    name, before, now = value_text(move.register), value_text(move.before), value_text(held.value)
    if move.before == held.value:
        return Conflict(
            f"register {name} is at {now} again, by commit {held.moved} and not {move.moved}: open it again and"
            " continue from there"
        )
    return Conflict(
        f"register {name} is at {now}, and the commit expects it at {before}: open it again and continue from there"
    )


def value_text(text: str) -> str:
    """A name or value in the form for errors."""
    return repr(text if len(text) <= CHARS_SHOWN else f"{text[: CHARS_SHOWN - 1]}…")
