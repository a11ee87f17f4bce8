"""Objects in a store as a log of messages: `log/<number>`, each written once by a put that never replaces.

- Several puts are in flight. A message is stored once every lower number of its sender is known to be stored.
- Numbers are removed in blocks of `BLOCK`, in ascending order. Before the first object of a block is removed, the
  object `closed/<block>` is put, and it stays. A sender asks for it after each put, and a reader after each read. So a
  server that was paused, and puts a number that was removed, acknowledges nothing, and nobody applies it.
- A sender asks now and then whether the journal is still the one that it opened. A bucket that was emptied, by hand or
  by a lifecycle rule, would else take its objects for ever, and no reader would find them.
- What is acknowledged depends on no clock.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from lakestore.errors import NewerFormat, NotFound, Unavailable
from lakestore_server.journals.log import SenderSlot
from lakestore_server.journals.object_format import messages_of, name_of, object_of, sender_of
from lakestore_server.journals.object_store import Store, StoreError, check_races
from lakestore_server.state.commit_record import Unknown
from lakestore_server.state.judge import ForeignLog

log = logging.getLogger("lakestore.journal")
Answer = TypeVar("Answer")
IDENTITY = "journal.json"
BEGINNING = "beginning"
"""The object with the position before which the first removal removed all messages. It counts in the first block."""
FORMAT = 1
INDEX_BITS = 16
"""A position is the number of an object, and in its last bits the index of a message in it."""
MESSAGES_MAX = 10_000
PART_BYTES = 2_000_000
OBJECT_BYTES = 4_000_000
"""An object that is being filled is put once it has so many bytes."""
ROOM_BYTES = 64 << 20
"""The most bytes of messages that wait or are in flight."""
BLOCK = 1_024
PUTS = 8
"""Puts in flight, with the question that follows each of them."""
READS = 16
LOSSES = 8
"""A sender that loses so many numbers one after the other leaves numbers out, more with each further loss."""
SKIP_MAX = 64
GAP_SECONDS = 0.5
"""The time after which a sender awaits nobody at the numbers that it left out."""
AGAIN_SECONDS, AGAIN_SECONDS_MAX = 0.05, 2.0
"""The first pause before a request is repeated, and the longest one."""
LOOK_SECONDS, LOOK_SECONDS_MAX = 0.02, 0.25
"""The first pause between looks for the next object, and the longest one. A look costs a request."""
ASKED_AGAIN = 3
"""Repeats of the question whether an object is there, at once after an error."""
ASK_SECONDS = 5.0
"""The pause between questions whether the next number is still in the log, while nothing comes."""
IDENTITY_SECONDS = 10.0
"""The pause between a sender's questions whether the journal is still there."""
OWN_BYTES = 16 << 20
"""The most bytes of a sender's newest objects that are kept for the next gap. A reader fetches earlier ones."""
OPEN_SECONDS = 15.0
"""The time in which a store must answer whether its journal is there, and from where to where."""
SILENT_SECONDS = 30.0
"""The longest wait for an answer of a store whose log is read to its end."""


def create(store: Store, place: str) -> bool:
    """Create the journal if there is none; returns whether it is new."""
    check_races(store, place)
    text = json.dumps({"format": FORMAT, "id": secrets.token_hex(16)}).encode()
    try:
        return store.put_new(IDENTITY, text)
    except StoreError as error:
        raise Unavailable(str(error)) from error


def _parts(position: int) -> tuple[int, int]:
    """(number of the object, index in it)."""
    return position >> INDEX_BITS, position & ((1 << INDEX_BITS) - 1)


def _closed(block: int) -> str:
    return f"closed/{block:020}"


