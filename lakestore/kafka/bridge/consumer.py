"""A consumer: the thread pipeline from one Kafka cluster to the lake, in three stages.

- The first stage reads Kafka and gathers batches, the second decodes and maps, the third commits. Queues between stages
  are short, and partitions pause while the server is slow.
- Messages about partitions travel in the same queues as batches, so order is kept.
- After a failure with a known outcome the consumer restarts: it drops all work, opens the registers again and reads
  from the positions that they hold.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from lakestore.client.retry import is_passing
from lakestore.errors import Conflict, Fenced, Internal, Invalid, LakestoreError, NotFound, OtherTimeline, Unavailable
from lakestore.kafka.bridge.carry_over import Batch, Opening, Release, Settling, Work
from lakestore.kafka.bridge.commit import Committer, Halt
from lakestore.kafka.bridge.counts import Counts
from lakestore.kafka.bridge.gathering import Gathering
from lakestore.kafka.bridge.outcome import MappedBlock
from lakestore.kafka.bridge.positions import Place
from lakestore.kafka.bridge.records import Records
from lakestore.kafka.bridge.source import PollResult, Source
from lakestore.kafka.bridge.spec import BatchBounds
from lakestore.kafka.bridge.whole_transactions import Whole

WAITING_BATCHES = 2
"""Batches between two stages. Bounds memory."""
ASK_IDLE_SECONDS = 5.0
"""Seconds between checks for a restored server while nothing commits."""
_T = TypeVar("_T")


class Pipeline(Protocol):
    """Maps one topic's records to rows."""

    def process(self, records: Records, /) -> MappedBlock: ...

    def learn(self, records: Records, /) -> None:
        """Remember the records before the next block. An earlier process has committed them."""


