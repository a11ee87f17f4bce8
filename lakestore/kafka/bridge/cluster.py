"""Read-only questions to a Kafka cluster: topics, rights, samples, single records.

Its consumer joins no group and commits no offset.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]

from lakestore.errors import Denied, LakestoreError, NotFound, Unavailable
from lakestore.kafka.bridge.records import Records
from lakestore.kafka.bridge.source import records_of
from lakestore.kafka.bridge.spec import SourceSpec, TopicSpec
from lakestore.kafka.client import ReportedErrors, failure, id_of, make_client, settings_of, without_group

CALL_SECONDS = 15.0
"""The longest wait for one answer of a broker, in seconds."""
SAMPLE_SECONDS = 20.0
"""The longest wait for samples of one topic, in seconds."""
_STEP_SECONDS = 0.2
_AT_END = KafkaError._PARTITION_EOF  # noqa: SLF001 (librdkafka's own errors have such names)
_GONE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}  # noqa: SLF001
_NOT_YET = {
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
}
"""Answers of a cluster whose group coordinator is still starting."""
_LOG = logging.getLogger("lakestore.bridge")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic as the brokers describe it."""

    name: str
    id: str
    partitions: int
    may_read: bool


class Cluster:
    """A connection to a cluster for questions. A context manager; for one thread."""

    def __init__(self, spec: SourceSpec) -> None:
        self._spec, self._heard = spec, ReportedErrors()
        common = settings_of(spec.bootstrap, spec.options, self._heard)
        self._admin: Any = make_client(AdminClient, without_group(common))
        own = {"group.id": spec.group, "enable.auto.commit": False, "auto.offset.reset": "error"}
        exact = {"isolation.level": "read_committed", "enable.partition.eof": True}
        self._consumer = make_client(Consumer, {**common, **own, **exact})

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _asked(self, ask: Callable[[], _T], what: str) -> _T:
        try:
            found = ask()
        except KafkaException as error:
            raise self._failure(error, what) from error
        self._heard.forget()
        return found

    def _failure(self, error: KafkaException | KafkaError, what: str) -> LakestoreError:
        self._admin.poll(0)
        self._consumer.poll(0)
        return failure(error, self._spec.bootstrap, what, self._heard)

    def topics(self) -> tuple[str, ...]:
        found = self._asked(lambda: self._admin.list_topics(timeout=CALL_SECONDS).topics, "list its topics")
        return tuple(sorted(found))

    def topics_of(self, topic: TopicSpec) -> tuple[str, ...]:
        """The topics that an entry of bridge.yaml matches now."""
        if topic.topic:
            return (topic.topic,)
        return tuple(filter(topic.matches, self.topics()))

    def describe(self, topic: str) -> TopicFacts:
        """Describe a topic. Raises `NotFound`, or `Denied` if this user may not see it."""
        what = f"describe topic {topic!r}"
        asked = TopicCollection([topic])
        answer = self._asked(
            lambda: self._admin.describe_topics(
                asked, include_authorized_operations=True, request_timeout=CALL_SECONDS
            )[topic].result(),
            what,
        )
        operations = answer.authorized_operations
        may = operations is None or AclOperation.READ in operations or AclOperation.ALL in operations
        return TopicFacts(topic, id_of(answer.topic_id), len(answer.partitions), may)

    def check_group(self) -> None:
        """Raise `Denied` if the brokers say that this user may not use the source's group."""
        group = self._spec.group
        operations = self._group_rights(group, time.monotonic() + CALL_SECONDS)
        if operations and AclOperation.READ not in operations and AclOperation.ALL not in operations:
            raise Denied(
                f"Kafka at {self._spec.bootstrap} does not let this user read by the group {group!r}: ask its"
                " administrator for the right, or name another group: in the source"
            )

    def _group_rights(self, group: str, deadline: float) -> Any:
        while True:
            try:
                asked = self._admin.describe_consumer_groups(
                    [group], include_authorized_operations=True, request_timeout=CALL_SECONDS
                )
                return asked[group].result().authorized_operations
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.GROUP_ID_NOT_FOUND:
                    return None
                if code not in _NOT_YET or time.monotonic() > deadline:
                    raise self._failure(error, f"describe group {group!r}") from error
                time.sleep(_STEP_SECONDS)

    def ends(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        found = {}
        for number in partitions:
            place = TopicPartition(topic, number)
            found[number] = self._asked(
                lambda place=place: self._consumer.get_watermark_offsets(place, timeout=CALL_SECONDS),  # type: ignore[misc]
                f"tell the offsets of topic {topic!r}",
            )
        return found

    def sample(self, facts: TopicFacts, count: int, seconds: float = SAMPLE_SECONDS) -> Records:
        """About `count` of the newest records from all partitions, in order; none from an empty topic."""
        ends = self.ends(facts.name, range(facts.partitions))
        full = {number: (low, high) for number, (low, high) in ends.items() if high > low}
        each = -(-count // max(len(full), 1))
        starts = {number: max(low, high - each) for number, (low, high) in full.items()}
        messages = list(self._read(facts.name, starts, {number: high for number, (_, high) in full.items()}, seconds))
        messages.sort(key=lambda message: (message.partition() or 0, message.offset() or 0))
        return records_of(messages, facts.name, facts.id)

    def fetch_records(self, facts: TopicFacts, offsets: Mapping[int, Sequence[int]]) -> dict[tuple[int, int], Message]:
        """Single records by partition and offset, if the topic still has them."""
        found: dict[tuple[int, int], Message] = {}
        ends = self.ends(facts.name, sorted(offsets))
        for number, wanted in offsets.items():
            low, high = ends[number]
            for offset in wanted:
                if low <= offset < high:
                    for message in self._read(facts.name, {number: offset}, {number: offset + 1}, CALL_SECONDS):
                        found[number, message.offset() or 0] = message
        return {place: message for place, message in found.items() if place[1] in offsets[place[0]]}

    def _read(
        self, topic: str, starts: Mapping[int, int], ends: Mapping[int, int], seconds: float
    ) -> Iterator[Message]:
        left = set(starts)
        if not left:
            return
        self._consumer.assign([TopicPartition(topic, number, offset) for number, offset in starts.items()])
        deadline = time.monotonic() + seconds
        try:
            while left and time.monotonic() < deadline:
                for message in self._consumer.consume(1_000, _STEP_SECONDS):
                    number, offset = message.partition() or 0, message.offset() or 0
                    error = message.error()
                    if error is not None:
                        if not error.retriable():
                            self._judge(error, topic)
                            left.discard(number)
                        continue
                    if offset < ends[number]:
                        yield message
                    if offset + 1 >= ends[number]:
                        left.discard(number)
        finally:
            self._consumer.unassign()
        if left == set(starts):
            raise self._silent(topic)

    def _judge(self, error: KafkaError, topic: str) -> None:
        if error.code() != _AT_END and error.code() not in _GONE:
            raise self._failure(error, f"give records of topic {topic!r}")

    def _silent(self, topic: str) -> LakestoreError:
        cause = self._heard.cause()
        if cause is not None:
            return failure(cause, self._spec.bootstrap, f"give records of topic {topic!r}")
        return Unavailable(f"Kafka at {self._spec.bootstrap} gave no record of topic {topic!r} in time")


class Clusters:
    """The clusters of a bridge, each connected on first use. A context manager."""

    def __init__(self, sources: Mapping[str, SourceSpec]) -> None:
        self._sources = sources
        self._open: dict[str, Cluster] = {}

    def whole(
        self, topic: TopicSpec, name: str, identity: str, offsets: Mapping[int, Sequence[int]]
    ) -> dict[tuple[int, int], bytes | None]:
        """Values of single records that a topic of this id still has."""
        cluster = self._cluster(topic)
        facts = _facts(cluster, name)
        if facts is None or facts.id != identity:
            return {}
        there = {number: found for number, found in offsets.items() if number < facts.partitions}
        return {place: message.value() for place, message in cluster.fetch_records(facts, there).items()}

    def has(self, topic: TopicSpec, name: str, identity: str) -> bool:
        """Whether the source of an entry has a topic with this name and id."""
        facts = _facts(self._cluster(topic), name)
        return facts is not None and facts.id == identity

    def _cluster(self, topic: TopicSpec) -> Cluster:
        if topic.source not in self._open:
            self._open[topic.source] = Cluster(self._sources[topic.source])
        return self._open[topic.source]

    def __enter__(self) -> Clusters:
        return self

    def __exit__(self, *_: object) -> None:
        for cluster in self._open.values():
            cluster.close()


def _facts(cluster: Cluster, name: str) -> TopicFacts | None:
    try:
        return cluster.describe(name)
    except NotFound:
        return None


def require_topic(facts: TopicFacts, bootstrap: str) -> None:
    """Raise `Denied` for a topic that this user may not read."""
    if not facts.may_read:
        raise Denied(
            f"Kafka at {bootstrap} does not let this user read topic {facts.name!r}: ask its administrator for the"
            " right"
        )