class ObjectLog:
    """`Log` in a store."""

    kind, part_bytes = "object", PART_BYTES

    def __init__(
        self,
        store: Store,
        place: str,
        *,
        group_seconds: float = 0.02,
        keeps_all: bool = False,
        block: int = BLOCK,
        races: bool = True,
    ) -> None:
        """`place` is the URL, for errors. `keeps_all`: nothing is removed. `races`: a first start checks the store
        by `check_races`."""
        self._keeps_all = keeps_all
        self._objects = _Objects(store, place, block)
        self._place, self._races = place, races
        self._senders = SenderSlot(lambda: _Sender(self._objects, self._reader, group_seconds))
        self._reader = _Reader(self._objects, self._own, self._gap, self.confirm)
        self._is_swept = False
        """Whether the last closed block has no objects any more."""

    def open(self, known: str) -> str:
        """Check the store at the first start on it, and return the journal's id."""
        identity = self._answer(self._objects.identity)
        if not identity:
            raise NotFound(f"there is no journal at {self._place}: create it by lakestore init-journal")
        if known and identity != known:
            raise ForeignLog(
                f"the journal at {self._place} was created again (its id is {identity}, not {known}): name the journal"
                " that this data folder follows, or an empty folder"
            )
        if not known and self._races:
            check_races(self._objects.store, self._place)
            self._races = False
        self._objects.known = identity
        return identity

    def _answer(self, question: Callable[[], Answer]) -> Answer:
        """The answer to a question to the store, also if the store does not answer at once."""
        deadline = time.monotonic() + OPEN_SECONDS
        while True:
            try:
                return question()
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            time.sleep(LOOK_SECONDS_MAX)

    def confirm(self) -> None:
        """`ForeignLog` if the journal is gone or was created again."""
        try:
            problem = self._objects.loss()
        except Unavailable as error:
            log.debug("the journal's identity is not confirmed: %s", error)
            return
        if problem:
            raise ForeignLog(problem)

    def bounds(self) -> tuple[int, int]:
        """(position of the first message, position of the next one) of what is there."""
        return self._answer(self._bounds)

    def _bounds(self) -> tuple[int, int]:
        try:
            first = self._objects.first()
            end = self._objects.end(max(first >> INDEX_BITS, self._reader.front))
        except StoreError as error:
            raise Unavailable(str(error)) from error
        return first, end << INDEX_BITS

    def read(self, start: int, seconds: float, *, to_end: bool = False) -> Iterator[tuple[int, bytes | None]]:
        """(position, message) of the messages that are there."""
        return self._reader.to_end(start) if to_end else self._reader.batch(start, seconds)

    def stop_reading(self) -> None:
        """Nothing is fetched between reads."""

    def prepare(self) -> None:
        """Make a sender."""
        self._senders.sender()

    def _gap(self, number: int) -> range:
        sender = self._senders.present
        return range(0) if sender is None else sender.gap(number)

    def _own(self, number: int) -> list[bytes] | None:
        sender = self._senders.present
        return None if sender is None else sender.messages(number)

    def send(self, message: bytes, stored: Callable[[int], None]) -> bool:
        return self._senders.sender().send(message, stored)

    def poll(self, seconds: float) -> None:
        self._senders.sender().poll(seconds)

    def stop_sending(self) -> None:
        self._senders.stop()

    def remove_before(self, position: int) -> None:
        """Remove the whole blocks before a position. The first call, and the one after a failure, also remove the last
        closed block once more: its removal may be unfinished. As long as the first block stays, an object says where
        the log begins in it."""
        if self._keeps_all:
            return
        end = (position >> INDEX_BITS) // self._objects.block
        try:
            first = self._objects.first_open()
            if position and not first:
                self._objects.begin_at(position)
            if first and not self._is_swept:
                self._objects.remove(first - 1)
            self._is_swept = True
            for block in range(first, end):
                self._objects.remove(block)
        except StoreError as error:
            self._is_swept = False
            raise Unavailable(str(error)) from error

    def close(self) -> None:
        self.stop_sending()
        self._reader.close()


