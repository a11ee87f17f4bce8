"""The query service: every door that takes SQL asks here.

1. A process answers one question at a time and sees the lake as the caller does: plans and rows come from the service's
RPCs, which check the caller's rights; the server reads the lake files that the plans name.
2. An answer streams. The server reads the next part when the door has taken the last one.
3. A question ends when it takes too long, when its caller loses a right or is gone, and when its door cancels it: its
process is interrupted, and killed if it does not end the answer soon. The commit loop never waits for a question.
"""

from __future__ import annotations

import json
import logging
import math
import struct
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar

import pyarrow as pa

from lakestore.errors import Exhausted, LakestoreError, Unavailable
from lakestore.limits import Limits
from lakestore.release import RELEASE
from lakestore.rows.literals import short
from lakestore.union.side_by_side import merged
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import pipe, rpc
from lakestore.wire.pipe import Verb
from lakestore_server.access.callers import Caller
from lakestore_server.host import sandbox
from lakestore_server.host.child import Child, Gone, Parts
from lakestore_server.host.quota import share_of
from lakestore_server.host.supervisor import Supervisor
from lakestore_server.host.worker import Worker
from lakestore_server.operate.query_figures import QueryFigures, shown_text
from lakestore_server.queries.answer import Answer, MayWait
from lakestore_server.queries.constant_query import ConstantAnswer, described
from lakestore_server.queries.key_query import KeyAnswer, KeyQueries
from lakestore_server.queries.lake_files import LakeFiles
from lakestore_server.queries.memory_watch import ROOM_BYTES, is_too_much
from lakestore_server.queries.pool import Pool, QueryProcess
from lakestore_server.queries.question import (
    INTERRUPTED,
    Ask,
    Bounds,
    Cancelled,
    Description,
    Figures,
    Head,
    Part,
    Question,
)
from lakestore_server.queries.rpcs import Reads, Rpcs
from lakestore_server.queries.sent_rows import SentRows

_CONFINED, _WORKER = "lakestore_server.host.confined_process", "lakestore_server.queries.process"
WALLS = sandbox.WALLS
"""The walls around each process. A test removes one wall to test the other."""
log = logging.getLogger("lakestore.queries")
RECHECK_SECONDS = 1.0
"""Seconds between two checks of the rights to everything that a question has read."""
TICK_SECONDS, UNUSED_TICK_SECONDS = 0.1, 1.0
"""Seconds between two looks at the questions that are under way, and at processes that nobody has used."""
STREAMS_MAX = 1_000
"""The most streams that one question holds open. Each keeps one RPC of the server open."""
STREAM_AHEAD = 1
"""Messages of a stream that are made before the process asks for them; each has up to `read_batch_bytes`."""
INTERRUPT_SECONDS = 1.0
"""Time in which a process ends an answer that is interrupted; then it is killed."""
GRACE_SECONDS = 5.0
"""A process may be silent for the time of a question and this long."""
IDLE_BYTES = 512 << 20
"""A process that keeps more memory than this, and `query_bytes`, behind a question is not used again."""
GOING_DOWN = "the server is going down"
HELD_AS = "Query"
"""The name of a question among the calls for which a drain waits."""
PROCESS_ENDED = "the query's process has ended: it may have needed more memory than it may take"
"""The error for a process that has ended without a signal. `MemoryWatch` ends a process like this."""
_SIGNALS = {
    "SIGKILL": "it may have needed more memory than it may take",
    "SIGALRM": "it took too long",
    "SIGSYS": "it made a system call that no query makes, which its sandbox does not allow",
    "SIGSEGV": "a fault in a library, or a text that was made to cause one",
}


_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """A question that is under way, for those who may see it."""

    number: int
    """Names the question in `QueryService.cancel`."""
    principal: str
    door: str
    text: str
    seconds: float
    rows: int
    nbytes: int
    process: int | None


