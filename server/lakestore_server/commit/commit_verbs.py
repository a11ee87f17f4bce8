"""Verbs of commits: one commit, or a stream of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from functools import cache
from itertools import groupby

from lakestore.errors import Exhausted, Invalid, LakestoreError, Unavailable, Violated
from lakestore.model.system_tables import AUDIT
from lakestore.model.table import Table
from lakestore.rows.ipc import crc32c
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, tracing
from lakestore.wire.commit_message import COUNTS, CommitMessage, Sent, beside
from lakestore_server.commit.contract_times import Arrival
from lakestore_server.commit.durable import Bell, Pause, waited
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.priority import BackgroundPriority, ForegroundPriority, RequestPriority
from lakestore_server.commit.queue import SMALL_STRETCH, is_small
from lakestore_server.commit.request import REFUSALS, Refusal, Request, RuleTables, TableChange, change_of, with_letters
from lakestore_server.commit.sequences import check_name, register_updates
from lakestore_server.host.quota import Claim, Quota
from lakestore_server.host.yield_points import at_yield_points, yield_point
from lakestore_server.state.commit_record import Answer, ChangeResult
from lakestore_server.state.registers import RegisterUpdates

IDLE_SECONDS = 1.0
MOVE_BYTES = 128
"""Memory of a register update without its texts."""
DECODING_COPIES = 3
"""Copies of a request's bytes that decoding makes: the rows, the cast rows, and the rows sorted by bucket."""


