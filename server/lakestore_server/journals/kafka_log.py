"""A Kafka topic of one partition as a log of messages.

- A topic with settings by which Kafka may lose messages is refused at every start, with the setting's name.
- The producer gives no message up: if it did, Kafka could store the message later. A producer that failed or is
  stopped is replaced, and its successor is made ahead of time, because it needs an id of the cluster (half a second).
- The reader belongs to no group, reads from a position and never skips removed messages.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]

from lakestore.errors import Invalid, LakestoreError, NotFound, Unavailable
from lakestore.kafka.client import (
    LOG,
    UNKNOWN,
    ReportedErrors,
    check_options,
    failure,
    id_of,
    make_client,
    options_of,
    reason,
    settings_of,
    without_group,
)
from lakestore_server.journals.log import SOMEWHERE, SenderSlot
from lakestore_server.state.commit_record import Unknown
from lakestore_server.state.judge import ForeignLog

CALL_SECONDS = 15.0
"""The longest wait for an answer about the topic."""
ABSENT_SECONDS = 3.0
"""The time for which a topic must be unknown before it is absent."""
SILENT_SECONDS = 30.0
"""The longest wait for the next message of a topic that is read to its end."""
BATCH_MESSAGES = 500
PART_BYTES = 900_000
MESSAGE_BYTES_MIN = 1_000_000
"""Kafka's brokers take 1,048,588 bytes by default, its clients 1,000,000."""
_CONNECTIONS: Mapping[str, Any] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "socket.timeout.ms": 6_000,  # for a broker that is stopped, not dead
    "topic.metadata.propagation.max.ms": 1_000,
    "allow.auto.create.topics": False,
}
_PRODUCER: Mapping[str, Any] = {
    **_CONNECTIONS,
    "acks": "all",
    "enable.idempotence": True,
    "max.in.flight": 5,
    "linger.ms": 0,
    "message.timeout.ms": 0,
    "request.timeout.ms": 5_000,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 524_288,
    "compression.type": "none",  # rows compress themselves
}
_CONSUMER: Mapping[str, Any] = {
    **_CONNECTIONS,
    "group.id": "lakestore-journal",  # the library wants a name; without a subscription it joins no group
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",  # a stranger's open transaction holds nobody up
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 500,
    "fetch.error.backoff.ms": 20,
    "fetch.queue.backoff.ms": 20,
    "check.crcs": True,
}
OWN_OPTIONS = frozenset({"bootstrap.servers", *_PRODUCER, *_CONSUMER})
CREATED = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "unclean.leader.election.enable": "false",
    "compression.type": "producer",
    "message.timestamp.type": "LogAppendTime",
}
"""The settings of a topic that `create` makes, besides replicas and `min.insync.replicas`."""
_LOSES = {
    "cleanup.policy": "compaction removes records that checkpoints do not have yet",
    "retention.ms": "Kafka removes records by their age, whether a checkpoint has them or not",
    "retention.bytes": "Kafka removes records by the topic's size, whether a checkpoint has them or not",
    "unclean.leader.election.enable": "a broker that lags may become leader, and acknowledged commits are gone",
}
_NO_TOPIC = {*UNKNOWN, KafkaError.UNKNOWN_TOPIC_ID}
_CUT = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}  # noqa: SLF001 (librdkafka's own names)
_AT_END = KafkaError._PARTITION_EOF  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """A topic, and the options of clients that reach it."""

    bootstrap: str
    topic: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check_options(self.options, OWN_OPTIONS, "the journal")

    def settings(self, own: Mapping[str, Any], reported: Callable[[KafkaError], None]) -> dict[str, Any]:
        return settings_of(self.bootstrap, self.options, reported) | dict(own)


def topic_of(bootstrap: str, topic: str, options: Collection[str]) -> KafkaTopic:
    """The topic that settings name."""
    if not bootstrap:
        raise Invalid("journal.bootstrap is not set: name Kafka's brokers, or give --journal kafka://host:port/topic")
    return KafkaTopic(bootstrap, topic, options_of(options))


@dataclass(frozen=True, slots=True)
class TopicState:
    """The topic as the cluster describes it."""

    identity: str
    """The topic's id. A topic that is created again under the same name has another one."""
    partitions: int
    replicas: int
    settings: Mapping[str, str]

    def problems(self) -> Iterator[str]:
        """The settings by which acknowledged commits could be lost, a sentence each. One replica is its owner's
        choice."""
        if self.partitions != 1:
            yield f"it has {self.partitions} partitions, and the order of commits is the order of one"
        for name, why in _LOSES.items():
            if self.settings.get(name, CREATED[name]) != CREATED[name]:
                yield f"{name} is {self.settings[name]}, not {CREATED[name]}: {why}"
        if self.replicas > 1 and self.settings.get("min.insync.replicas") in ("0", "1"):
            yield "min.insync.replicas is 1, not 2: one broker alone could acknowledge a commit"
        if int(self.settings.get("max.message.bytes", MESSAGE_BYTES_MIN)) < MESSAGE_BYTES_MIN:
            yield f"max.message.bytes is below {MESSAGE_BYTES_MIN:,}: Kafka would refuse a large commit"


