"""Moves of registers by a request: whether all may happen now, or have happened before by this very request.

A register's value and the LSN that set it say where it stands; only its newest epoch knows them. A request whose moves
all begin there is the next one. One whose mark, a checksum of its moves and rows, is kept with all of these registers
since one LSN is that commit again. All else is refused whole. No group has two requests that move the same register.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lakestore.errors import Conflict, Fenced, Invalid, LakestoreError
from lakestore.limits import Limits
from lakestore.rows.ipc import crc32c
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.state.commit_record import Answer
from lakestore_server.state.registers import Register

CHARS_SHOWN = 120
"""Characters of a name or a value that an error shows: a status has room for a few thousand."""


class Move(NamedTuple):
    """A register from one value to the next."""

    register: str
    epoch: int
    before: str
    after: str
    moved: int
    """LSN of the commit that set `before`; 0 if none has."""

    @property
    def stays(self) -> bool:
        """Whether the value is the same afterwards: then the register is asked for its epoch, and not moved."""
        return self.before == self.after


class Moves(NamedTuple):
    """The moves of a request, its mark, and their bytes."""

    each: tuple[Move, ...] = ()
    mark: int = 0
    nbytes: int = 0


NONE = Moves()


def moves_of(request: pb.CommitRequest, limits: Limits) -> Moves:
    """The moves of a request, or `Invalid`."""
    if not request.registers:
        return NONE
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