class Stages:
    """The second stage, which decodes and maps, and the third stage, which commits."""

    def __init__(
        self,
        committer: Committer,
        pipeline: Callable[[str], Pipeline],
        is_stopped: Callable[[], bool],
        whole: Whole | None = None,
    ) -> None:
        """`pipeline` makes the pipeline of a topic; `whole` assembles source transactions, or is None."""
        self._committer, self._make, self._is_stopped = committer, pipeline, is_stopped
        self._whole = whole
        self._waits_of = 0
        """The generation whose records wait for complete transactions."""
        self._to_map: queue.Queue[Work | None] = queue.Queue(WAITING_BATCHES)
        self._to_commit: queue.Queue[Work | None] = queue.Queue(WAITING_BATCHES)
        self._dead = 0
        """The newest generation that must not commit any more."""
        self.failure: LakestoreError | None = None
        self.broken: LakestoreError | None = None
        """The error after which the consumer has to restart."""
        stages = {"mapping": self._mapping, "commits": self._commits}
        self._threads = [start_thread(name, stage, self._failed) for name, stage in stages.items()]

    def _failed(self, error: LakestoreError) -> None:
        self.failure = self.failure or error

    @property
    def goes_on(self) -> bool:
        return self.failure is None and self.broken is None

    def put(self, work: Work | None, seconds: float) -> bool:
        """Hand over work. Returns False if the queue stays full for `seconds`."""
        try:
            self._to_map.put(work, timeout=max(seconds, 0.0))
        except queue.Full:
            return False
        return True

    def end(self, seconds: float) -> bool:
        """Stop the threads after their queued work. Returns False on timeout."""
        deadline = time.monotonic() + seconds
        if self.failure is not None:
            _empty(self._to_map)
            _empty(self._to_commit)
        if not self.put(None, seconds):
            return False
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def _mapping(self) -> None:
        pipelines: dict[str, Pipeline] = {}
        while (work := self._to_map.get()) is not None:
            if isinstance(work, Batch) and work.generation > self._dead:
                self._learn(work.before, pipelines)
            for each in self._assembled(work):
                if isinstance(each, (Batch, Opening)) and each.generation > self._dead:
                    self._map(each, pipelines)
                self._to_commit.put(each)
        self._to_commit.put(None)

    def _learn(self, before: Sequence[Records], pipelines: dict[str, Pipeline]) -> None:
        for each in before:
            if each.topic in pipelines:  # made by the opening of its partition
                self._patiently(partial(pipelines[each.topic].learn, each))

    def _map(self, work: Batch | Opening, pipelines: dict[str, Pipeline]) -> None:
        marks = "" if self._whole is None else self._whole.marks
        for topic in work.topics - set(pipelines) - {marks}:
            pipelines[topic] = self._patiently(partial(self._make, topic))
        if isinstance(work, Batch):
            work.mapped = [self._patiently(partial(pipelines[each.topic].process, each)) for each in work.blocks]

    def _assembled(self, work: Work) -> Sequence[Work]:
        whole = self._whole
        if whole is None:
            return [work]
        if isinstance(work, Release):  # a release concerns all partitions
            whole.reset()
            return [work]
        if work.generation <= self._dead:
            return [work]
        if work.generation > self._waits_of:
            whole.reset()
            self._waits_of = work.generation
        if isinstance(work, Opening):
            whole.opened(work.places)
            return [work]
        if isinstance(work, Batch):
            return whole.batches(work, [self._patiently(partial(whole.read, each)) for each in work.blocks], {})
        made = whole.batches(Batch(work.generation, [], {}, work.polled, 0), [], work.ends)
        work.waiting = whole.waiting
        return [*made, work]

    def _patiently(self, ask: Callable[[], _T]) -> _T:
        while True:
            try:
                return ask()
            except LakestoreError as error:
                if not is_passing(error) or self._is_stopped():
                    raise
                _LOG.warning("records cannot be decoded now, which is tried again: %s", error.message)
                time.sleep(max(1.0, error.retry_after))

    def _next(self, opened: int) -> Work | None:
        while True:
            try:
                return self._to_commit.get(timeout=ASK_IDLE_SECONDS)
            except queue.Empty:
                if opened > self._dead:
                    self._check_history(opened)

    def _check_history(self, opened: int) -> None:
        try:
            self._committer.check_history()
        except OtherTimeline as error:
            self._dead, self.broken = opened, error

    def _commits(self) -> None:
        opened = 0
        while (work := self._next(opened)) is not None:
            if isinstance(work, Settling):
                work.done.set()
                continue
            if isinstance(work, Release):
                self._committer.release(work.places)
                work.done.set()
                continue
            try:
                if work.generation <= self._dead:
                    continue
                if isinstance(work, Opening):
                    work.opened = self._committer.open(work.places, anew=work.generation > opened)
                    opened = work.generation
                else:
                    self._committer.commit(work)
            except LakestoreError as error:
                if not _begins_anew(error):
                    raise
                self._dead, self.broken = work.generation, error
            finally:
                if isinstance(work, Opening):
                    work.done.set()


def _begins_anew(error: LakestoreError) -> bool:
    passing = isinstance(error, (Fenced, Conflict, OtherTimeline, Halt)) or is_passing(error)
    return passing or error.applied == "unknown"


def start_thread(name: str, run: Callable[[], None], failed: Callable[[LakestoreError], None]) -> threading.Thread:
    """Start a thread whose error is passed to `failed`."""

    def guard() -> None:
        try:
            run()
        except LakestoreError as error:
            failed(error)
        except Exception as error:
            _LOG.exception("the bridge ended by a defect")
            failed(Internal(f"the bridge ended by a defect: {error!r}"))

    thread = threading.Thread(target=guard, name=name, daemon=True)
    thread.start()
    return thread


def _empty(waiting: queue.Queue[Work | None]) -> None:
    try:
        while True:
            waiting.get_nowait()
    except queue.Empty:
        return


STALL_SECONDS = 1.0
"""Seconds of a full queue after which partitions pause."""
DRAIN_SECONDS = 30.0
"""The longest time that a revoked partition waits for its queued work, in seconds."""
STOP_SECONDS = 10.0
SETTLE_SECONDS = 3.0
"""Seconds that a fenced consumer waits for the group to revoke its partitions."""
FENCES_MAX, FENCES_SECONDS = 3, 60.0
LOOK_SECONDS = 10.0
"""Seconds between checks for new topics."""
SHOW_SECONDS = PAUSE_SECONDS = 1.0
_LOG = logging.getLogger("lakestore.bridge")