class Admin:
    """Calls about the topic, with errors that say what to do."""

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic, self._reported = topic, ReportedErrors()
        self._client: Any = make_client(AdminClient, without_group(topic.settings(_CONNECTIONS, self._reported)))

    def describe(self) -> TopicState:
        """The topic as it is; `NotFound` if there is none."""
        name = self._topic.topic
        about = self._call("describe the topic", self._client.describe_topics, TopicCollection([name]))
        resource = ConfigResource(ResourceType.TOPIC, name)
        config = self._call("read the topic's settings", self._client.describe_configs, [resource])
        replicas = min((len(each.replicas) for each in about.partitions), default=0)
        settings = {key: entry.value for key, entry in config.items()}
        return TopicState(id_of(about.topic_id), len(about.partitions), replicas, settings)

    def create(self, replicas: int) -> bool:
        """Create the topic; returns whether it is new. Two of its replicas have a commit before it is acknowledged."""
        settings = CREATED | {"min.insync.replicas": str(min(2, replicas))}
        new = NewTopic(self._topic.topic, num_partitions=1, replication_factor=replicas, config=settings)
        try:
            self._call("create the topic", self._client.create_topics, [new])
        except LakestoreError as error:
            cause = error.__cause__
            code = cause.args[0].code() if isinstance(cause, KafkaException) else None
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            if code == KafkaError.INVALID_REPLICATION_FACTOR:
                raise Invalid(
                    f"Kafka at {self._topic.bootstrap} has fewer than {replicas} brokers: start more, or give"
                    " --replicas 1 for a trial, whose commits are gone with its broker"
                ) from error
            raise
        return True

    def remove_before(self, position: int) -> None:
        at = TopicPartition(self._topic.topic, 0, position)
        self._call("remove old messages", self._client.delete_records, [at])

    def _call(self, what: str, ask: Callable[..., Mapping[Any, Any]], about: Any) -> Any:
        """The one result of a call; `what` completes "Kafka did not …"."""
        try:
            (answer,) = ask(about, request_timeout=CALL_SECONDS).values()
            return answer.result()
        except KafkaException as error:
            self._client.poll(0)
            raise failure(error, self._topic.bootstrap, what, self._reported) from error


class KafkaLog:
    """`Log` in a topic."""

    kind, part_bytes = "kafka", PART_BYTES

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic, self._identity = topic, ""
        self._admin: Admin | None = None
        self._senders = SenderSlot(lambda: _Sender(topic))
        self._reader: _Reader | None = None

    def open(self, known: str) -> str:
        """Check the topic, and return its id."""
        name = self._topic.topic
        state = self._described()
        if known and state.identity != known:
            raise ForeignLog(
                f"topic {name} was created again (its id is {state.identity}, not {known}): name the topic that this"
                " data folder follows, or an empty folder"
            )
        if problems := list(state.problems()):
            raise Invalid(f"topic {name} can lose commits: {'; '.join(problems)}")
        self._identity = state.identity
        return state.identity

    def _described(self) -> TopicState:
        """The topic as it is; `NotFound` only after a while, because a broker learns late of a new topic."""
        deadline = time.monotonic() + ABSENT_SECONDS
        while True:
            try:
                return self._asked().describe()
            except NotFound:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def bounds(self) -> tuple[int, int]:
        return self._reading().bounds()

    def read(self, start: int, seconds: float, *, to_end: bool = False) -> Iterator[tuple[int, bytes | None]]:
        """(position, message) of the messages that are there."""
        reader = self._reading()
        return reader.to_end(start) if to_end else reader.batch(start, seconds)

    def _reading(self) -> _Reader:
        self._reader = self._reader or _Reader(self._topic, self.confirm)
        return self._reader

    def confirm(self) -> None:
        """`ForeignLog` if the topic is gone or was created again."""
        try:
            self.open(self._identity)
        except NotFound as error:
            raise ForeignLog(f"topic {self._topic.topic} is gone: {error}") from error
        except ForeignLog:
            raise
        except LakestoreError as error:
            LOG.debug("the journal's topic is not confirmed: %s", error)

    def stop_reading(self) -> None:
        if self._reader is not None:
            self._reader.rest()

    def prepare(self) -> None:
        """Make a producer. It gets its id from the cluster in threads of its own."""
        self._senders.sender()

    def send(self, message: bytes, stored: Callable[[int], None]) -> bool:
        return self._senders.sender().send(message, stored)

    def poll(self, seconds: float) -> None:
        self._senders.sender().poll(seconds)

    def stop_sending(self) -> None:
        self._senders.stop()

    def remove_before(self, position: int) -> None:
        self._asked().remove_before(position)

    def _asked(self) -> Admin:
        self._admin = self._admin or Admin(self._topic)
        return self._admin

    def close(self) -> None:
        self.stop_sending()
        if self._reader is not None:
            self._reader.close()