class CommitVerbs:
    """The verbs of commits. Thread-safe."""

    def __init__(
        self,
        engine: Engine,
        add_rows: Callable[[pb.CommitRequest, pb.CommitAnswer], None],
        dead_letters: Callable[[Table], Table],
    ) -> None:
        """`add_rows` puts the wanted rows of inserts into the answer of a commit. `dead_letters` returns the
        dead-letter table of a table, and makes it if there is none."""
        self._dead_letters = dead_letters
        self._engine, self._priority, self._add_rows = engine, engine.loop.priority, add_rows
        limits = engine.limits
        self._decoding = Quota(
            limits.in_flight_bytes,
            limits.queue_wait_ms / 1000,
            "the server decodes as many rows as its memory allows: send more slowly",
            beyond=int(limits.in_flight_bytes * (SMALL_STRETCH - 1.0)),
        )

    def commit(self, request: pb.CommitRequest) -> pb.CommitAnswer:
        """One commit, durable when answered; the retry of a commit has the rows of its first answer."""
        if any(change.part for change in request.changes) or not is_small(_nbytes(beside(request))):
            answer = self._committed(request, BackgroundPriority(self._priority))
        else:
            with self._priority.under_way():
                answer = self._committed(request, ForegroundPriority(self._priority))
        if any(change.want_rows for change in request.changes):
            self._add_rows(request, answer)
        return answer

    def _committed(self, request: pb.CommitRequest, priority: RequestPriority) -> pb.CommitAnswer:
        with tracing.span("decode"):
            submitted = self._submit(request, priority)
        with tracing.span("write"):
            return self._answered(submitted.answer, request.sequence)

    def write(self, requests: Iterator[Sent]) -> Iterator[pb.CommitAnswer]:
        """Pipelined commits: requests are taken while earlier ones are written. An error ends the stream."""
        stream = self.stream()
        threading.Thread(target=_take_all, args=(stream, requests), name="write-stream", daemon=True).start()
        yield from waited(stream.answers(IDLE_SECONDS))

    def stream(self, known: Callable[[LakestoreError], LakestoreError] = lambda error: error) -> WriteStream:
        """A stream of pipelined commits whose requests are passed in; `known` cuts errors to what its client may
        know."""
        return WriteStream(
            self._submitted,
            self._answered,
            self._engine.refuse_when_draining,
            self._engine.limits.producer_answers,
            lambda error: known(self._engine.certain(error, for_leader=True)),
        )

    def upload_part(self, request: pb.UploadPartRequest) -> pb.PartInfo:
        """Store rows for a later commit, checked like a commit's rows; durable when answered."""
        change, engine = request.change, self._engine
        if change.part or change.want_rows:
            raise Invalid("an uploaded part cannot name a part or return rows: leave `part` and `want_rows` out")
        engine.check_timeline(request.timeline, "the commit that the part is for")
        engine.await_room(nbytes=0)
        with self._decoding.taken(DECODING_COPIES * request.ByteSize()) as claim:
            state = engine.view.writable(change.table, change.table_uuid)
            checked = change_of(
                state.versions,
                change,
                "",
                engine.limits,
                claim,
                arrival=lambda: Arrival(engine.now_us(), from_bridge=True),  # the commit says who sends them
            )
            change.table_uuid = state.table.uuid
            if not change.HasField("schema_id"):
                change.schema_id = state.table.schema_id
            change.crc32c = change.crc32c or crc32c(change.rows)
            rows = checked.batch.num_rows
            head = engine.parts.store(change, rows, request.owner, engine.now_us())
        return pb.PartInfo(part=head.id, rows=rows, bytes=head.nbytes, seconds=engine.limits.part_seconds)

    def drop_parts(self, request: pb.DropPartsRequest) -> pb.DropPartsAnswer:
        """Remove parts that no commit will name. Missing parts are ignored."""
        return pb.DropPartsAnswer(dropped=self._engine.parts.drop(request.parts, request.owner))

    def _submit(self, sent: Sent, priority: RequestPriority) -> Request:
        with ExitStack() as claims:
            prepared = self._prepared(sent, claims, priority)
            [queued] = self._queued([prepared], priority)
        return queued

    def _submitted(self, several: Sequence[Sent]) -> Iterator[Future[Answer]]:
        """Answers of requests of one stream, queued together as far as memory allows. The first refused request raises
        its error after the earlier ones are queued."""
        left, background = deque(several), BackgroundPriority(self._priority)
        while left:
            prepared: list[Request] = []
            refusal: Exception | None = None
            with ExitStack() as claims:
                while left and refusal is None:
                    try:
                        prepared.append(self._prepared(left[0], claims, background, waits=not prepared))
                        left.popleft()
                    except Exhausted as error:
                        if prepared:
                            break  # a holder of memory waits for nobody
                        refusal = error
                    except Exception as error:  # earlier requests are queued and answered whatever the error is
                        refusal = error
                for request in self._queued(prepared, background):
                    yield request.answer
            if refusal is not None:
                raise refusal

    def _queued(self, several: Sequence[Request], priority: RequestPriority) -> Iterator[Request]:
        """Look the keys up ahead of time and queue the requests in order. Yields the queued ones and stops at the first
        refusal. Small requests do not wait for the room of a large one."""
        queued = 0
        try:
            is_quick = all(is_small(request.nbytes) for request in several)
            with at_yield_points(None if is_quick else priority.give_way):
                yield_point()
                hints = iter(self._engine.foreseen([change.keys for request in several for change in request.changes]))
            for request in several:
                request.take_hints(hints)
            for _, alike in groupby(several, lambda request: is_small(request.nbytes)):
                together = list(alike)
                self._engine.submit(*together)
                queued += len(together)
                yield from together
        finally:
            for request in several[queued:]:
                request.answer.cancel()  # this releases its parts

    def _prepared(self, sent: Sent, claims: ExitStack, priority: RequestPriority, *, waits: bool = True) -> Request:
        """A request, decoded and checked; `claims` gets its turn and memory, for which it `waits`."""
        message = beside(sent)
        request = message.request
        self._check(request)
        parts = [change.part for change in request.changes if change.part]
        nbytes = _nbytes(message)
        if parts:
            self._engine.loop.refuse_when_following()  # before the warehouse is asked
            nbytes += self._engine.parts.bytes_of(parts)
            self._check_bytes(nbytes)
        if not is_small(nbytes):
            priority.give_way()
        claims.enter_context(self._engine.turn(nbytes, waits=waits))
        decoding = self._decoding.taken(DECODING_COPIES * nbytes, waits=waits, is_urgent=is_small(nbytes))
        claim = claims.enter_context(decoding)
        claims.enter_context(priority.coming())
        with ExitStack() as held:
            moves = register_updates(request, self._engine.limits)
            refusal: Refusal | None = None
            try:
                with at_yield_points(None if is_small(nbytes) else priority.give_way):
                    changes = self._changes(message, parts, moves, claim, held)
            except REFUSALS as error:
                if not (request.producer or moves.each):
                    self._count_refused(error)
                    raise
                changes, refusal = (), error  # it may be the retry of a commit from before an alteration
            prepared = Request.of(request, changes, refusal, moves)
            letting_go = held.pop_all()
            prepared.answer.add_done_callback(lambda _: letting_go.close())
        return prepared

    def _changes(
        self, message: CommitMessage, parts: list[str], moves: RegisterUpdates, claim: Claim, held: ExitStack
    ) -> tuple[TableChange, ...]:
        """The changes of a request; its parts stay reserved until `held` is closed."""
        request = message.request
        engine, spread = self._engine, request.producer or (moves.each[0].register if moves.each else "")
        view, limits = engine.view, engine.limits
        states = [view.writable(change.table, change.table_uuid) for change in request.changes]
        heads = engine.parts.reserve(parts, request.owner)
        uploaded: Iterator[bytes] = iter(())
        if parts:
            held.callback(engine.parts.release, parts)
            self._check_rows(sum(head.rows for head in heads.values()))
            uploaded = held.enter_context(closing(engine.parts.rows(list(heads.values()))))
        for state, change in zip(states, request.changes, strict=True):
            if change.part:
                engine.parts.check_named(change, state.table, heads[change.part])
        arrival = cache(lambda: Arrival.of(engine.now_us(), moves))
        changes = []
        for number, (state, change) in enumerate(zip(states, request.changes, strict=True)):
            sent, rows = change, None if change.part else message.rows_of(number)
            if change.part:
                sent = heads[change.part].change(next(uploaded))
                sent.table, sent.refuse_dead_letters = change.table, change.refuse_dead_letters
            changes.append(change_of(state.versions, sent, spread, limits, claim, rows, number, arrival))
        self._check_rows(sum(change.batch.num_rows for change in changes))
        if not any(change.outcome.letters or change.outcome.late for change in changes):
            return tuple(changes)
        source = Request.of(request, (), None, moves).source
        tables = RuleTables(self._dead_letters, lambda: engine.view.named(AUDIT).table)
        return with_letters(changes, source, request.owner, tables, arrival, limits)

    def _count_refused(self, error: Refusal) -> None:
        """Count rows that broke rules, if the commit loop will not see their request."""
        if isinstance(error, Violated):
            self._engine.totals.violations.add_refused(error)

    def _check_bytes(self, nbytes: int) -> None:
        most = self._engine.limits.commit_bytes
        if nbytes > most:
            raise Invalid(
                f"the rows of this commit take {nbytes} bytes, more than limits.commit_bytes={most}: write them in"
                " several commits, or raise the limit at the server"
            )

    def _check_rows(self, rows: int) -> None:
        most = self._engine.limits.commit_rows
        if rows > most:
            raise Invalid(
                f"this commit has {rows} rows, more than limits.commit_rows={most}: write them in several commits, or"
                " raise the limit at the server"
            )

    def _check(self, request: pb.CommitRequest) -> None:
        limits = self._engine.limits
        least = 0 if request.registers else 1
        if not least <= len(request.changes) <= limits.commit_changes:
            raise Invalid(f"a commit has {least} to {limits.commit_changes} changes, not {len(request.changes)}")
        if len(request.progress.encode()) > limits.progress_bytes:
            raise Invalid(f"the progress of a producer is longer than {limits.progress_bytes} bytes: keep it elsewhere")
        if any(change.part and change.want_rows for change in request.changes):
            raise Invalid("rows of a part are not returned: send them in the commit, or leave `want_rows` out")
        check_name(request.producer, limits)
        self._engine.check_timeline(request.timeline, "a register" if request.registers else "the producer")

    def _answered(self, future: Future[Answer], sequence: int) -> pb.CommitAnswer:
        try:
            answer = future.result(ANSWER_SECONDS)
        except TimeoutError as error:
            raise Unavailable("the commit was not answered in time: try again", applied="unknown") from error
        token = self._engine.view.token(answer.lsn)
        results = map(_message, answer.results)
        return pb.CommitAnswer(sequence=sequence, token=token, results=results, is_repeated=answer.is_repeated)


