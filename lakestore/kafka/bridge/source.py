"""The consumer group member of a bridge, with questions to the brokers.

A partition that the group has assigned is not fetched until `begin` says where to read: its position is in the lake,
not in Kafka. It begins at a number, never at a logical offset such as END: the library asks the broker for such an
offset, and an answer that comes late moves the partition while it is read. The group's offsets are committed for tools
that show lag, and never read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from lakestore.errors import Conflict, Invalid, LakestoreError, NotFound
from lakestore.kafka.bridge.carry_over import OpenPartitions
from lakestore.kafka.bridge.positions import AcceptedLoss, Ends, Place, Position, go_on
from lakestore.kafka.bridge.records import Records
from lakestore.kafka.bridge.spec import CHANGES, SourceSpec, TopicSpec
from lakestore.kafka.client import (
    DENIED,
    LOG,
    UNKNOWN,
    ReportedErrors,
    check_options,
    failure,
    id_of,
    make_client,
    reason,
    settings_of,
    without_group,
)

_LOG = logging.getLogger("lakestore.bridge")


class Starts:
    """Decides where assigned partitions are read from. For one thread."""

    def __init__(
        self, source: Source, topic_spec: Callable[[str], TopicSpec], is_later: Callable[[Place], bool]
    ) -> None:
        """`is_later` is true for a partition that is newer than the bridge and is read from its start."""
        self._source, self._topic_spec, self._is_later = source, topic_spec, is_later
        self.topic_ids: dict[str, str] = {}

    def start_offsets(
        self, cluster: str, positions: Mapping[Place, Position | None], accepted: AcceptedLoss
    ) -> OpenPartitions:
        """Return the offsets to read from. A topic with one unreadable partition is refused as a whole."""
        opened = OpenPartitions()
        self.topic_ids = self._source.topic_ids({place.topic for place in positions})
        there = [place for place in positions if place.topic in self.topic_ids]
        for place in positions:
            if place.topic not in self.topic_ids:
                opened.refused[place.topic] = NotFound(f"topic {place.topic!r} is not there: was it deleted?")
        ends = self._source.ends(there)
        for place in there:
            now = Position(cluster, self.topic_ids[place.topic], 0)
            try:
                opened.offsets[place] = self._offset(place, positions[place], now, ends[place], accepted)
                opened.begins[place] = self._begin(place, opened.offsets[place], ends[place])
                opened.until[place] = ends[place].stable
            except LakestoreError as error:
                opened.refused.setdefault(place.topic, error)
        opened.topic_ids = self.topic_ids
        for place in list(opened.offsets):
            if place.topic in opened.refused:
                del opened.offsets[place], opened.until[place]
        return opened

    def _begin(self, place: Place, offset: int, ends: Ends) -> int:
        is_changes = self._topic_spec(place.topic).format in CHANGES
        return offset - 1 if is_changes and offset > ends.low else offset

    def _offset(
        self, place: Place, position: Position | None, now: Position, ends: Ends, accepted: AcceptedLoss
    ) -> int:
        if position is not None:
            offset, said = go_on(place, position, now, ends, accepted)
            if said:
                _LOG.warning("%s", said)
            if offset is not None:
                return offset
        spec = self._topic_spec(place.topic)
        if spec.start == "earliest" or self._is_later(place):
            return ends.low
        if spec.start == "latest":
            return ends.stable
        if spec.start == "offsets":
            return self._given(place, spec, ends)
        found = self._source.offsets_at([place], _milliseconds(spec.start))[place]
        return found if found >= 0 else ends.stable

    @staticmethod
    def _given(place: Place, spec: TopicSpec, ends: Ends) -> int:
        offset = spec.start_offsets.get(place.partition, ends.low)
        if not ends.low <= offset <= ends.high:
            raise Conflict(
                f"start_offsets of topic {place.topic!r} says {offset} for partition {place.partition}, which holds"
                f" {ends.low} to {ends.high}"
            )
        return offset


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid(f"start: {text!r} is not a time: write it as 2026-11-22T10:00:00Z") from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000)


CALL_SECONDS = 10.0
SESSION_MS, POLL_MS, REFRESH_MS = 10_000, 300_000, 10_000
PREFETCH_KB = 32 << 10
OURS = {
    "partition.assignment.strategy": "cooperative-sticky",
    "isolation.level": "read_committed",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}
"""Settings that exactly-once needs; users cannot change them."""
_DEFAULTS = {
    "session.timeout.ms": SESSION_MS,
    "heartbeat.interval.ms": 1_000,
    "max.poll.interval.ms": POLL_MS,
    "topic.metadata.refresh.interval.ms": REFRESH_MS,
    "queued.max.messages.kbytes": PREFETCH_KB,
    "fetch.queue.backoff.ms": 20,
    "fetch.error.backoff.ms": 50,
    "fetch.wait.max.ms": 100,
    "reconnect.backoff.max.ms": 2_000,
}
_AT_END = KafkaError._PARTITION_EOF  # noqa: SLF001 (librdkafka's own errors have such names)
_DAMAGED = KafkaError._BAD_MSG  # noqa: SLF001
_TIMED_OUT = KafkaError._TIMED_OUT  # noqa: SLF001
_MOVED = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}  # noqa: SLF001
_SETTINGS = {KafkaError.INVALID_SESSION_TIMEOUT, KafkaError.INCONSISTENT_GROUP_PROTOCOL, KafkaError.INVALID_GROUP_ID}
_EARLIEST, _LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
_T = TypeVar("_T")


@dataclass(slots=True)
class PollResult:
    """The result of one poll."""

    messages: list[Message] = field(default_factory=list)
    ends: dict[Place, int] = field(default_factory=dict)
    """Partitions that were read to their end, with the end offset, after all messages of this poll."""
    moved: set[Place] = field(default_factory=set)
    """Partitions whose next record no longer exists."""
    gone: set[str] = field(default_factory=set)


class Source:
    """A consumer of one cluster. For one thread, except `topic_ids` and `ends`."""

    def __init__(
        self, spec: SourceSpec, revoked: Callable[[Sequence[Place]], None], lost: Callable[[Sequence[Place]], None]
    ) -> None:
        """`revoked` is called inside `poll` and `close` before the group gives partitions to another member. `lost`
        is called when other members may already own partitions.
        """
        check_options(spec.options, OURS, "the bridge")
        self._spec, self._revoked, self._lost = spec, revoked, lost
        self._heard = ReportedErrors()
        common = settings_of(spec.bootstrap, spec.options, self._heard)
        self._admin = make_client(AdminClient, without_group(common))
        self._consumer = make_client(Consumer, {**_DEFAULTS, **common, **OURS, "group.id": spec.group})
        self.assigned: set[Place] = set()
        """Partitions that the group has assigned to this member."""
        self.waiting: set[Place] = set()
        """Assigned partitions that wait for `begin`. The library does not fetch them."""
        self._resting: set[Place] | None = None
        """Partitions that rest since the group has asked for some; None while it does not ask."""
        self._led = ""
        self.leads = False
        """Whether the group has assigned the leading partition of `lead` to this member."""
        self._held: frozenset[Place] = frozenset()
        self.was_assigned = False
        """Whether the group has answered since the last `subscribe`, and has not taken partitions since."""

    def lead(self, topic: str) -> None:
        """Wait for the only partition of a topic. Its owner may `claim` other partitions."""
        self._led = topic
        self.subscribe([topic])

    def claim(self, places: Iterable[Place]) -> None:
        """Take partitions in addition to the assigned ones while `leads`."""
        if self.leads:
            new = set(places) - self.assigned
            self.assigned |= new
            self.waiting |= new

    def hold(self, places: Set[Place]) -> None:
        if places != self._held:
            again = (self._held - places) & self.assigned - self.waiting
            self._held = frozenset(places)
            self._consumer.resume(_partitions(again))
            self._consumer.pause(_partitions(self._held & self.assigned - self.waiting))

    def subscribe(self, topics: Sequence[str]) -> None:
        self.was_assigned = False
        self._consumer.subscribe(
            list(topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.was_assigned = True
        consumer.incremental_assign([])  # without a call, the library would assign them where it likes
        if self._led:
            self.leads = self.leads or bool(partitions)
            return
        found = {Place(each.topic, each.partition) for each in partitions}
        self.assigned |= found
        self.waiting |= found

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with self._given_up(consumer, partitions) as found:
            self._revoked(found)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        with self._given_up(consumer, partitions) as found:
            self._lost(found)

    @contextmanager
    def _given_up(self, consumer: Consumer, partitions: list[TopicPartition]) -> Iterator[list[Place]]:
        """Give partitions up behind the block, whatever becomes of it: all if the leading one was revoked.

        The library takes the first call that unassigns for the member's answer to the group. While it closes, it may
        never answer a second one. So one call unassigns these partitions and all that rest in the block.
        """
        self.was_assigned = False  # until the group assigns again
        places = sorted(self.assigned) if self._led else [Place(each.topic, each.partition) for each in partitions]
        self._resting = set[Place]()
        try:
            yield places
        finally:
            self.rest(places)
            resting, self._resting = self._resting, None
            if self._led:
                self.leads, self._held = False, frozenset()
            self.assigned.difference_update(places)
            self.waiting.difference_update(places)
            consumer.incremental_unassign(_partitions(resting))

    def begin(self, offsets: Mapping[Place, int]) -> None:
        """Read these partitions, which wait, from these offsets."""
        partitions = [TopicPartition(place.topic, place.partition, offset) for place, offset in offsets.items()]
        if partitions:
            self._consumer.resume(partitions)  # before the fetch starts: beside its start, it could undo that
            self._consumer.incremental_assign(partitions)
        self.waiting.difference_update(offsets)

    def rest(self, places: Iterable[Place]) -> None:
        """Fetch no more of these partitions until `begin`, and drop their buffered records."""
        read = self.assigned.intersection(places) - self.waiting
        self.waiting |= read
        if self._resting is not None:
            self._resting |= read
        elif read:
            self._consumer.incremental_unassign(_partitions(read))

    def pause(self) -> None:
        self._consumer.pause(_partitions(self.assigned - self.waiting))

    def resume(self) -> None:
        self._consumer.resume(_partitions(self.assigned - self.waiting - self._held))

    def poll(self, count: int, seconds: float) -> PollResult:
        """Poll for at most `count` records. Partitions that were revoked meanwhile are left out."""
        messages = self._consumer.consume(count, seconds)
        polled = PollResult(messages)
        errors = [message for message in messages if message.error() is not None]
        if errors:
            polled.messages = [message for message in messages if message.error() is None]
            for message in errors:
                self._note(polled, message)
        return polled

    def _note(self, polled: PollResult, message: Message) -> None:
        error = message.error()
        assert error is not None
        place = Place(message.topic() or "", message.partition() or 0)
        if error.code() == _AT_END:
            polled.ends[place] = message.offset() or 0
        elif error.code() in _MOVED:
            polled.moved.add(place)
        elif error.code() in UNKNOWN:
            polled.gone.add(place.topic)
        elif error.code() in _SETTINGS:
            raise Invalid(f"Kafka at {self._spec.bootstrap} refuses a setting of the source: {error.str()}")
        elif error.code() in DENIED or error.code() == _DAMAGED or error.fatal():
            raise self._failure(error, "read")
        else:
            LOG.warning("Kafka at %s: %s", self._spec.bootstrap, error.str())

    def show(self, offsets: Mapping[Place, int]) -> None:
        """Commit offsets for tools that show lag. A failure is only logged."""
        try:
            self._consumer.commit(
                offsets=[TopicPartition(place.topic, place.partition, next) for place, next in offsets.items()],
                asynchronous=True,
            )
        except KafkaException as error:
            LOG.info("the group's offsets were not committed: %s", reason(error))

    def cluster(self) -> str:
        return self._asked(lambda: str(self._admin.list_topics(timeout=CALL_SECONDS).cluster_id), "name its cluster")

    def partitions(self) -> set[Place]:
        topics: dict[str, Any] = self._asked(
            lambda: self._admin.list_topics(timeout=CALL_SECONDS).topics, "list topics"
        )
        return {Place(name, partition) for name, topic in topics.items() for partition in topic.partitions}

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Topic ids by name, without missing topics. From any thread."""
        names = list(topics)
        if not names:
            return {}
        answers = self._asked(
            lambda: self._admin.describe_topics(TopicCollection(names), request_timeout=CALL_SECONDS), "describe topics"
        )
        found: dict[str, str] = {}
        for name, answer in answers.items():
            try:
                found[name] = id_of(self._answer(answer, f"describe topic {name!r}").topic_id)
            except KafkaException as error:
                if error.args[0].code() not in UNKNOWN:
                    raise self._failure(error, f"describe topic {name!r}") from error
        return found

    def ends(self, places: Iterable[Place]) -> dict[Place, Ends]:
        """The current offsets of partitions. From any thread."""
        wanted = list(places)
        low = self._offsets(wanted, _EARLIEST, IsolationLevel.READ_UNCOMMITTED)
        stable = self._offsets(wanted, _LATEST, IsolationLevel.READ_COMMITTED)
        high = self._offsets(wanted, _LATEST, IsolationLevel.READ_UNCOMMITTED)
        return {place: Ends(low[place], stable[place], high[place]) for place in wanted}

    def offsets_at(self, places: Iterable[Place], milliseconds: int) -> dict[Place, int]:
        """The first offset at or after a time; -1 if there is none yet."""
        return self._offsets(list(places), OffsetSpec.for_timestamp(milliseconds), IsolationLevel.READ_UNCOMMITTED)

    def _offsets(self, places: Sequence[Place], spec: OffsetSpec, level: IsolationLevel) -> dict[Place, int]:
        if not places:
            return {}
        asked = {TopicPartition(place.topic, place.partition): spec for place in places}
        answers = self._asked(
            lambda: self._admin.list_offsets(asked, isolation_level=level, request_timeout=CALL_SECONDS), "list offsets"
        )
        try:
            return {
                Place(each.topic, each.partition): int(self._answer(answer, "list offsets").offset)
                for each, answer in answers.items()
            }
        except KafkaException as error:
            raise self._failure(error, "list offsets") from error

    def _asked(self, ask: Callable[[], _T], what: str) -> _T:
        try:
            return ask()
        except KafkaException as error:
            raise self._failure(error, what) from error

    def _answer(self, answer: Future[Any], what: str) -> Any:
        try:
            return answer.result(CALL_SECONDS)
        except TimeoutError as error:
            raise self._failure(KafkaError(_TIMED_OUT), what) from error

    def _failure(self, error: KafkaException | KafkaError, what: str) -> LakestoreError:
        self._admin.poll(0)  # polling reports the connection's complaints
        return failure(error, self._spec.bootstrap, what, self._heard)

    def close(self) -> None:
        self._consumer.close()


def _partitions(places: Iterable[Place]) -> list[TopicPartition]:
    return [TopicPartition(place.topic, place.partition) for place in places]


def records_of(messages: Sequence[Message], topic: str, topic_id: str) -> Records:
    """Messages of one topic as columns."""
    headers: list[Any] = [message.headers() for message in messages]
    count = len(messages)
    return Records(
        topic,
        topic_id,
        np.fromiter([message.partition() for message in messages], np.int64, count),
        np.fromiter([message.offset() for message in messages], np.int64, count),
        np.fromiter([message.timestamp()[1] for message in messages], np.int64, count),
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        headers if any(headers) else None,
    )
