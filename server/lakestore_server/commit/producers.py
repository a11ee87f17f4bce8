"""Verbs of producers: open, commit, write a stream of commits."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import fields

import pyarrow as pa

from lakestore import limits
from lakestore.errors import Internal, Invalid, LakestoreError, Unavailable
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.commit.request import Request, change_of
from lakestore_server.host.permits import Permits
from lakestore_server.state.commit_record import Answer, ChangeResult, CommitRecord, ProducerCommit
from lakestore_server.state.state import State

ANSWER_SECONDS = 60.0
IDLE_SECONDS = 1.0
DECODING_COPIES = 3
"""Copies of a request's bytes that decoding makes: the rows, cast, and in the order of their buckets."""

_COUNTS = tuple(field.name for field in fields(ChangeResult))
"""The message has the same names."""

_Waiting = tuple[Future[Answer] | LakestoreError, int]
"""Without the rows: a client that does not read its answers must not hold them."""


class Writes:
    """Commits. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        limits = engine.limits
        self._decoding = Permits(
            limits.in_flight_bytes,
            limits.queue_wait_ms / 1000,
            "the server decodes as many rows as its memory allows: send more slowly",
        )

    def open_producer(self, request: pb.OpenProducerRequest) -> pb.ProducerInfo:
        """Take a producer over: a new epoch fences whoever wrote under that name before."""
        if not request.producer:
            raise Invalid("a producer needs a name")
        check_name(request.producer, self._engine.limits)

        def plan(state: State, record: CommitRecord) -> pb.ProducerInfo:
            known = state.producers.get(request.producer)
            epoch = known.epoch + 1 if known else 1
            if epoch > limits.EPOCH_MAX:
                raise Invalid(f"producer {request.producer!r} has used up its epochs: take another name")
            record.producers.append(ProducerCommit(request.producer, epoch))
            return pb.ProducerInfo(epoch=epoch, last_sequence=0, progress=known.progress if known else "")

        return self._engine.operate(plan).result

    def commit(self, request: pb.CommitRequest) -> pb.CommitAnswer:
        """One commit, durable when answered."""
        return self._answered(self._submit(request).answer, request.sequence)

    def write(self, requests: Iterator[pb.CommitRequest]) -> Iterator[pb.CommitAnswer]:
        """Pipelined commits: requests are taken while earlier ones are being written. An error ends the stream."""
        waiting: queue.Queue[_Waiting | None] = queue.Queue(self._engine.limits.producer_answers)
        stopped = threading.Event()

        def take() -> None:
            try:
                for request in requests:
                    if stopped.is_set():
                        return
                    waiting.put((self._submit(request).answer, request.sequence))
            except LakestoreError as error:
                waiting.put((error, 0))
            except (pa.ArrowException, ValueError, TypeError, LookupError, MemoryError) as error:
                waiting.put((Internal(f"a defect of the server: {error}", applied="unknown"), 0))
            finally:
                waiting.put(None)

        threading.Thread(target=take, name="write-stream", daemon=True).start()
        try:
            while (item := self._next(waiting)) is not None:
                yield self._streamed(*item)
        finally:
            stopped.set()
            with suppress(queue.Empty):  # let a thread that waits for room see that it is over
                while True:
                    waiting.get_nowait()

    def _next(self, waiting: queue.Queue[_Waiting | None]) -> _Waiting | None:
        """The next request to answer; an idle stream is told when the server goes."""
        while True:
            with suppress(queue.Empty):
                return waiting.get(timeout=IDLE_SECONDS)
            try:
                self._engine.refuse_when_draining()
            except Unavailable as error:
                return error, 0

    def _streamed(self, answer: Future[Answer] | LakestoreError, sequence: int) -> pb.CommitAnswer:
        try:
            if isinstance(answer, LakestoreError):
                raise answer
            return self._answered(answer, sequence)
        except LakestoreError as error:
            told = pb.Error(
                kind=error.kind, message=error.message, applied=error.applied, retry_after_seconds=error.retry_after
            )
            return pb.CommitAnswer(sequence=sequence, error=told)

    def _submit(self, request: pb.CommitRequest) -> Request:
        self._check(request)
        nbytes = sum(len(change.rows) for change in request.changes)
        self._engine.await_room(nbytes=nbytes)
        with self._decoding.taken(DECODING_COPIES * nbytes) as claim:
            view = self._engine.view
            states = [view.named(change.table) for change in request.changes]
            refusal: Invalid | None = None
            try:
                changes = tuple(
                    change_of(state.versions, change, request.producer, self._engine.limits, claim)
                    for state, change in zip(states, request.changes, strict=True)
                )
            except Invalid as error:
                if not request.producer:
                    raise
                changes, refusal = (), error  # it may be the retry of a commit from before the table was altered
            prepared = Request(changes, request.producer, request.epoch, request.sequence, request.progress, refusal)
            self._engine.submit(prepared)
        return prepared

    def _check(self, request: pb.CommitRequest) -> None:
        limits = self._engine.limits
        if not 1 <= len(request.changes) <= limits.commit_changes:
            raise Invalid(f"a commit has 1 to {limits.commit_changes} changes, not {len(request.changes)}")
        if len(request.progress.encode()) > limits.progress_bytes:
            raise Invalid(f"the progress of a producer is longer than {limits.progress_bytes} bytes: keep it elsewhere")
        check_name(request.producer, limits)

    def _answered(self, future: Future[Answer], sequence: int) -> pb.CommitAnswer:
        try:
            answer = future.result(ANSWER_SECONDS)
        except TimeoutError as error:
            raise Unavailable("the commit was not answered in time: try again", applied="unknown") from error
        results = [pb.ChangeResult(**{name: getattr(result, name) for name in _COUNTS}) for result in answer.results]
        return pb.CommitAnswer(sequence=sequence, token=self._engine.view.token(answer.lsn), results=results)


def check_name(producer: str, limits: Limits) -> None:
    """Refuse a name that is too long to be kept with every commit."""
    if len(producer) > limits.name_chars:
        raise Invalid(f"the producer's name has {len(producer)} characters, more than {limits.name_chars}")