class BridgeConsumer:
    """A Kafka consumer and its stages. `run` is called once."""

    def __init__(
        self,
        *,
        source: Callable[[BridgeConsumer], Source],
        committer: Callable[[Source], Committer],
        topics: Callable[[Source], Sequence[str]],
        pipeline: Callable[[str], Pipeline],
        bounds: BatchBounds,
        counts: Counts,
        stop: threading.Event,
        whole: Whole | None = None,
    ) -> None:
        """`topics` returns the topics to read now; `pipeline` makes the pipeline of a topic. With `whole` source
        transactions stay whole and one process reads all of these topics.
        """
        self._topics, self._counts, self._stop = topics, counts, stop
        self.source = source(self)
        self.committer = committer(self.source)
        self._stages = Stages(self.committer, pipeline, stop.is_set, whole)
        self._whole = whole
        self._ends: dict[Place, float] = {}
        """The times at which partitions were last read to their ends."""
        self._at_end: set[Place] = set()
        self._settling: Settling | None = None
        self._missing: set[str] = set()
        self._once = False
        self._gathering = Gathering(bounds, self._unread)
        self._outbox: deque[Work] = deque()
        self._generation = 1
        self._until: dict[Place, int] = {}
        self._opening: Opening | None = None
        self._not_before = self._shown = self._looked = self._settled = 0.0
        self._subscribed: list[str] = []
        self._fences: deque[float] = deque(maxlen=FENCES_MAX)
        self._showed: dict[Place, int] = {}
        self._halted: dict[str, LakestoreError] = {}

    def run(self, *, once: bool) -> None:
        """Read until stopped. With `once`, read up to the current ends."""
        self._once = once
        try:
            self._look()
            while not self._stop.is_set() and not (once and self._is_done()):
                self._turn()
        finally:
            self.source.close()
            if not self._stages.end(STOP_SECONDS):
                _LOG.warning("the bridge ends with records under way, which the next one reads again")
        self._raise_failure()
        if once:
            self._raise_halted()

    def _turn(self) -> None:
        self._raise_failure()
        if self._stages.broken is not None:
            self._begin_anew(self._stages.broken)
        self._take(self.source.poll(*self._gathering.appetite()))
        if self._whole is not None:
            self._balance(self._whole)
        self._take_answer()
        if self._gathering.is_due:
            self._hand_over()
        self._ask()
        self._push()
        self._show(SHOW_SECONDS)
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._look()
        reads = {place.topic for place in self.source.assigned} - set(self._halted)
        if self.source.was_assigned and not reads and self._opening is None:
            self._raise_halted()

    def _raise_failure(self) -> None:
        if self._stages.failure is not None:
            raise self._stages.failure

    def _raise_halted(self) -> None:
        if self._halted:
            raise next(iter(self._halted.values()))

    def _look(self) -> None:
        is_first, self._looked = not self._looked, time.monotonic()
        try:
            topics = list(self._topics(self.source))
        except Unavailable as error:
            if not self._subscribed:
                raise
            _LOG.info("new topics are not looked for now: %s", error.message)
            return
        if is_first and not topics:
            _LOG.warning(
                "no topic is there whose name matches a pattern of the file: such topics are read once they are"
            )
        if self._whole is not None:
            self._claim(self._whole.marks, topics)
        elif topics != self._subscribed:
            self.source.subscribe(topics)
            self._subscribed = topics

    def _claim(self, marks: str, topics: Sequence[str]) -> None:
        if self._subscribed and not self.source.leads:
            return
        places = [place for place in self.source.partitions() if place.topic in {marks, *topics}]
        if not self._subscribed:
            if not any(place.topic == marks for place in places):
                self._wait_for_marks(marks)
                return
            self.source.lead(marks)
            self._subscribed = [marks]
        if not self.source.leads:
            return
        if sum(place.topic == marks for place in places) > 1:
            raise Invalid(f"topic {marks!r} of transactions has several partitions, and must have one to have an order")
        self.source.claim(places)
        missing = set(topics) - {place.topic for place in places}
        for topic in sorted(missing - self._missing):
            _LOG.warning("topic %s is not there yet: transactions do not wait for its events until it is", topic)
        self._missing = missing

    def _wait_for_marks(self, marks: str) -> None:
        """Debezium creates the topic of BEGINs and ENDs with its first transaction. Nothing is read before."""
        if self._once:
            raise NotFound(f"topic {marks!r} of transactions is not there: is its name right, has Debezium begun?")
        if marks not in self._missing:
            _LOG.warning("topic %s of transactions is not there yet: its topics are read once it is", marks)
        self._missing.add(marks)

    def _balance(self, whole: Whole) -> None:
        """Pause partitions that are far ahead of others, and give up on events that never come."""
        source = self.source
        is_late = not self._subscribed and time.monotonic() - self._looked > SETTLE_SECONDS
        if is_late or (source.leads and not source.assigned):
            self._look()
        ahead = whole.ahead & source.assigned
        held = ahead if source.assigned - ahead - source.waiting - self._at_end else frozenset()
        source.hold(held)
        self._at_end -= held
        if whole.waiting and time.monotonic() - self._settled > SETTLE_SECONDS:
            self._settle()

    def _settle(self) -> Settling:
        self._hand_over()
        self._settled = now = time.monotonic()
        self._ends.update(dict.fromkeys(self._at_end, now))
        settling = Settling(self._generation, dict(self._ends), now)
        self._outbox.append(settling)
        return settling

    def _take(self, polled: PollResult) -> None:
        self._gathering.add(polled.messages, polled.ends)
        if self._whole is not None:
            self._at_end.difference_update(Place(each.topic() or "", each.partition() or 0) for each in polled.messages)
            self._at_end.update(polled.ends)
        moved = polled.moved & set(self._gathering.next)
        if moved and self._whole is not None:
            self._begin_anew(Unavailable(f"records of {', '.join(sorted({each.topic for each in moved}))} are gone"))
            return
        for place in moved:
            self._hand_over()
            self._gathering.leave([place])
            self.source.rest([place])
        for topic in polled.gone:
            self._halt(topic, NotFound(f"topic {topic!r} is not there: is its name right, or was it deleted?"))

    def _hand_over(self) -> None:
        if self._gathering.has_moves and (batch := self._gathering.take_batch(self._generation)).moves:
            self._outbox.append(batch)

    def _unread(self, places: Mapping[Place, int]) -> bool:
        """Whether Kafka has records at or after these offsets. True while Kafka does not answer."""
        try:
            ends = self.source.ends(places)
        except Unavailable:
            return True
        return any(ends[place].stable > next for place, next in places.items())

    def _push(self) -> None:
        """Pass queued work to the second stage. While its queue is full, partitions pause."""
        is_paused = False
        while self._outbox and self._stages.goes_on and not self._stop.is_set():
            if self._stages.put(self._outbox[0], STALL_SECONDS):
                self._outbox.popleft()
                continue
            if not is_paused:
                self.source.pause()
                self._at_end.clear()
                is_paused = True
            self._take(self.source.poll(1, 0.0))
        if is_paused:
            self.source.resume()

    def _ask(self) -> None:
        waiting = [place for place in self.source.waiting if place.topic not in self._halted]
        if self._whole is not None:  # BEGINs and ENDs are opened last, so no counted event precedes them
            marks = self._whole.marks
            waiting = [place for place in waiting if place.topic != marks] or waiting
        if waiting and self._opening is None and time.monotonic() >= self._not_before:
            self._hand_over()
            self._opening = Opening(self._generation, sorted(waiting))
            self._outbox.append(self._opening)

    def _take_answer(self) -> None:
        opening = self._opening
        if opening is None or not opening.done.is_set():
            return
        self._opening = None
        opened = opening.opened
        if opened is None:
            return
        self._gathering.topic_ids.update(opened.topic_ids)
        for topic, error in opened.refused.items():
            self._halt(topic, error)
        begun = {place: next for place, next in opened.offsets.items() if place in self.source.waiting}
        self.source.begin({place: opened.begins.get(place, next) for place, next in begun.items()})
        self._gathering.next.update(begun)
        for place, end in opened.until.items():
            self._until.setdefault(place, end)

    def _halt(self, topic: str, error: LakestoreError) -> None:
        if topic not in self._halted:
            self._halted[topic] = error
            self._counts.halted[topic] = error.message
            _LOG.error("topic %s is not read: %s", topic, error.message)
        places = [place for place in self.source.assigned if place.topic == topic or self._whole is not None]
        for place in places:
            self._halted.setdefault(place.topic, error)
        self.source.rest(places)
        self._gathering.leave(places)

    def _is_done(self) -> bool:
        if self._opening is not None or not self._stages.goes_on:
            return False
        if not self.source.was_assigned:
            return bool(self._halted) or not self._subscribed
        if any(place.topic not in self._halted for place in self.source.waiting):
            return False
        if self.source.leads and not self.source.assigned:
            return False
        next = self._gathering.next
        if any(offset < self._until[place] for place, offset in next.items()):
            return False
        self._hand_over()
        self._push()
        if self._whole is not None:
            return self._is_settled()
        held = self.committer.held
        return all(held.get(place, -1) >= self._until[place] for place in next)

    def _is_settled(self) -> bool:
        settling = self._settling
        if settling is None or settling.generation != self._generation:
            self._settling = self._settle()
            return False
        if not settling.done.is_set() or not self._stages.goes_on:
            return False
        if settling.waiting:
            names = ", ".join(settling.waiting[:10])
            _LOG.warning("%d transactions have not come whole and are not committed: %s", len(settling.waiting), names)
        return True

    def _begin_anew(self, error: LakestoreError) -> None:
        now = time.monotonic()
        self._stages.broken = None
        self._not_before = now + PAUSE_SECONDS
        if isinstance(error, Halt):
            self._halt(error.topic, error)
        elif isinstance(error, Fenced):
            self._fenced(error, now)
        else:
            _LOG.warning("the bridge reads again from the last commit: %s", error.message)
        self._generation += 1
        self._outbox.clear()
        self._opening = None
        self._gathering.forget()
        self._at_end.clear()
        self._ends.clear()
        self.source.rest(self.source.assigned)

    def _fenced(self, error: Fenced, now: float) -> None:
        self._fences.append(now)
        if len(self._fences) == FENCES_MAX and now - self._fences[0] < FENCES_SECONDS:
            raise Fenced(
                "another process reads the same partitions under the name of this bridge, and not in its consumer"
                f" group: stop one of them, or give them different names ({error.message})"
            )
        self._not_before = now + SETTLE_SECONDS
        _LOG.warning("another process has opened partitions of this bridge: %s", error.message)

    def revoked(self, places: Sequence[Place]) -> None:
        """Commit queued work while time allows: the group revokes these partitions."""
        self._hand_over()
        release = Release(places)
        self._outbox.append(release)
        deadline = time.monotonic() + (STOP_SECONDS if self._stop.is_set() else DRAIN_SECONDS)
        while self._outbox and self._stages.failure is None and time.monotonic() < deadline:
            if self._stages.put(self._outbox[0], 0.1):
                self._outbox.popleft()
        while not release.done.wait(0.05) and self._stages.failure is None and time.monotonic() < deadline:
            continue
        if not release.done.is_set() and self._stages.failure is None:
            self._begin_anew(Unavailable("the server did not take in time what was under way"))
        self._gathering.leave(places)
        self._at_end.difference_update(places)

    def lost(self, places: Iterable[Place]) -> None:
        """Drop queued work: other members may have owned these partitions."""
        self._gathering.leave(list(places))
        self._begin_anew(Unavailable("this member was out of its consumer group for a while"))

    def _show(self, seconds: float) -> None:
        now = time.monotonic()
        if now - self._shown < seconds:
            return
        self._shown = now
        held = {place: next for place, next in self.committer.held.items() if place in self.source.assigned}
        changed = {place: next for place, next in held.items() if self._showed.get(place) != next}
        if changed:
            self.source.show(changed)
            self._showed |= changed