class _Sender:
    """A producer until its first failure."""

    def __init__(self, topic: KafkaTopic) -> None:
        self._topic = topic.topic
        self._unknown: Unknown | None = None
        self._producer: Producer = make_client(Producer, without_group(topic.settings(_PRODUCER, self._reported)))

    def send(self, message: bytes, stored: Callable[[int], None]) -> bool:
        try:
            self._producer.produce(self._topic, message, partition=0, on_delivery=partial(self._delivered, stored))
        except BufferError:
            return False
        except KafkaException as error:
            self._fail(f"Kafka's client refused a message: {reason(error)}")
        return True

    def _delivered(self, stored: Callable[[int], None], error: KafkaError | None, message: Message) -> None:
        if error is None:
            offset = message.offset()
            stored(SOMEWHERE if offset is None or offset < 0 else offset)
        else:
            self._fail(f"Kafka may not have stored a message: {error.str()}")

    def _reported(self, error: KafkaError) -> None:
        if error.fatal():
            self._fail(f"Kafka's producer failed: {error.str()}")

    def _fail(self, text: str) -> None:
        self._unknown = self._unknown or Unknown(text)

    def poll(self, seconds: float) -> None:
        self._producer.poll(0.0 if self._unknown else seconds)
        if self._unknown is not None:
            raise self._unknown

    def stop(self) -> None:
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        self._producer.poll(0)


class _Reader:
    """A consumer of the partition, for one thread at a time."""

    def __init__(self, topic: KafkaTopic, confirm: Callable[[], None]) -> None:
        """`confirm` raises `ForeignLog` if the topic is another one."""
        self._topic, self._confirm, self._bootstrap = topic.topic, confirm, topic.bootstrap
        self._consumer: Consumer = make_client(Consumer, topic.settings(_CONSUMER, ReportedErrors()))
        self._messages: deque[tuple[int, bytes | None]] = deque()
        """Messages that were fetched and not read."""
        self._at = -1
        """The position of the next message to read; -1 while nothing is fetched."""

    def batch(self, start: int, seconds: float) -> Iterator[tuple[int, bytes | None]]:
        if self._at != start:
            self._begin(start)
        deadline = time.monotonic() + seconds
        while not self._messages and (left := deadline - time.monotonic()) >= 0:
            self._fetch(left)
        yield from self._fetched()

    def to_end(self, start: int) -> Iterator[tuple[int, bytes | None]]:
        self._begin(start)
        is_end, deadline = False, time.monotonic() + SILENT_SECONDS
        end = self._end()  # a topic that grows as fast as it is read has no end of its own
        while not is_end and self._at < end:
            is_end = self._fetch(1.0)
            if self._messages:
                yield from self._fetched()
                deadline = time.monotonic() + SILENT_SECONDS
            elif not is_end and time.monotonic() > deadline:
                raise Unavailable(
                    f"Kafka at {self._bootstrap} returned nothing of topic {self._topic} for {SILENT_SECONDS:.0f} s:"
                    " do its brokers run?"
                )

    def bounds(self) -> tuple[int, int]:
        try:
            first, end = self._consumer.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=CALL_SECONDS)
        except KafkaException as error:
            raise Unavailable(
                f"Kafka at {self._bootstrap} does not say what topic {self._topic} has: do its brokers run?"
            ) from error
        return int(first), int(end)

    def _end(self) -> int:
        """The position of the next message that will be stored; far away if no broker says it."""
        try:
            return self.bounds()[1]
        except Unavailable as error:
            LOG.debug("%s", error)
            return sys.maxsize

    def _begin(self, start: int) -> None:
        self._consumer.assign([TopicPartition(self._topic, 0, start)])
        self._messages.clear()
        self._at = start

    def _fetch(self, seconds: float) -> bool:
        """Wait for a message, and take all that are there. Returns whether the end was reached."""
        # `consume` alone waits the whole time until it has as many messages as it was asked for.
        first = self._consumer.poll(seconds)
        if first is None:
            return False
        is_end = False
        for message in (first, *self._consumer.consume(BATCH_MESSAGES, 0)):
            if (error := message.error()) is not None:
                is_end = is_end or error.code() == _AT_END
                self._check(error)
            else:
                self._messages.append((int(message.offset() or 0), message.value()))
        return is_end

    def _fetched(self) -> Iterator[tuple[int, bytes | None]]:
        while self._messages:
            position, data = self._messages.popleft()
            self._at = position + 1
            yield position, data

    def _check(self, error: KafkaError) -> None:
        code = error.code()
        if code in _CUT or code in _NO_TOPIC:
            self._confirm()
        if code in _CUT:
            raise ForeignLog(
                f"position {self._at} is not in topic {self._topic} any more: start with the checkpoint of another"
                " server, on an empty data folder"
            )
        if code != _AT_END:
            LOG.debug("the journal's reader continues after an error: %s", error.str())

    def rest(self) -> None:
        if self._at >= 0:
            self._consumer.unassign()
            self._messages.clear()
            self._at = -1

    def close(self) -> None:
        self._consumer.close()