class QueryService:
    """The queries of one server. Thread-safe."""

    def __init__(self, rpcs: Rpcs, limits: Limits, figures: QueryFigures, supervisor: Supervisor) -> None:
        self.rpcs, self.limits, self.figures = rpcs, limits, figures
        self.keys = KeyQueries(rpcs)
        most = limits.query_processes
        self.pool = Pool(
            self._child,
            most=most,
            share=share_of(most, limits),
            resident_bytes=IDLE_BYTES + limits.query_bytes,
            room_bytes=ROOM_BYTES + limits.query_bytes,
        )
        figures.processes = self.pool.counts
        self._lock = threading.Lock()
        self._runs: set[QueryRun] = set()
        self.is_closing = False
        self._tender = Worker(
            supervisor=supervisor, name="queries", work=self._tend, failed=self._not_tended, every=UNUSED_TICK_SECONDS
        )
        self._tender.start()

    def session(self, caller: Caller, door: str, *, soon: bool = True) -> QuerySession:
        """The questions of one connection. Raises `Unavailable` if this server answers none.

        With `soon` a process is started now, so that the first question need not wait for one.
        """
        if not self.limits.query_processes or self.is_closing:
            raise Unavailable("this server answers no queries: limits.query_processes is 0, or it is going down")
        if soon:
            self.pool.warm()
        self._tender.wake()
        return QuerySession(self, caller, door)

    def keep_warm(self) -> None:
        """Keep an unused process from now on, for doors whose sessions ask at once."""
        if self.limits.query_processes:
            self.pool.warm(math.inf)
            self._tender.wake()

    def running(self) -> Sequence[RunningQuery]:
        """The questions that are under way."""
        with self._lock:
            runs = list(self._runs)
        return [each.shown() for each in runs]

    def cancel(self, number: int, why: str) -> None:
        """End the question of a number, if it is still under way."""
        with self._lock:
            runs = [run for run in self._runs if run.number == number]
        for run in runs:
            run.cancel(why)

    def close(self) -> None:
        """End all questions and processes. Callable from any thread."""
        self.is_closing = True
        with self._lock:
            runs = list(self._runs)
        for run in runs:
            run.cancel(GOING_DOWN)
        self.pool.close()
        self._tender.close()

    def begins(self, run: QueryRun) -> None:
        """Note a run, so that its time and rights are watched."""
        with self._lock:
            self._runs.add(run)
        self._tender.wake()

    def ends(self, run: QueryRun) -> None:
        """Forget a run."""
        with self._lock:
            self._runs.discard(run)

    def _child(self) -> Child:
        return Child(
            "a query",
            _CONFINED,
            lambda: (_WORKER, *WALLS),
            silence_seconds=self.limits.query_seconds + GRACE_SECONDS,
            is_trusted=False,
            bytes_max=pipe.ASKED_BYTES_MAX,
            died=self.figures.count_death,
            log=log,
        )

    def _tend(self) -> None:
        """Watch questions and processes until there are none, or only an unused one."""
        self._tender.taken()
        while True:
            with self._lock:
                runs = list(self._runs)
            for run in runs:
                run.watch()
            self.pool.tend(self.rpcs.generation)
            if not runs and not self.pool.bound:
                return
            if self._tender.wait(TICK_SECONDS):
                return

    @staticmethod
    def _not_tended(error: Exception) -> None:
        log.error("queries are not watched: %s", error)