def _nbytes(message: CommitMessage) -> int:
    """Estimated memory of a request without its parts; the length of rows inside the message would copy them."""
    return message.nbytes + MOVE_BYTES * len(message.request.registers)


def _message(result: ChangeResult) -> pb.ChangeResult:
    counts = {name: getattr(result, name) for name in COUNTS}
    return pb.ChangeResult(table=result.table, schema_id=result.schema_id, **counts)


def _take_all(stream: WriteStream, requests: Iterator[Sent]) -> None:
    """Pass requests in while they are accepted; an error of their iterator ends the stream."""
    try:
        for request in requests:
            stream.take([request])
            if not stream.await_room():
                return
    except Exception as error:  # the boundary of the thread
        stream.end(errors.typed(error))
    finally:
        stream.end()


ANSWER_SECONDS = 60.0
Submit = Callable[[Sequence[Sent]], Iterator[Future[Answer]]]
"""The future answers of requests that are submitted together, up to the first refused one, whose error is raised."""
Answered = Callable[[Future[Answer], int], pb.CommitAnswer]
"""The message of an answer, or its error."""


class WriteStream:
    """The requests and answers of one stream; one thread takes, another answers."""

    def __init__(
        self,
        submit: Submit,
        answered: Answered,
        refuse_when_draining: Callable[[], None],
        most: int,
        known: Callable[[LakestoreError], LakestoreError] = lambda error: error,
    ) -> None:
        """`known` cuts an error to what the stream's client may know."""
        self._submit, self._answered, self._refuse_when_draining = submit, answered, refuse_when_draining
        self._known = known
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Answer] | LakestoreError, int]] = deque()
        """Without the rows: a client that does not read its answers must not hold them."""
        self._is_over = self._is_closed = self._is_taking = False
        self._leaves_next = False
        """Whether the server is going down and the client is told after the present requests."""
        self.bell = Bell()
        """Rung when there may be something to answer."""
        self.room = Bell()
        """Rung when an answer was given or the stream is closed."""

    @property
    def is_full(self) -> bool:
        """Whether the client must read answers before it may send more."""
        return len(self._waiting) >= self._most

    def has_room(self, in_hand: int) -> bool:
        """Whether another request may come in addition to `in_hand` unprocessed ones."""
        return len(self._waiting) + in_hand < self._most

    @property
    def takes(self) -> bool:
        """Whether the stream accepts more requests at any time."""
        return not (self._is_over or self._is_closed)

    def take(self, requests: Sequence[Sent]) -> None:
        with self._lock:
            if not self.takes:
                return
            self._is_taking = True
        try:
            for request, answer in zip(requests, self._submit(requests), strict=False):
                self._waiting.append((answer, request.sequence))
                answer.add_done_callback(lambda _: self.bell.set())
        except Exception as error:  # the client is told of any failure
            self.end(errors.typed(error))
        finally:
            with self._lock:
                self._is_taking = False
            if self._leaves_next:
                self.bell.set()

    def end(self, error: LakestoreError | None = None) -> None:
        """Accept no more requests, because of an error if there is one."""
        with self._lock:
            self._end(error)
        self.bell.set()

    def _end(self, error: LakestoreError | None) -> None:
        if not self._is_over and error is not None:
            self._waiting.append((error, 0))
        self._is_over = True

    def close(self) -> None:
        self._is_closed = True
        self.room.set()

    def await_room(self) -> bool:
        """Wait until another request may be taken; False if none will be."""
        while self.takes:
            self.room.clear()
            if not self.is_full:
                return True
            if self.takes:
                self.room.wait()
        return False

    def answers(self, poll: float | None = None) -> Generator[pb.CommitAnswer | Pause]:
        """The answers in the order of the requests; an idle stream is told when the server goes down. Without a bell
        the caller makes the stream check every `poll` seconds."""
        try:
            while True:
                self.bell.clear()
                if self._waiting:
                    yield from self._first()
                elif self._is_over:
                    return
                elif not self._leaves():
                    yield Pause(self.bell, poll)
        finally:
            self.close()

    def _leaves(self) -> bool:
        """Whether the server is going down and the client knows the fate of every request."""
        try:
            self._refuse_when_draining()
        except Unavailable as error:
            with self._lock:
                self._leaves_next = self._is_taking or bool(self._waiting)
                if self._leaves_next:
                    return False
                self._end(error)
            return True
        return False

    def _first(self) -> Generator[pb.CommitAnswer | Pause]:
        answer, sequence = self._waiting[0]
        if isinstance(answer, Future) and not answer.done():
            yield Pause(self.bell, ANSWER_SECONDS)
            if self.bell.is_set() or answer.done():
                return
        self._waiting.popleft()
        self.room.set()
        yield self._told(answer, sequence)

    def _told(self, answer: Future[Answer] | LakestoreError, sequence: int) -> pb.CommitAnswer:
        try:
            if isinstance(answer, LakestoreError):
                raise answer
            if not answer.done():
                raise Unavailable("the commit was not answered in time: try again", applied="unknown")
            return self._answered(answer, sequence)
        except LakestoreError as error:
            return pb.CommitAnswer(sequence=sequence, error=errors.error_message(self._known(error)))
