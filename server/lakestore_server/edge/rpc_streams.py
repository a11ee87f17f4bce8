"""Streams of answers: a stream has a thread while it makes a message and none while it waits.

A stream makes one message at a time: the next one when the client has taken the last, or when its pause is over. Its
rights are checked before each message and once a second while it is silent.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pyarrow as pa

from lakestore.errors import LakestoreError
from lakestore.wire import errors
from lakestore.wire.rpc import grpc
from lakestore_server.access.admission import RpcCall
from lakestore_server.commit.commit_verbs import WriteStream
from lakestore_server.commit.durable import Pause
from lakestore_server.edge.rpc_port import Rpc
from lakestore_server.host.quota import SLAB_BYTES_MIN, BufferPool
from lakestore_server.host.workers import Workers

STAY_SECONDS, STAY_BYTES = 0.05, 256 << 10
"""A thread waits this long for a client to take a message of this size, then makes the next one. Large messages made by
one thread, one after the other, reuse memory: made by different threads they cost four times the page faults and a
third more processor time."""
TOGETHER_MAX, TOGETHER_BYTES = 8, 4 << 20
"""Messages of a commit stream that come and are processed together; of larger ones two are in hand. Half of the cost of
a commit of 10,000 rows is per commit (measured), so waiting commits become one group."""
Failed = Callable[[Rpc, Exception], None]
"""Ends a call with an error."""


class AnswerStream:
    """The answers of one call, from a generator that yields messages and `Pause`s. Thread-safe."""

    def __init__(
        self,
        *,
        rpc: Rpc,
        call: RpcCall,
        items: Generator[Any],
        encode: Callable[[Any], bytes],
        workers: Workers,
        failed: Failed,
        ahead: int = 1,
    ) -> None:
        """`ahead` is the number of messages that the client may not have taken when the next one is made."""
        self._rpc, self._call, self._items, self._encode = rpc, call, items, encode
        self._workers, self._failed, self._ahead = workers, failed, ahead
        self._lock = threading.Lock()
        self._is_scheduled = self._is_due = self._is_over = False
        self._unsent = 0
        """Messages that the client has not taken."""
        self._sent_now = threading.Event()
        self._sent_now.set()
        self._is_whole = False
        """Whether the last message was made."""
        self._last: Any = None
        """The last message, referenced until the next one is made."""
        self._pause: Pause | None = None
        self._pause_ends = float("inf")

    @property
    def is_over(self) -> bool:
        """Whether the stream has ended and released everything."""
        return self._is_over

    def begin(self) -> None:
        self._rpc.add_callback(self.wake)
        self.wake()

    def wake(self) -> None:
        """Check, in some thread, whether there is work."""
        with self._lock:
            if self._is_scheduled:
                self._is_due = True
                return
            self._is_scheduled = True
        self._workers.run(self._run)

    def tick(self, now: float) -> None:
        """Wake the stream when its pause is over; end it when its client has lost the right."""
        if now >= self._pause_ends:
            self.wake()
        try:
            self._call.tick(now)
        except LakestoreError as error:
            self._failed(self._rpc, error)

    def _run(self) -> None:
        try:
            self._step()
            while self._stays():
                self._step()
        finally:
            with self._lock:
                self._is_scheduled, is_due, self._is_due = False, self._is_due, False
        if is_due:
            self.wake()

    def _stays(self) -> bool:
        """Whether a large message was taken at once, so that this thread makes the next one."""
        return self._last is not None and not self._is_over and self._sent_now.wait(STAY_SECONDS)

    def _step(self) -> None:
        if self._is_over:
            return
        if not self._rpc.is_active():
            self._end()
        elif self._unsent < self._ahead and not self._is_pausing():
            try:
                self._handle(self._call.next_item(self._items))
            except StopIteration:
                self._end()
                self._finish()
            except Exception as error:  # the edge: `failed` tells a defect from a refusal
                self._end()
                self._failed(self._rpc, self._call.told(error) if isinstance(error, LakestoreError) else error)

    def _is_pausing(self) -> bool:
        pause = self._pause
        if pause is None:
            return False
        if not pause.bell.is_set() and time.monotonic() < self._pause_ends:
            return True
        self._pause, self._pause_ends = None, float("inf")
        return False

    def _handle(self, item: Any) -> None:
        if not isinstance(item, Pause):
            data = self._encode(self._call.answer(item))
            self._last = item if len(data) >= STAY_BYTES else None
            with self._lock:
                self._unsent += 1
                if self._unsent >= self._ahead:
                    self._sent_now.clear()
            self._rpc.send(data, self._sent)
            return
        self._last = None
        if item.seconds is not None:
            self._pause_ends = time.monotonic() + item.seconds
        self._pause = item
        item.bell.listener = self.wake
        if item.bell.is_set():
            self.wake()

    def _sent(self) -> None:
        with self._lock:
            self._unsent -= 1
            is_last = self._is_whole and not self._unsent
        self._sent_now.set()
        if is_last:
            self._rpc.finish(grpc.StatusCode.OK)
        self.wake()

    def _finish(self) -> None:
        """End the call when its last message is sent: the end of a call drops queued messages."""
        with self._lock:
            self._is_whole = True
            is_sent = not self._unsent
        if is_sent:
            self._rpc.finish(grpc.StatusCode.OK)

    def _end(self) -> None:
        self._is_over, self._pause, self._pause_ends, self._last = True, None, float("inf"), None
        self._items.close()


class Intake:
    """The requests of a commit stream, in order; none while too many wait for answers. Requests that have come are
    processed together in one turn. More may come meanwhile if the port has room."""

    def __init__(
        self,
        *,
        rpc: Rpc,
        stream: WriteStream,
        request: Callable[[bytes | pa.Buffer], Any],
        workers: Workers,
        ahead: threading.Semaphore,
        slabs: BufferPool,
    ) -> None:
        """`ahead` is the port's quota for messages that come while earlier ones of their stream are processed."""
        self._rpc, self._stream, self._request, self._workers = rpc, stream, request, workers
        self._ahead, self._slabs = ahead, slabs
        self._lock = threading.Lock()
        self._is_asking = False
        self._taking: Sequence[bytes | pa.Buffer] = ()
        """Messages that a thread processes now."""
        self._came: deque[bytes | pa.Buffer] = deque()
        """Messages that wait to be processed."""
        self._ahead_held = 0
        """Quota of the waiting messages and of the one that is coming."""
        self._has_ended = False
        """Whether no more will come."""
        stream.room.listener = self.ask

    def ask(self) -> None:
        """Ask for the next message, if it may come and none is coming."""
        with self._lock:
            in_hand = len(self._taking) + len(self._came)
            if self._is_asking or self._has_ended or not self._stream.takes or not self._stream.has_room(in_hand):
                return
            if in_hand:
                if in_hand > 1 and not self._is_small(in_hand):
                    return
                if not self._ahead.acquire(blocking=False):
                    return
                self._ahead_held += 1
            self._is_asking = True
        self._rpc.receive(self.came)

    def _is_small(self, in_hand: int) -> bool:
        """Whether these messages are so small together that one more pays, because each turn costs the same."""
        return in_hand < TOGETHER_MAX and sum(map(len, (*self._taking, *self._came))) < TOGETHER_BYTES

    def came(self, data: bytes | None) -> None:
        """A message, or the end; in the port's thread, which thereby gets the same memory for the next one."""
        large = self._slabs.held(data) if data is not None and len(data) >= SLAB_BYTES_MIN else None
        with self._lock:
            self._is_asking = False
            self._has_ended = data is None
            if data is not None:
                self._came.append(data if large is None else large)
            begins = not self._taking and bool(self._came)
            if begins:
                self._take_over()
            is_over = self._has_ended and not self._taking
        if begins:
            self._workers.run(self._take_all)
        elif is_over:
            self._stream.end()
        else:
            self.ask()

    def _take_over(self) -> None:
        """Start processing the waiting messages. A message that comes meanwhile keeps its quota. Under the lock."""
        self._taking = tuple(self._came)
        self._came.clear()
        free = self._ahead_held - min(self._ahead_held, int(self._is_asking and bool(self._taking)))
        if free:
            self._ahead.release(free)
            self._ahead_held -= free

    def _take_all(self) -> None:
        taking = self._taking
        while taking:
            self.ask()
            self._take(taking)
            with self._lock:
                self._take_over()
                taking, is_over = self._taking, self._has_ended and not self._taking
            if is_over:
                self._stream.end()
        self.ask()

    def _take(self, messages: Sequence[bytes | pa.Buffer]) -> None:
        requests: list[Any] = []
        failure: Exception | None = None
        for data in messages:
            try:
                requests.append(self._request(data))
            except Exception as error:  # the edge, as for every call
                failure = error
                break
        try:
            self._stream.take(requests)
        except Exception as error:  # a defect of the stream itself: its client must be told
            failure = error
        if failure is not None:
            self._stream.end(errors.typed(failure))
