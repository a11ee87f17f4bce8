"""A session of the Postgres protocol with a stand-in for the query service: no socket, no process."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.limits import DEFAULT
from lakestore_server.access.callers import Access, Caller
from lakestore_server.edge.postgres.login import Peer
from lakestore_server.edge.postgres.session import Session
from lakestore_server.host.clock import RealClock
from lakestore_server.queries.answer import MayWait
from lakestore_server.queries.question import Cancelled, Description, Form, Part, Question
from tests.support import postgres_wire as wire
from tests.support.postgres_wire import Reply

NUMBERS = pa.schema([("n", pa.int64())])


def rows_of(count: int, form: Form) -> Iterator[Part]:
    """Rows 0, 1, … in parts of up to three rows, as texts."""
    for begin in range(0, count, 3):
        numbers = range(begin, min(begin + 3, count))
        texts = [str(number).encode() for number in numbers]
        if form is Form.ROWS:
            pieces = [wire.message("D", struct.pack("!hi", 1, len(text)) + text) for text in texts]
        else:
            pieces = [wire.message("d", text + b"\n") for text in texts]
        yield Part(len(texts), memoryview(b"".join(pieces)))


class ScriptedAnswer:
    """`rows N` has N rows; `cut T` names a token."""

    notices: tuple[str, ...] = ()
    is_whole = False

    def __init__(self, question: Question, owner: ScriptedQuestions, count: int, token: str) -> None:
        self.schema, self.token = NUMBERS, token
        self.derived: dict[Any, Any] = {}
        self._question, self._owner, self._count = question, owner, count
        owner.open += 1
        self._is_open = True

    def parts(self) -> Iterator[Part]:
        for part in rows_of(self._count, self._question.form):
            if self._owner.on_part is not None:
                self._owner.on_part()
            if self._owner.is_cancelled:
                self._owner.is_cancelled = False
                raise Cancelled("the query was ended: cancelled")
            yield part

    def recheck(self) -> None:
        """The right stays."""

    def close(self) -> None:
        self._owner.open -= self._is_open
        self._is_open = False


@dataclass
class ScriptedQuestions:
    """The query service: a text tells what it answers."""

    asked: list[Question] = field(default_factory=list)
    described: list[Question] = field(default_factory=list)
    open: int = 0
    is_cancelled: bool = False
    refuses: bool = False
    on_part: Callable[[], None] | None = None
    commits: int = 0

    def describe(self, question: Question, *, waits: bool = True) -> Description:
        if not waits:
            raise MayWait
        if "wrong" in question.text:
            raise self._error()
        self.described.append(question)
        count = len(set(re.findall(r"\$\d+", question.text)))
        return Description((pa.int64(),) * count, NUMBERS)

    def run(self, question: Question, *, waits: bool = True) -> Any:
        if not waits:
            raise MayWait
        self.asked.append(question)
        if self.refuses:
            raise Cancelled("the query was ended: cancelled")
        words = question.text.split()
        if "wrong" in words:
            raise self._error()
        if "defect" in words:
            raise RuntimeError("a defect")
        count = int(words[words.index("rows") + 1]) if "rows" in words else 1
        self.commits += 1
        token = question.at or f"cut{self.commits}"
        return ScriptedAnswer(question, self, count, token)

    @staticmethod
    def _error() -> Invalid:
        error = Invalid("there is no column wrong: name another one")
        error.position = 8  # type: ignore[attr-defined]
        return error

    def cancel(self, why: str, *, refuses: bool = False) -> None:
        self.is_cancelled = self.open > 0
        self.refuses = self.refuses or refuses

    def admit(self) -> None:
        self.refuses = False

    def close(self) -> None:
        self.is_cancelled = True


class SessionDoor:
    """What a port gives to its sessions; time does not pass."""

    def __init__(self, access: Access, questions: ScriptedQuestions) -> None:
        self.access, self.limits, self.scripted = access, DEFAULT, questions
        self.sessions: dict[int, tuple[Session, bytes]] = {}
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def questions(self, caller: Caller) -> ScriptedQuestions:
        return self.scripted

    def nonce(self, size: int) -> str:
        return "servernonce"

    def register(self, session: Session, minor: int) -> tuple[int, bytes]:
        number, secret = len(self.sessions) + 1, b"s" * (32 if minor >= 2 else 4)
        self.sessions[number] = session, secret
        return number, secret

    def cancel(self, number: int, secret: bytes) -> None:
        session, known = self.sessions.get(number, (None, b""))
        if session is not None and secret == known:
            session.cancel()

    def after(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        self.timers.append((seconds, act))
        return lambda: self.timers.clear()


class WireSession:
    """A session and its door, spoken to in bytes."""

    def __init__(self, auth: Path | None = None, peer: Peer | None = None, clock: Any = None) -> None:
        self.access = Access(auth, clock or RealClock(), b"k" * 32)
        self.service = ScriptedQuestions()
        self.door = SessionDoor(self.access, self.service)
        self.session = Session(self.door, peer or Peer(is_local=True))

    def raw(self, data: bytes) -> bytes:
        """The bytes of the answer."""
        self.session.expect()
        self.session.receive(data)
        answer = b"".join(bytes(part) for part in self.session.answers())
        self.session.rest()
        return answer

    def send(self, *data: bytes) -> list[Reply]:
        """The messages of the answer."""
        return wire.replies(self.raw(b"".join(data)))

    def begin(self, user: str = "ann", version: tuple[int, int] = (3, 0), **parameters: str) -> list[Reply]:
        """Log in on a server without an auth file."""
        return self.send(wire.start(user, version, **parameters))

    def kinds(self, *data: bytes) -> str:
        """The kinds of the messages of the answer."""
        return "".join(reply.kind for reply in self.send(*data))

    def query(self, sql: str) -> list[Reply]:
        """The answer to a Query without its ReadyForQuery."""
        answer = self.send(wire.query(sql))
        assert answer[-1].kind == "Z"
        self.status = answer[-1].body.decode()
        return answer[:-1]

    def rows(self, sql: str) -> list[list[str | None]]:
        """The rows of a Query as texts."""
        found = []
        for reply in self.query(sql):
            assert reply.kind != "E", reply.fields
            if reply.kind == "D":
                found.append([None if value is None else value.decode() for value in reply.values])
        return found

    def error(self, sql: str) -> dict[str, str]:
        """The fields of the error of a Query."""
        return next(reply.fields for reply in self.query(sql) if reply.kind == "E")