class QuerySession:
    """The questions of one connection of a door. Its calls block, so they run in a thread.

    A call with `waits` false does not block. It raises `MayWait` where it would.
    """

    def __init__(self, service: QueryService, caller: Caller, door: str) -> None:
        self._service, self._caller, self._door = service, caller, door
        self._lock = threading.Lock()
        self._runs: set[QueryRun] = set()
        self._is_closed = False
        self._refusal = ""
        """Why a question that begins now is refused; under the lock."""

    def describe(self, question: Question, *, waits: bool = True) -> Description:
        """The types of a text, which is not run."""
        known = described(question) or self._service.keys.describe(self._caller, question, waits=waits)
        if known is not None:
            return known
        if not waits:
            raise MayWait
        run = self._begin(question)
        try:
            data = run.whole(Ask.DESCRIBE)
        finally:
            self._end(run)
        return run.checked(Description.from_bytes, data)

    def run(self, question: Question, *, waits: bool = True) -> Answer:
        """The answer, when its head is there. Close it."""
        known = self._at_once(question, waits=waits)
        if known is not None:
            return known
        if not waits:
            raise MayWait
        run = self._begin(question)
        try:
            return ProcessAnswer(run, lambda: self._end(run, is_counted=True))
        except BaseException:
            self._end(run, is_counted=True)
            raise

    def cancel(self, why: str, *, refuses: bool = False) -> None:
        """End every answer that is under way. With `refuses`, a question that begins later is refused, until `admit`:
        its door may have it already. Callable from any thread."""
        with self._lock:
            self._refusal = self._refusal or (why if refuses else "")
            runs = list(self._runs)
        for run in runs:
            run.cancel(why)

    def admit(self) -> None:
        """Take questions again that a cancel has refused."""
        with self._lock:
            self._refusal = ""

    def close(self) -> None:
        """End every answer, and take no further question. Callable from any thread."""
        self._is_closed = True
        self.cancel("its reader is gone")

    def _at_once(self, question: Question, *, waits: bool) -> KeyAnswer | ConstantAnswer | None:
        """The answer of a constant or key query; None if a process must answer, or without `waits` if the look-up may
        wait."""
        service, began = self._service, time.monotonic()
        if self._is_closed or self._refusal or service.is_closing or service.rpcs.calls.is_draining:
            return None  # `_begin` refuses it
        outcome: str = "NotFresh"
        answer: KeyAnswer | ConstantAnswer | None = None
        try:
            answer = ConstantAnswer.of(question) or service.keys.answer(self._caller, question, waits=waits)
            outcome = "ok"
        finally:
            if answer is not None or outcome != "ok":
                service.figures.count_query(
                    self._door,
                    self._caller.counted_as,
                    question.text,
                    outcome=outcome,
                    seconds=time.monotonic() - began,
                    rows=answer.part.rows if answer else 0,
                    nbytes=len(answer.part.data) if answer else 0,
                    is_keyed=not isinstance(answer, ConstantAnswer),
                )
        return answer

    def _begin(self, question: Question) -> QueryRun:
        run = QueryRun(self._service, self._caller, self._door, question, held=len(self._runs))
        with self._lock:
            if self._is_closed or self._service.is_closing:
                raise Cancelled(f"the query was ended: {'its reader is gone' if self._is_closed else GOING_DOWN}")
            if self._refusal:
                raise Cancelled(f"the query was ended: {self._refusal}")
            self._service.rpcs.calls.hold(HELD_AS)
            self._runs.add(run)
        self._service.begins(run)
        return run

    def _end(self, run: QueryRun, *, is_counted: bool = False) -> None:
        try:
            run.end()
        finally:
            self._service.ends(run)
            with self._lock:
                is_first = run in self._runs
                self._runs.discard(run)
            if is_first:
                self._service.rpcs.calls.release(HELD_AS)
        if is_first and is_counted:
            run.count_end()


class ProcessAnswer(Answer):
    """The answer of a query process."""

    def __init__(self, run: QueryRun, end: Callable[[], None]) -> None:
        self._run, self._end = run, end
        self._turn = threading.Lock()
        self._stream = run.stream(Ask.RUN)
        first = self._next()
        if first is None:
            raise run.broken(ValueError("an answer without a head"))
        head = run.checked(Head.from_bytes, first)
        super().__init__(head.schema, head.token, head.notices)

    def parts(self) -> Iterator[Part]:
        while (data := self._next()) is not None:
            part = self._run.checked(self._run.part, data)
            self._run.count(part)
            yield part

    def checked(self, read: Callable[[Any], _Value], data: object) -> _Value:
        return self._run.checked(read, data)

    def recheck(self) -> None:
        self._run.reads.recheck()

    def close(self) -> None:
        """End the answer: its process is free again. Before the last part it is interrupted, for which this waits."""
        if not self._run.is_over:
            self._run.cancel("its reader is gone")
        with self._turn:
            with suppress(LakestoreError):  # the answer was cancelled
                next(self._stream, None)
            self._stream.close()
        self._end()

    def _next(self) -> bytes | memoryview | None:
        with self._turn:
            try:
                return next(self._stream)
            except StopIteration as end:
                if end.value is not None:
                    self.figures = self._run.checked(Figures.from_bytes, end.value)
                return None


_UNREADABLE = (
    ValueError,
    OSError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    pa.ArrowException,
    struct.error,
)
"""Errors of reading bytes that a hostile process has chosen."""