@dataclass(slots=True)
class _Objects:
    """The objects of a journal."""

    store: Store
    place: str
    block: int
    known: str = ""
    """The journal's id; empty before it was opened."""
    has_begun: bool = False
    """Whether an object is known to say where the log begins."""

    def identity(self) -> str:
        """The journal's id as it is now; empty without a journal."""
        try:
            data = self.store.get(IDENTITY)
        except StoreError as error:
            raise Unavailable(f"{error}: do address, bucket and keys fit?") from error
        if data is None:
            return ""
        try:
            about = json.loads(data)
            version, identity = int(about["format"]), str(about["id"])
        except (ValueError, KeyError, TypeError) as error:
            raise ForeignLog(f"{self.place}/{IDENTITY} is not the identity of a journal") from error
        if version > FORMAT:
            raise NewerFormat(f"the journal at {self.place} is of a newer release (format {version})")
        return identity

    def loss(self) -> str:
        """A sentence if the journal that was opened is gone or was created again, else empty."""
        identity = self.identity()
        if not self.known or identity == self.known:
            return ""
        what = f"was created again (its id is {identity})" if identity else "is gone"
        return f"the journal at {self.place} {what}"

    def is_closed(self, number: int) -> bool:
        """Whether the number, and all lower ones, may have been removed by now."""
        return self._has(_closed(number // self.block))

    def first_open(self) -> int:
        """The first block that is not closed. The closed ones are 0 and all up to it."""
        return self._first_absent(_closed, 0)

    def first(self) -> int:
        """The position of the first message."""
        block = self.first_open()
        if block:
            return block * self.block << INDEX_BITS
        text = self.store.get(BEGINNING)
        if text is None:
            return 0
        if not text.isdigit():
            raise ForeignLog(f"{self.place}/{BEGINNING} is not a position")
        return int(text)

    def begin_at(self, position: int) -> None:
        """Say once that the messages before a position of the first block are removed. They stay with their block: who
        has a place there follows on."""
        if not self.has_begun:
            self.store.put_new(BEGINNING, b"%d" % position)
            self.has_begun = True

    def end(self, first: int) -> int:
        """A number from `first` on that has no object, where the number before it has one."""
        return self._first_absent(name_of, first)

    def _first_absent(self, name: Callable[[int], str], low: int) -> int:
        """A number from `low` on without an object of this name; few questions find it."""
        step = 1
        while self._has(name(low + step - 1)):
            low, step = low + step, step * 2
        high = low + step - 1
        while low < high:
            middle = (low + high) // 2
            if self._has(name(middle)):
                low = middle + 1
            else:
                high = middle
        return low

    def _has(self, name: str) -> bool:
        """Whether an object is there. The question is repeated a few times, because much is asked again without it."""
        for _ in range(ASKED_AGAIN):
            try:
                return self.store.has(name)
            except StoreError as error:
                log.debug("the journal in a bucket asks again after an error: %s", error)
        return self.store.has(name)

    def fill(self, number: int) -> None:
        """Put an empty object at a number that nobody has taken."""
        if self.store.put_new(name_of(number), object_of(number, 0, [])) and self.is_closed(number):
            self.store.remove([name_of(number)])

    def remove(self, block: int) -> None:
        """Close a block, whose lower ones are closed, and remove its objects."""
        if not self.store.put_new(_closed(block), b"") and not self.store.has(_closed(block)):
            raise StoreError(f"block {block} of {self.place} could not be closed")
        names = [name_of(number) for number in range(block * self.block, (block + 1) * self.block)]
        self.store.remove(names)


@dataclass(slots=True)
class _Waiting:
    """A message, and the one who waits for its position."""

    data: bytes
    stored: Callable[[int], None]


@dataclass(slots=True, eq=False)
class _Flight:
    """The messages of one object on their way."""

    number: int
    waiting: list[_Waiting]
    is_over: bool = False
    """Whether the outcome of the put is known."""
    is_ours: bool = False
    """The object at the number is this one, and its block was open after it was put."""


class _Sender:
    """Sends until its first failure. Its threads end with it."""

    def __init__(self, objects: _Objects, reader: _Reader, group_seconds: float) -> None:
        self._objects, self._reader, self._group_seconds = objects, reader, group_seconds
        self._id = secrets.randbits(63) + 1
        self._lock = threading.Lock()
        self._due, self._told = threading.Condition(self._lock), threading.Condition(self._lock)
        """Something to put, for the threads; something to tell, for `poll`."""
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = self._bytes = 0
        """Bytes of the messages that wait, and of all whose outcome is not told."""
        self._began_at = 0.0
        """The time of the first message that waits."""
        self._flights: deque[_Flight] = deque()
        """Objects on their way, by number."""
        self._next = 0
        """The lowest number that was not tried."""
        self._losses = 0
        """Numbers in a row that other servers have taken."""
        self._left_out: deque[tuple[range, float]] = deque()
        """Numbers that were left out, and when."""
        self._own: dict[int, list[bytes]] = {}
        """Messages of this server that are stored and were not read yet, so nobody fetches them. A leader without gaps
        reads none of its own, so only the newest ones stay."""
        self._own_bytes = 0
        self._identity_at = float("-inf")
        """The time of the last answer that the journal is still there."""
        self._answers: deque[tuple[Callable[[int], None], int]] = deque()
        self._threads = self._idle = 0
        self._unknown: Unknown | None = None
        self._is_over = False

    def send(self, message: bytes, stored: Callable[[int], None]) -> bool:
        with self._lock:
            if self._bytes and self._bytes + len(message) > ROOM_BYTES:
                return False
            if not self._waiting:
                self._began_at = time.monotonic()
            self._waiting.append(_Waiting(message, stored))
            self._waiting_bytes += len(message)
            self._bytes += len(message)
            if len(self._waiting) == 1 or self._is_full():
                self._wake()
        return True

    def _wake(self) -> None:
        """Let one more thread look whether there is something to put."""
        if not self._idle and self._threads < PUTS:
            self._threads += 1
            threading.Thread(target=self._work, name="journal-puts", daemon=True).start()
        self._due.notify()

    def _is_full(self) -> bool:
        return self._waiting_bytes >= OBJECT_BYTES or len(self._waiting) >= MESSAGES_MAX

    def poll(self, seconds: float) -> None:
        with self._lock:
            if seconds and not self._answers and self._unknown is None:
                self._told.wait_for(lambda: bool(self._answers) or self._unknown is not None, seconds)
            answers, self._answers = self._answers, deque()
            unknown = self._unknown
        for stored, position in answers:
            stored(position)
        if unknown is not None:
            raise unknown

    def messages(self, number: int) -> list[bytes] | None:
        """The messages of an object that this sender has stored; forgets the objects before it."""
        with self._lock:
            for earlier in [each for each in self._own if each < number]:
                self._forget(earlier)
            return self._own.get(number)

    def gap(self, number: int) -> range:
        """The numbers from a free one on that this sender left out, and at which nobody is awaited any more."""
        with self._lock:
            while self._left_out and self._left_out[0][0].stop <= number:
                self._left_out.popleft()
            numbers, since = self._left_out[0] if self._left_out else (range(0), 0.0)
        is_due = number in numbers and time.monotonic() - since >= GAP_SECONDS
        return range(number, numbers.stop) if is_due else range(0)

    def _forget(self, number: int) -> None:
        self._own_bytes -= sum(map(len, self._own.pop(number)))

    def stop(self) -> None:
        with self._lock:
            self._is_over = True
            self._due.notify_all()

    # The threads that put.

    def _work(self) -> None:
        try:
            while (flight := self._take()) is not None:
                is_ours = self._put(flight)
                if is_ours is not None:
                    self._land(flight, is_ours=is_ours)
        except Exception as error:  # the boundary of the thread: nothing may be acknowledged after it
            self._fail(f"the object store's client failed: {error!r}")
            raise

    def _take(self) -> _Flight | None:
        """The next object to put, once there is one; None at the end."""
        with self._lock:
            while not (self._is_over or self._unknown):
                wait = self._wait()
                if wait is not None and wait <= 0:
                    return self._fill()
                self._idle += 1
                self._due.wait(wait)
                self._idle -= 1
            return None

    def _wait(self) -> float | None:
        """Seconds until the messages that wait should be put; None until something changes."""
        is_lost = any(flight.is_over and not flight.is_ours for flight in self._flights)
        if not self._waiting or is_lost:
            return None
        if not self._flights or self._is_full():
            return 0.0
        return self._began_at + self._group_seconds - time.monotonic()

    def _fill(self) -> _Flight:
        messages: list[_Waiting] = []
        room = OBJECT_BYTES
        while self._waiting and room > 0 and len(messages) < MESSAGES_MAX:
            messages.append(self._waiting.popleft())
            room -= len(messages[-1].data)
            self._waiting_bytes -= len(messages[-1].data)
        skipped = 0
        if self._losses >= LOSSES:  # a busy leader takes every number before a message of this server comes there
            skipped = min(1 << (self._losses - LOSSES), SKIP_MAX)
        first = max(self._next, self._reader.front)
        if skipped:
            self._left_out.append((range(first, first + skipped), time.monotonic()))
        flight = _Flight(first + skipped, messages)
        self._next = flight.number + 1
        self._flights.append(flight)
        if self._waiting:
            self._began_at = time.monotonic()
            self._wake()
        return flight

    def _put(self, flight: _Flight) -> bool | None:
        """Put an object until it is known whether it is at its number; None if this sender ends before."""
        data = object_of(flight.number, self._id, [each.data for each in flight.waiting])
        pause = AGAIN_SECONDS
        while True:
            try:
                is_ours = self._is_put(flight.number, data)
                if is_ours and (loss := self._loss()):
                    self._fail(loss)
                    return None
                if self._objects.is_closed(flight.number):
                    self._void(flight.number)
                    return None
                if is_ours is not None:
                    return is_ours
            except StoreError as error:
                log.log(logging.WARNING if pause == AGAIN_SECONDS else logging.DEBUG, "a put is repeated: %s", error)
            time.sleep(pause)
            if self._is_over or self._unknown is not None:
                return None
            pause = min(pause * 2, AGAIN_SECONDS_MAX)

    def _is_put(self, number: int, data: bytes) -> bool | None:
        """Whether the object at a number is this one; None if there is none, so the put must be repeated."""
        store = self._objects.store
        if store.put_new(name_of(number), data):
            return True
        there = store.get(name_of(number))
        return None if there is None else sender_of(there) == (number, self._id)

    def _loss(self) -> str:
        """Why nobody may read what was put: the journal is gone. Asked at the first put and then now and then."""
        now = time.monotonic()
        if now - self._identity_at < IDENTITY_SECONDS:
            return ""
        try:
            loss = self._objects.loss()
        except Unavailable as error:
            raise StoreError(error.message) from error
        if not loss:
            self._identity_at = now
        return loss

    def _void(self, number: int) -> None:
        """The number was removed, so nobody knows whether an earlier put of this object was read by others."""
        self._fail(f"the objects up to number {number} were removed while this server put one: another server leads")
        try:
            there = self._objects.store.get(name_of(number))
            if there is not None and sender_of(there) == (number, self._id):
                self._objects.store.remove([name_of(number)])
        except StoreError as error:
            log.debug("a void object stays: %s", error)

    def _land(self, flight: _Flight, *, is_ours: bool) -> None:
        """Answer for the objects whose lower ones are known. After a loss, send all that follows once more."""
        with self._lock:
            flight.is_over, flight.is_ours = True, is_ours
            self._losses = 0 if is_ours else self._losses + 1
            self._reader.hurry()
            while self._flights and self._flights[0].is_ours:
                self._answer(self._flights.popleft())
            if self._flights and all(each.is_over for each in self._flights):
                self._send_again()
            self._told.notify_all()

    def _answer(self, flight: _Flight) -> None:
        self._own[flight.number] = [each.data for each in flight.waiting]
        self._own_bytes += sum(map(len, self._own[flight.number]))
        while self._own_bytes > OWN_BYTES:
            self._forget(next(iter(self._own)))
        for index, each in enumerate(flight.waiting):
            self._bytes -= len(each.data)
            self._answers.append((each.stored, (flight.number << INDEX_BITS) + index))

    def _send_again(self) -> None:
        """Let the messages from the first lost number on wait once more. Those that are stored at a higher number are
        void, because the messages before them are missing there."""
        for flight in reversed(self._flights):
            self._waiting.extendleft(reversed(flight.waiting))
            self._waiting_bytes += sum(len(each.data) for each in flight.waiting)
        self._flights.clear()
        self._began_at = 0.0

    def _fail(self, text: str) -> None:
        with self._lock:
            self._unknown = self._unknown or Unknown(text)
            self._due.notify_all()
            self._told.notify_all()


@dataclass(eq=False)
class _Reader:
    """Reads objects in the order of their numbers, for one thread at a time."""

    objects: _Objects
    own: Callable[[int], list[bytes] | None]
    """The messages of an object of this server that is stored and not read yet."""
    gap: Callable[[int], range]
    """The numbers from a free one on that this server must fill, because it left them out."""
    confirm: Callable[[], None]
    front: int = 0
    """The lowest number that was not seen."""
    _window: int = 1
    """Objects that are fetched at once."""
    _fetched: dict[int, list[bytes]] = field(default_factory=dict)
    """Objects whose block was open after they were fetched, and that may not be read to their end."""
    _pool: ThreadPoolExecutor | None = None
    _look_at: float = 0.0
    _pause: float = LOOK_SECONDS
    _ask_at: float = 0.0

    def hurry(self) -> None:
        """Something was stored, so the next look need not wait."""
        self._look_at = 0.0

    def batch(self, start: int, seconds: float) -> Iterator[tuple[int, bytes | None]]:
        """The messages that are there; waits for the first one."""
        deadline = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if self._is_there(start) or now >= self._look_at:
                try:
                    if batch := self._messages(start):
                        yield from batch
                        return
                    self._rest(start)
                    self._fill(start)
                except StoreError as error:
                    log.debug("the journal's reader continues after an error: %s", error)
                    self._look_at = time.monotonic() + LOOK_SECONDS_MAX
            now = time.monotonic()
            if now >= deadline:
                return
            time.sleep(max(min(self._look_at, deadline) - now, 0.001))

    def to_end(self, start: int) -> Iterator[tuple[int, bytes | None]]:
        """All messages up to the present end: a log that grows as fast as it is read has no end of its own."""
        answered_at = time.monotonic()
        end: int | None = None
        while end is None or start >> INDEX_BITS < end:
            try:
                end = self.objects.end(start >> INDEX_BITS) if end is None else end
                batch = self._messages(start)
                if not batch:
                    self._check_open(start)
                    return
                answered_at = time.monotonic()
            except StoreError as error:
                if time.monotonic() - answered_at > SILENT_SECONDS:
                    raise Unavailable(str(error)) from error
                time.sleep(LOOK_SECONDS_MAX)
                continue
            yield from batch
            start = batch[-1][0] + 1
            if batch[-1][0] >> INDEX_BITS >= end - 1:
                return

    def _is_there(self, start: int) -> bool:
        """Whether the message at a position needs no look."""
        number, index = _parts(start)
        if index and index >= len(self._fetched.get(number, ())):
            number += 1
        return number in self._fetched or self.own(number) is not None

    def _rest(self, start: int) -> None:
        """Nothing is there: look again after a pause, which grows. Now and then ask whether there ever will be."""
        now = time.monotonic()
        self._look_at, self._pause = now + self._pause, min(self._pause * 1.5, LOOK_SECONDS_MAX)
        if now >= self._ask_at:
            self._ask_at = now + ASK_SECONDS
            self._check_open(start)

    def _fill(self, start: int) -> None:
        """Put empty objects at the numbers from here on that this server left out for a leader that does not take them.
        Every reader stops at them, and this server's messages are at higher ones."""
        number, index = _parts(start)
        if gap := self.gap(number + bool(index)):
            log.info("the numbers %d to %d, which were left out, are filled", gap.start, gap.stop - 1)
            list(self._asked(self.objects.fill, gap))
            self.hurry()

    def _check_open(self, start: int) -> None:
        """`ForeignLog` if the position was removed or the journal was created again."""
        if self.objects.is_closed(start >> INDEX_BITS):
            raise _gone(start, self.objects.place)
        self.confirm()

    def _messages(self, start: int) -> list[tuple[int, bytes | None]]:
        """The messages from a position on, of the objects that one round fetches. A position may be the end of an
        object."""
        number, index = _parts(start)
        for earlier in [each for each in self._fetched if each < number]:
            del self._fetched[earlier]
        batch: list[tuple[int, bytes | None]] = []
        if index:
            messages = self._object(number)
            if messages is None:
                raise _gone(start, self.objects.place)
            batch += self._from(number, index, messages)
            number += 1
        while not batch:  # an object may be without messages
            messages = self._object(number)
            if messages is None:
                return []
            batch += self._from(number, 0, messages)
            number += 1
        while (messages := self._fetched.get(number)) is not None:
            batch += self._from(number, 0, messages)
            number += 1
        return batch

    @staticmethod
    def _from(number: int, index: int, messages: Sequence[bytes]) -> Iterator[tuple[int, bytes | None]]:
        for at in range(index, len(messages)):
            yield (number << INDEX_BITS) + at, messages[at]

    def _object(self, number: int) -> list[bytes] | None:
        """The messages of an object; None if there is none yet."""
        if (messages := self._fetched.get(number)) is not None:
            return messages
        if (messages := self.own(number)) is not None:
            self._fetched[number] = messages
            self.front = max(self.front, number + 1)
        else:
            self._fetch(number)
        if number in self._fetched:
            self._pause = LOOK_SECONDS
            self._look_at = 0.0
        return self._fetched.get(number)

    def _fetch(self, first: int) -> None:
        """Fetch the objects from a number on that are there, and ask whether they had been removed."""
        numbers = range(first, first + self._window)
        objects = list[bytes]()
        try:
            for data in self._asked(lambda number: self.objects.store.get(name_of(number)), numbers):
                if data is None:
                    break
                objects.append(data)
        except StoreError:
            if not objects:
                self._window = 1
                raise
        self._window = min(2 * self._window, READS) if len(objects) == self._window else max(len(objects), 1)
        if not objects:
            return
        if self.objects.is_closed(first):
            raise _gone(first << INDEX_BITS, self.objects.place)
        for number, data in zip(numbers, objects, strict=False):
            self._fetched[number] = messages_of(number, data)
            self.front = max(self.front, number + 1)

    def _asked(self, ask: Callable[[int], Answer], numbers: Sequence[int]) -> Iterator[Answer]:
        """The answers for several numbers, asked side by side."""
        if len(numbers) == 1:
            return iter([ask(numbers[0])])
        self._pool = self._pool or ThreadPoolExecutor(READS, thread_name_prefix="journal-reads")
        return self._pool.map(ask, numbers)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _gone(position: int, place: str) -> ForeignLog:
    return ForeignLog(
        f"position {position} is not in the journal at {place} any more: start with the checkpoint of another server,"
        " on an empty data folder"
    )
