"""A stream of commits of one client: requests are taken while earlier ones are being written, answered in their order.

The first request that is refused, and every error of its making, is the last one taken; what was taken is answered.
A client that does not read its answers holds no rows: the room for answers ends, and no more requests are taken.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future

from lakestore.errors import LakestoreError, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors
from lakestore.wire.commit_message import Sent
from lakestore_server.commit.wakeups import Bell, Pause
from lakestore_server.state.commit_record import Answer

ANSWER_SECONDS = 60.0
Submit = Callable[[Sequence[Sent]], Iterator[Future[Answer]]]
"""The answers to come of requests that are submitted together, up to the first refused one, whose error is raised."""
Answered = Callable[[Future[Answer], int], pb.CommitAnswer]
"""The message of an answer that is there, or its error."""


class WriteStream:
    """The requests and answers of one stream; one thread takes, another one answers."""

    def __init__(
        self,
        submit: Submit,
        answered: Answered,
        refuse_when_draining: Callable[[], None],
        most: int,
        known: Callable[[LakestoreError], LakestoreError] = lambda error: error,
    ) -> None:
        """`known` gives an error as the client of the stream may know it."""
        self._submit, self._answered, self._refuse_when_draining = submit, answered, refuse_when_draining
        self._known = known
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Answer] | LakestoreError, int]] = deque()
        """Without the rows: a client that does not read its answers must not hold them."""
        self._is_over = self._is_closed = self._is_taking = False
        self._leaves_next = False
        """Whether the server goes, and the client is told once what is being taken is."""
        self.bell = Bell()
        """Rung when there may be something to answer."""
        self.room = Bell()
        """Rung when an answer was given, or the stream is closed."""

    @property
    def is_full(self) -> bool:
        """Whether the client is to read answers before it may send more."""
        return len(self._waiting) >= self._most

    def has_room(self, in_hand: int) -> bool:
        """Whether another request may come beside so many that have, and are not taken yet."""
        return len(self._waiting) + in_hand < self._most

    @property
    def takes(self) -> bool:
        """Whether more requests are welcome at some time."""
        return not (self._is_over or self._is_closed)

    def take(self, requests: Sequence[Sent]) -> None:
        """Submit the next requests."""
        with self._lock:
            if not self.takes:
                return
            self._is_taking = True
        try:
            for request, answer in zip(requests, self._submit(requests), strict=False):
                self._waiting.append((answer, request.sequence))
                answer.add_done_callback(lambda _: self.bell.set())
        except Exception as error:  # the client is told, whatever fails
            self.end(errors.typed(error))
        finally:
            with self._lock:
                self._is_taking = False
            if self._leaves_next:
                self.bell.set()

    def end(self, error: LakestoreError | None = None) -> None:
        """No more requests come, because of an error if there is one."""
        with self._lock:
            self._end(error)
        self.bell.set()

    def _end(self, error: LakestoreError | None) -> None:
        if not self._is_over and error is not None:
            self._waiting.append((error, 0))
        self._is_over = True

    def close(self) -> None:
        """Nobody waits for answers any more."""
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
        """The answers, in the order of the requests; an idle stream is told when the server goes.

        A caller that does not ring the bell then has the stream look every `poll` seconds.
        """
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
        """Whether the server goes, and has taken no request of which the client was told nothing."""
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
        """The answer to the first request that has none, if it comes before a pause is over."""
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
            return pb.CommitAnswer(sequence=sequence, error=errors.told(self._known(error)))
