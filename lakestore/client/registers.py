"""`lake.registers(names)`: commits of several tables that move named positions of other systems, all or nothing.

A register is one position, for example of a Kafka partition. Only the last process that opened a register may move it.
A commit states the old and new value of each register and is refused if an old value differs. A commit whose answer was
lost is therefore recognised, and sending it again is harmless.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Self

from lakestore.client.commit import Commit
from lakestore.client.connection import Connection
from lakestore.client.transport import PROCESS, Transport, message_bytes
from lakestore.errors import Conflict, Fenced, Invalid, LakestoreError, OtherTimeline
from lakestore.model.token import position_of
from lakestore.rows.ranges import check_commit
from lakestore.v1 import lakestore_pb2 as pb


@dataclass(frozen=True, slots=True)
class Register:
    """A register as the server keeps it."""

    name: str
    owner: str
    """Principal that opened it first; empty if the server is in the same process."""
    epoch: int
    value: str
    """The value's first characters; empty before the first commit."""
    moved: int
    """LSN of the commit that set the value; 0 before the first."""

    @staticmethod
    def of(entry: pb.RegisterEntry) -> Register:
        return Register(entry.name, entry.owner, entry.epoch, entry.value, entry.moved)


def every_register(transport: Transport, prefix: str) -> list[Register]:
    """The registers with a prefix, by name, in as many calls as necessary."""
    found: list[Register] = []
    goes_on = True
    while goes_on:
        after = found[-1].name if found else ""
        answer = transport.list_registers(pb.ListRegistersRequest(prefix=prefix, after=after))
        found += map(Register.of, answer.registers)
        goes_on = answer.goes_on
    return found


def drop_registers(transport: Transport, names: Iterable[str]) -> int:
    """Forget registers. Returns how many existed."""
    wanted = _listed(names)
    return transport.drop_registers(pb.DropRegistersRequest(registers=wanted)).dropped if wanted else 0


class _Place(NamedTuple):
    """The position of an open register."""

    epoch: int
    moved: int


class Registers:
    """Open registers. A context manager. One thread and one commit at a time."""

    def __init__(self, connection: Connection, names: Iterable[str]) -> None:
        self._connection = connection
        self._timeline = ""
        self._values: dict[str, str] = {}
        self._places: dict[str, _Place] = {}
        self._end = ""
        """Why there can be no more commits; empty if there can."""
        self._is_committing = False
        self.open(names)

    @property
    def progress(self) -> Mapping[str, str]:
        """Name to value of all registers that are open here; empty for a new register."""
        return MappingProxyType(self._values)

    def open(self, names: Iterable[str]) -> None:
        """Open more registers in one commit, which fences their earlier owners. `progress` then has their values.

        A register that is open here is opened again.
        """
        self._check()
        wanted = _listed(names)
        if not wanted:
            return
        if self._is_committing and not self._places.keys().isdisjoint(wanted):
            raise Invalid("a commit of these registers is under way: end it before one of them is opened again")
        request = pb.OpenRegistersRequest(registers=wanted, timeline=self._timeline)
        try:
            answer = self._connection.transport.open_registers(request)
        except OtherTimeline:
            self._end = "are of a history that a restore has ended"
            raise
        self._timeline = answer.timeline
        for name, held in zip(wanted, answer.registers, strict=True):
            self._values[name], self._places[name] = held.value, _Place(answer.epoch, held.moved)

    def release(self, names: Iterable[str]) -> None:
        """Give up these registers. The server keeps them unchanged for the next owner."""
        for name in _listed(names):
            self._values.pop(name, None)
            self._places.pop(name, None)

    @contextmanager
    def commit(self, progress: Mapping[str, str]) -> Iterator[Commit]:
        """Changes to any number of tables and new register values, committed together at the end of the block. An
        error discards them.

        `progress` is read at the end of the block. A commit whose answer is lost is sent again and happens once. After
        `Fenced`, `Conflict`, `OtherTimeline` or an error with `applied="unknown"` open the registers again: their
        values show what happened.
        """
        self._check()
        if self._is_committing:
            raise Invalid("a commit of these registers is under way: end it before the next one, or open others")
        self._is_committing = True
        try:
            with Commit(self._connection) as commit:
                yield commit
                commit.send(lambda changes: self._committed(changes, progress))
        finally:
            self._is_committing = False

    def _committed(self, changes: Sequence[pb.Change], progress: Mapping[str, str]) -> pb.CommitAnswer:
        self._check()
        request = pb.CommitRequest(changes=changes, timeline=self._timeline)
        for name, value in progress.items():
            self._add_move(request, name, value)
        if all(self._values[name] == value for name, value in progress.items()):
            raise Invalid("no register of the commit moves, so a retry would be applied again: move one at least")
        check_commit(sum(len(change.rows) for change in changes), message_bytes(self._connection.transport.server))
        try:
            answer = self._connection.transport.commit(request)
        except LakestoreError as error:
            self._ended_by(error)
            raise
        lsn = position_of(answer.token).lsn
        for move in request.registers:
            if move.before != move.after and move.register in self._places:
                self._values[move.register] = move.after
                self._places[move.register] = _Place(move.epoch, lsn)
        return answer

    def _add_move(self, request: pb.CommitRequest, name: str, value: str) -> None:
        place = self._places.get(name)
        if place is None:
            raise Invalid(f"register {name!r} is not open here: open it before a commit that moves it")
        _check_texts((value,), f"the value of register {name!r}")
        before = self._values[name]
        request.registers.add(register=name, epoch=place.epoch, before=before, after=value, moved=place.moved)

    def _ended_by(self, error: LakestoreError) -> None:
        if error.applied == "unknown":
            self._end = "have a commit whose outcome is unknown"
        elif isinstance(error, OtherTimeline):
            self._end = "are of a history that a restore has ended"
        elif isinstance(error, (Fenced, Conflict)):
            self._end = "were opened by somebody else, or are not where they were left"

    def _check(self) -> None:
        PROCESS.check()
        if self._end:
            raise Invalid(f"these registers {self._end}: open them again, their progress says how far they came")

    def close(self) -> None:
        """Accept no more commits. The server keeps the registers and their values."""
        self._end = self._end or "are closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _listed(names: Iterable[str]) -> list[str]:
    listed = [names] if isinstance(names, str) else list(names)
    _check_texts(listed, "the name of a register")
    return listed


def _check_texts(texts: Iterable[str], what: str) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise Invalid(f"{what} is text, not {type(text).__name__}: write it as text")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Invalid(f"{what} has half of a surrogate pair, which is no character: leave it out") from None
