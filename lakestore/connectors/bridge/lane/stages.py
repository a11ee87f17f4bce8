"""Stages: the threads of a lane behind the one that reads Kafka, and the queues between them."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from lakestore.client.retry import is_passing
from lakestore.connectors.bridge.lane.batch import Batch, Opening, Release, Settling, Work
from lakestore.connectors.bridge.lane.committer import Committer, Halt
from lakestore.connectors.bridge.lane.whole import Whole
from lakestore.connectors.bridge.outcome import Mapped
from lakestore.connectors.bridge.records import Records
from lakestore.errors import Conflict, Fenced, Internal, LakestoreError, OtherTimeline

WAITING_BATCHES = 2
"""Batches between two stages, which bounds memory."""
IDLE_SECONDS = 5.0
"""Between looks for a restore of the server, while nothing is committed."""
_T = TypeVar("_T")
_LOG = logging.getLogger("lakestore.bridge")


class Pipeline(Protocol):
    """The way of one topic's records to rows."""

    def process(self, records: Records, /) -> Mapped:
        """The ends of a block's records."""


class Stages:
    """The second stage, which decodes and maps, and the third, which commits."""

    def __init__(
        self,
        committer: Committer,
        pipeline: Callable[[str], Pipeline],
        is_stopped: Callable[[], bool],
        whole: Whole | None = None,
    ) -> None:
        """`pipeline` makes the one of a topic; `whole` puts source transactions together, where that is asked for."""
        self._committer, self._make, self._is_stopped = committer, pipeline, is_stopped
        self._whole = whole
        self._waits_of = 0
        """The generation whose records wait for their transactions to be whole."""
        self._to_map: queue.Queue[Work | None] = queue.Queue(WAITING_BATCHES)
        self._to_commit: queue.Queue[Work | None] = queue.Queue(WAITING_BATCHES)
        self._dead = 0
        """The newest generation of which nothing more is committed."""
        self.failure: LakestoreError | None = None
        """The error that ended a stage, for good."""
        self.broken: LakestoreError | None = None
        """The error behind which the lane is to begin anew, until it does."""
        stages = {"mapping": self._mapping, "commits": self._commits}
        self._threads = [guarded(name, stage, self._failed) for name, stage in stages.items()]

    def _failed(self, error: LakestoreError) -> None:
        self.failure = self.failure or error

    @property
    def goes_on(self) -> bool:
        """Whether the stages take what they are given."""
        return self.failure is None and self.broken is None

    def put(self, work: Work | None, seconds: float) -> bool:
        """Hand work over; False if there is no room for so long."""
        try:
            self._to_map.put(work, timeout=max(seconds, 0.0))
        except queue.Full:
            return False
        return True

    def end(self, seconds: float) -> bool:
        """End the threads behind what they have; False if that takes longer."""
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
            for each in self._assembled(work):
                if isinstance(each, (Batch, Opening)) and each.generation > self._dead:
                    self._map(each, pipelines)
                self._to_commit.put(each)
        self._to_commit.put(None)

    def _map(self, work: Batch | Opening, pipelines: dict[str, Pipeline]) -> None:
        marks = "" if self._whole is None else self._whole.marks
        for topic in work.topics - set(pipelines) - {marks}:
            pipelines[topic] = self._patiently(partial(self._make, topic))
        if isinstance(work, Batch):
            work.mapped = [self._patiently(partial(pipelines[each.topic].process, each)) for each in work.blocks]

    def _assembled(self, work: Work) -> Sequence[Work]:
        """The work as it goes on: batches of whole source transactions, where that is asked for."""
        whole = self._whole
        if whole is None:
            return [work]
        if isinstance(work, Release):  # which is of all partitions
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
        """The answer of a call; a registry or server that is away is waited for."""
        while True:
            try:
                return ask()
            except LakestoreError as error:
                if not is_passing(error) or self._is_stopped():
                    raise
                _LOG.warning("records cannot be decoded now, which is tried again: %s", error.message)
                time.sleep(max(1.0, error.retry_after))

    def _next(self, opened: int) -> Work | None:
        """The next word to the last stage; while there is none, the server's history is looked at now and then."""
        while True:
            try:
                return self._to_commit.get(timeout=IDLE_SECONDS)
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


def guarded(name: str, run: Callable[[], None], failed: Callable[[LakestoreError], None]) -> threading.Thread:
    """A thread that runs, whose error is told."""

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