class QueryRun:
    """One question that is under way: its process, its reads, its time."""

    def __init__(self, service: QueryService, caller: Caller, door: str, question: Question, *, held: int = 0) -> None:
        """`held` is the number of answers that the session of the question holds."""
        self._held = held
        self.reads = Reads(service.rpcs, caller)
        self._service, self._owner, self._door, self._question = service, caller.counted_as, door, question
        self._why: str | LakestoreError = ""
        self._streams: dict[int, Generator[bytes]] = {}
        self._files = LakeFiles()
        self._sent = SentRows()
        self._leases: list[str] = []
        self._lock = threading.Lock()
        """Held while the process is given back or killed."""
        self._process: QueryProcess | None = None
        self._kill_at: float | None = None
        """The end of the time of an interrupted process; None without an interrupt."""
        self._is_interrupted = False
        """Whether the process has ended its answer because of the interrupt."""
        self._is_worn = False
        """Whether the process is not used again: the question needed too much memory, which may stay mapped."""
        self.is_over = False
        """Whether the process has given its whole answer."""
        self.number = next(_run_numbers)
        self.outcome = "Cancelled"
        """`ok`, or the kind of the error that ended the question."""
        self._asked = self._began = self._rechecked = time.monotonic()
        self._rows = self._nbytes = 0

    @property
    def pid(self) -> int | None:
        """The process id; None if there is no process."""
        process = self._process
        return process.child.pid if process else None

    def shown(self) -> RunningQuery:
        """The run for those who may see it."""
        seconds = time.monotonic() - self._began
        text = shown_text(self._question.text)
        return RunningQuery(self.number, self._owner, self._door, text, seconds, self._rows, self._nbytes, self.pid)

    def part(self, data: bytes | memoryview) -> Part:
        """The part in bytes of the process. Raises `ValueError`."""
        part = Part.from_bytes(data)
        return replace(part, data=self._sent.rows(part.place, part.rows)) if part.place.message else part

    def count(self, part: Part) -> None:
        """Count a part that the door has taken."""
        self._rows += part.rows
        self._nbytes += len(part.data)

    def count_end(self) -> None:
        """Count the question, which has ended."""
        self._service.figures.count_query(
            self._door,
            self._owner,
            self._question.text,
            outcome=self.outcome,
            seconds=time.monotonic() - self._asked,
            rows=self._rows,
            nbytes=self._nbytes,
        )

    def cancel(self, why: str | LakestoreError, *, kills: bool = False) -> None:
        """End the question unless it is over. Its door gets `why`, a reason or the error. Callable from any thread.

        With `kills` its process gets no time to end the answer.
        """
        with self._lock:
            if self.is_over:
                return
            self._why = self._why or why
            if self._process is not None and (kills or self._kill_at is None):
                if not kills and self._process.child.interrupt():
                    self._kill_at = time.monotonic() + INTERRUPT_SECONDS
                else:
                    self._process.child.kill()
        self._service.pool.wake()

    def watch(self) -> None:
        """End the question if its time is over or a right to data that was read is lost; kill an interrupted process
        that goes on.
        """
        now, most = time.monotonic(), self._service.limits.query_seconds
        if self._kill_at is not None and now > self._kill_at:
            self.cancel(self._why, kills=True)
        if self._process is None or self._why or self.is_over:
            return
        if now - self._began > most:
            self.cancel(f"it took {most} seconds")
        elif now - self._rechecked >= RECHECK_SECONDS:
            self._rechecked = now
            try:
                self.reads.recheck()
            except LakestoreError as error:
                self.cancel(error)

    def whole(self, ask: Ask) -> bytes:
        """The process's answer without parts."""
        stream = self.stream(ask)
        try:
            next(stream)
        except StopIteration as end:
            data: bytes = end.value
            return data
        raise self.broken(ValueError("a part where none was due"))

    def stream(self, ask: Ask) -> Parts:
        """The process's answer; rights are checked once more when it is complete."""
        child = self._taken().child
        child.name = self._name
        try:
            end = yield from self._uncancelled(child.stream(ask, self._question.to_bytes(self._bounds()), self._serve))
            with self._lock:
                self.is_over = True
                self._is_interrupted = bool(self._why) and end == INTERRUPTED
            if not self._why:
                self.reads.recheck()
        except Gone as error:
            raise self._exit_error(error.signal) from error
        except LakestoreError as error:  # of the process, which waits for its next question, or of the rights
            self.is_over, self.outcome = True, error.kind
            self._is_worn = is_too_much(error)
            raise
        if self._why:
            raise self._exit_error()
        self.outcome = "ok"
        return end

    def _uncancelled(self, parts: Parts) -> Parts:
        """The parts until the question is cancelled; later ones are dropped. The end."""
        with closing(parts):
            while True:
                try:
                    part = next(parts)
                except StopIteration as end:
                    return bytes(end.value)
                if not self._why:
                    yield part

    def end(self) -> None:
        """Release what the question held."""
        with self._lock:
            process, self._process = self._process, None
            is_whole = self.is_over and not self._is_worn and (not self._why or self._is_interrupted)
            self.is_over = True
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        self._files.close()
        for lease in self._leases:
            with suppress(LakestoreError):  # it has ended by itself, or its owner may no longer end it
                self.reads.release(lease)
        if process is not None and is_whole:
            self._service.pool.give_back(process, self._service.rpcs.generation)
        elif process is not None:
            self._service.pool.discard(process)

    def checked(self, read: Callable[[Any], _Value], data: object) -> _Value:
        """The value that bytes of the process stand for. A process that sends other bytes is ended."""
        try:
            return read(data)
        except _UNREADABLE as error:
            raise self.broken(error) from error

    def broken(self, error: Exception) -> LakestoreError:
        """The error for a process that sends what it should not."""
        log.warning("the process of %s sent what it should not: %s", self._name, short(str(error)))
        with self._lock:
            self.is_over = False
        self.cancel(Unavailable("the query's process sent what it should not, and was ended"), kills=True)
        return self._exit_error()

    @property
    def _name(self) -> str:
        return f"a query (principal {self._owner!r}, text {short(self._question.text)!r})"

    def _taken(self) -> QueryProcess:
        service = self._service
        wait, generation = service.limits.query_wait_seconds, service.rpcs.generation
        try:
            process = service.pool.take(self._owner, generation, wait, lambda: bool(self._why), held=self._held)
        except Exhausted:
            if self._why:
                raise self._exit_error() from None
            self.outcome = Exhausted.kind
            raise
        service.figures.count_wait(time.monotonic() - self._asked)
        with self._lock:
            self._process = process
            if self._why:  # it was cancelled meanwhile
                process.child.kill()
        self._began = self._rechecked = time.monotonic()
        return process

    def _bounds(self) -> Bounds:
        limits = self._service.limits
        hello = pb.HelloAnswer(release=RELEASE, protocol_min=rpc.PROTOCOL_MIN, protocol=rpc.PROTOCOL)
        hello.message_bytes = limits.message_bytes
        said = hello.SerializeToString().hex()
        return Bounds(limits.query_seconds, limits.query_bytes, said, self.reads.readable, self.reads.knows_readers)

    def _serve(self, verb: int, question: bytes) -> list[bytes]:
        answer = self._answer_to(Verb(verb), question)
        return [] if answer is None else [answer]

    def _answer_to(self, verb: Verb, question: bytes) -> bytes | None:
        if verb is Verb.CALL:
            name, request = pipe.parted(question)
            data = self.reads.read(name, request)
            if name == "Plan":
                plan = pb.PlanAnswer.FromString(data)
                self._files.add_plan(plan)
                if plan.lease:
                    self._leases.append(plan.lease)
            return data
        if verb is Verb.READERS:
            return json.dumps(self.reads.readers).encode()
        if verb in (Verb.SIZE, Verb.READ):
            return self._files.answer(verb, question)
        if verb is Verb.OPEN:
            if len(self._streams) >= STREAMS_MAX:
                raise Exhausted(
                    f"the query reads {STREAMS_MAX:,} parts of tables at once, the limit: name fewer tables"
                )
            number = next(_stream_numbers)
            self._streams[number] = read_ahead(self.reads.rows(*pipe.parted(question)))
            return pipe.NUMBER.pack(number)
        (number,) = pipe.NUMBER.unpack(question)
        if verb is Verb.NEXT:
            message = next(self._streams[number], None)
            if message is not None:
                self._sent.put(message)
            return message
        self._streams.pop(number).close()
        return None

    def _exit_error(self, signal: str = "") -> LakestoreError:
        """The error for a process that ended without a result, by exit or by signal; also the question's outcome."""
        error = self._end_error(signal)
        self.outcome = "Cancelled" if isinstance(error, Cancelled) else error.kind
        return error

    def _end_error(self, signal: str) -> LakestoreError:
        if isinstance(self._why, LakestoreError):
            return self._why
        if self._why:
            return Cancelled(f"the query was ended: {self._why}")
        if not signal:
            return Unavailable(PROCESS_ENDED)
        why = _SIGNALS.get(signal, "its log line has the query")
        return Unavailable(f"the query's process has ended by {signal}: {why}")


_run_numbers = count(1)


def read_ahead(rows: Generator[bytes]) -> Generator[bytes]:
    """The messages of a stream. A thread makes the next ones while the process takes one."""
    return merged([lambda: rows], threads=1, ahead=STREAM_AHEAD, tick=_no_op)


def _no_op() -> None: ...


_stream_numbers = count()
"""Numbers of streams differ between the questions of one process: a late CLOSE of one closes no stream of the next."""
