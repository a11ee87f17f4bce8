"""Kafka transactions of one sink: events and the position behind them are visible together or not at all.

Positions are in a topic of the sink's own, compacted, with one partition; its newest committed record is where the sink
stands. Committed offsets of a consumer group are no place for it: brokers forget such offsets after a week without a
commit. Opening fences an earlier process of the same sink, and waits until that one's transaction is settled.

A transaction counts once its messages are decided, not once Kafka says so: see `kafka_ends`. Messages that Kafka left
undecided are aborted before anything else is written, for the next commit would make them visible as well.
"""

from __future__ import annotations

import json
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from lakestore.connectors.debezium import Events
from lakestore.connectors.kafka_client import ABSENT, CALL_SECONDS, DENIED, LOG, check_options, made, settings_of
from lakestore.connectors.kafka_ends import Ends, Place
from lakestore.errors import Denied, Fenced, Invalid, LakestoreError, Unavailable
from lakestore.release import RELEASE

STEP_SECONDS = 5.0
MARKED_SECONDS = 1.0
"""Seconds in which a transaction that is over is to be decided; it is undone then."""
TRANSACTION_MS = 300_000
QUEUED_MESSAGES, QUEUED_BYTES = 100_000, 128 << 20
_OURS = ("bootstrap.servers", "transactional.id", "enable.idempotence", "isolation.level", "group.id")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED}  # noqa: SLF001 (librdkafka's own errors have such names)
_PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}  # noqa: SLF001
_NOT_YET = {
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    KafkaError._TIMED_OUT,  # noqa: SLF001
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
}
_AFTER_FATAL = KafkaError._FATAL  # noqa: SLF001
_AFTER_ANOTHER = {_AFTER_FATAL, KafkaError._STATE, KafkaError._CONFLICT}  # noqa: SLF001
_AT_END = KafkaError._PARTITION_EOF  # noqa: SLF001
_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE}


@dataclass(frozen=True, slots=True)
class SinkPosition:
    """The position of a sink, as its position topic says."""

    token: str
    tables: tuple[str, ...]
    topic: str

    def encode(self) -> bytes:
        """The record's value."""
        data = {"token": self.token, "tables": list(self.tables), "topic": self.topic, "release": RELEASE}
        return json.dumps(data).encode()

    @staticmethod
    def decode(value: bytes) -> SinkPosition | None:
        """The position that `encode` wrote; None for one that says that nothing was written yet."""
        data = json.loads(value)
        return SinkPosition(data["token"], tuple(data["tables"]), data["topic"]) if data["token"] else None


def check_topic(name: str) -> None:
    """Refuse a name that no topic can have."""
    if not _TOPIC.fullmatch(name):
        raise Invalid(f"a topic's name has 1 to 249 letters, digits, '.', '_' and '-': {name!r} has not")


class Transactions:
    """A sink's transactional producer. A context manager; for one thread."""

    def __init__(self, bootstrap: str, name: str, options: Mapping[str, str] | None = None) -> None:
        if not _NAME.fullmatch(name):
            raise Invalid(f"a sink's name has 1 to 200 letters, digits, '.', '_' and '-': {name!r} has not")
        options = dict(options or {})
        check_options(options, _OURS, "the sink")
        self.identity = f"lakestore-sink-{name}"
        """Its transactional id, and the name of its position topic."""
        self._bootstrap, self._name, self._options = bootstrap, name, options
        self._common = settings_of(bootstrap, options, self._heard)
        self.transaction_seconds = int(options.get("transaction.timeout.ms", TRANSACTION_MS)) / 1000
        self._trouble: KafkaError | None = None
        self._undelivered: KafkaError | None = None
        self._failed = 0  # messages of the transaction that Kafka did not take
        self._partitions: dict[str, int] = {}
        self._began = False
        self._sent_bytes = 0
        self._producer = self._made_producer()
        self._ends = Ends(self._common)

    def _made_producer(self) -> Producer:
        settings = {
            "transaction.timeout.ms": TRANSACTION_MS,
            "compression.type": "lz4",
            "linger.ms": 2,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": QUEUED_MESSAGES,
            "delivery.report.only.error": True,
            **self._common,
            "on_delivery": self._delivered,
            "transactional.id": self.identity,
        }
        return made(Producer, settings)

    def _heard(self, error: KafkaError) -> None:
        self._trouble = error

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        self._failed += error is not None
        if error is not None and self._undelivered is None and error.code() not in _PURGED:
            self._undelivered = error

    def open(self) -> SinkPosition | None:
        """Fence an earlier process of this sink; where it stands, None if it never wrote."""
        self._ensure(self.identity, 1, {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)})
        self._until_done(self._producer.init_transactions, "open its transactions")
        return self.stored()

    def ensure_topic(self, topic: str, partitions: int) -> bool:
        """Make a topic unless it is there; whether it was made."""
        return self._ensure(topic, partitions, {})

    def _ensure(self, topic: str, partitions: int, config: dict[str, str]) -> bool:
        admin = AdminClient(self._common)
        try:
            known = self._topics(admin)
            made = topic not in known
            if made:
                asked = [NewTopic(topic, partitions, -1, config=config)]
                for created in admin.create_topics(asked, request_timeout=CALL_SECONDS).values():
                    created.result(CALL_SECONDS)
            self._partitions[topic] = partitions if made else len(known[topic].partitions)
            return made
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return self._ensure(topic, partitions, config)
            raise self._failure(error, f"make topic {topic!r}") from error
        except TimeoutError as error:  # a broker died with the question
            raise self._late(f"make topic {topic!r}") from error

    def _topics(self, admin: AdminClient) -> dict[str, Any]:
        try:
            found: dict[str, Any] = admin.list_topics(timeout=CALL_SECONDS).topics
            return found
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() not in ABSENT:
                raise
            raise Unavailable(
                f"Kafka at {self._bootstrap} does not answer ({cause.str()}): does a broker run there, and do the"
                " options of --kafka-option fit it?"
            ) from error

    def stored(self) -> SinkPosition | None:
        """The sink's position, None if it never wrote; between transactions only. One that is over is settled first."""
        self._settle(self._places(), "read its position")
        settings = {
            **self._common,
            "group.id": self.identity,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
        consumer = Consumer(settings)
        try:
            return self._newest(consumer)
        except KafkaException as error:
            raise self._failure(error, "read its position") from error
        finally:
            consumer.close()

    def _newest(self, consumer: Consumer) -> SinkPosition | None:
        """The last committed record, looked for from the end backwards."""
        place = TopicPartition(self.identity, 0)
        low, high = self._bounds(consumer, place)
        start, span = high, 64
        while start > low:
            start = max(low, high - span)
            span *= 16
            consumer.assign([TopicPartition(self.identity, 0, start)])
            values = [value for value in self._values(consumer) if value]
            if values:
                return SinkPosition.decode(values[-1])
        return None

    def _bounds(self, consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
        """The first offset and the one behind the last; a topic that was just made is not known at once."""
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            try:
                low, high = consumer.get_watermark_offsets(place, timeout=STEP_SECONDS)
                return low, high
            except KafkaException as error:
                if error.args[0].code() not in _NOT_YET or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _values(self, consumer: Consumer) -> Iterator[bytes | None]:
        deadline = time.monotonic() + CALL_SECONDS
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                deadline = time.monotonic() + CALL_SECONDS
                yield message.value()
            elif error.code() == _AT_END:
                return
            elif not error.retriable():
                raise KafkaException(error)
        raise Unavailable(f"Kafka at {self._bootstrap} did not give the position of sink {self._name!r} in time")

    def begin(self) -> None:
        """Begin a transaction unless one is open."""
        if not self._began:
            self._call(self._producer.begin_transaction, "begin a transaction")
            self._began, self._undelivered, self._failed = True, None, 0

    def send(self, topic: str, events: Events, *, tombstones: bool) -> int:
        """Add events to the open transaction; the number of messages. Events of one key keep their order."""
        if events.keys is None:
            count = self._partitions[topic]
            for bucket, value in zip(events.buckets.tolist(), events.values.to_pylist(), strict=True):
                self._send(topic, value, None, bucket % count)
            return len(events)
        deleted: list[bool] = events.deleted.tolist() if tombstones else [False] * len(events)
        for key, value, gone in zip(events.keys.to_pylist(), events.values.to_pylist(), deleted, strict=True):
            self._send(topic, value, key)
            if gone:
                self._send(topic, None, key)
        return len(events) + sum(deleted)

    def _send(self, topic: str, value: bytes | None, key: bytes | None, partition: int = -1) -> None:
        self._sent_bytes += len(value or b"")
        if self._sent_bytes > QUEUED_BYTES:
            self._drain()
        while True:
            try:
                self._producer.produce(topic, value, key, partition)
                return
            except BufferError:
                self._producer.poll(0.05)
            except KafkaException as error:
                if error.args[0].code() in _TOO_LARGE:
                    raise self._too_large(topic, len(value or b"")) from error
                raise self._failure(error, f"write to topic {topic!r}") from error

    def _drain(self) -> None:
        """Wait until what is queued is delivered, which bounds memory."""
        deadline = time.monotonic() + self.transaction_seconds
        while self._producer.flush(STEP_SECONDS):
            if time.monotonic() > deadline:
                raise self._late("write")
        self._sent_bytes = 0

    def commit(self, position: SinkPosition | None) -> None:
        """Make everything since `begin` visible, with the position behind it.

        `Unavailable` with `applied="unknown"` if Kafka does not say how it went: the next `open` finds out. After any
        other failure `stored` says where the sink stands.
        """
        value = (position or SinkPosition("", (), "")).encode()
        self._send(self.identity, value, self._name.encode())
        self._until_done(self._producer.commit_transaction, "commit a transaction")
        self._began, self._sent_bytes = False, 0
        if not self._settle([(self.identity, 0)], "commit a transaction"):
            raise Unavailable(f"Kafka at {self._bootstrap} did not finish a commit of the sink {self._name!r}")

    def abort(self) -> None:
        """Undo everything since `begin`."""
        if self._began:
            self._abort()
            self._settle(self._places(), "abort a transaction")

    def _abort(self) -> None:
        self._until_done(self._producer.abort_transaction, "abort a transaction")
        self._began, self._sent_bytes = False, 0

    def _places(self) -> list[Place]:
        """All partitions that the sink writes to."""
        return [(topic, number) for topic, count in self._partitions.items() for number in range(count)]

    def _settle(self, places: Sequence[Place], what: str) -> bool:
        """Wait until the transaction that is over is decided in partitions; whether that was left to its own."""
        try:
            if self._ends.become_decided(places, MARKED_SECONDS):
                return True
            deadline = time.monotonic() + CALL_SECONDS
            while time.monotonic() < deadline:
                if self._undo() and self._ends.become_decided([(self.identity, 0)], MARKED_SECONDS):
                    LOG.warning("sink %s undid what Kafka had left undecided", self._name)
                    return False
                time.sleep(0.1)
        except KafkaException as error:
            raise self._late(what, error.args[0]) from error
        raise self._late(what)

    def _undo(self) -> bool:
        """Abort what is undecided, by a transaction with a mark in each partition; whether all marks got there.

        Kafka takes no mark before it is through with the transaction before. One of another producer does not mind.
        """
        self.begin()
        for topic, partition in self._places():
            self._send(topic, None, self._name.encode(), partition)
        self._drain()
        failed = self._failed
        self._abort()
        return not failed

    def _until_done(self, call: Callable[[float], None], what: str) -> None:
        """A call that may be repeated until it is through."""
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            try:
                call(STEP_SECONDS)
                return
            except KafkaException as error:
                if not error.args[0].retriable() or error.args[0].code() in _AFTER_ANOTHER:
                    raise self._failure(error, what) from error
                if time.monotonic() > deadline:
                    raise self._late(what, error.args[0]) from error

    def _call(self, call: Callable[[], None], what: str) -> None:
        try:
            call()
        except KafkaException as error:
            raise self._failure(error, what) from error

    def _late(self, what: str, error: KafkaError | None = None) -> LakestoreError:
        why = self._trouble or error
        if why is not None and why.code() in DENIED:
            return Denied(f"Kafka at {self._bootstrap} refuses the sink {self._name!r}: {why.str()}")
        told = f" ({why.str()})" if why else ""
        applied: Any = "unknown" if what.startswith("commit") else "no"
        return Unavailable(f"Kafka at {self._bootstrap} cannot be reached to {what}{told}", applied=applied)

    def _too_large(self, topic: str, size: int) -> Invalid:
        return Invalid(
            f"an event of {size:,} bytes is larger than topic {topic!r} takes: raise max.message.bytes of the topic,"
            " and message.max.bytes by --kafka-option"
        )

    def _failure(self, error: KafkaException, what: str) -> LakestoreError:
        cause = self._fatal(error.args[0])
        code = cause.code()
        if code in _FENCED:
            return Fenced(
                f"another process writes as sink {self._name!r}, or a transaction was open for longer than"
                f" {self.transaction_seconds:.0f} s (transaction.timeout.ms): start this one again if there is no other"
            )
        why = self._undelivered or cause
        if why.code() in DENIED or code in DENIED:
            return Denied(f"Kafka at {self._bootstrap} refuses the sink {self._name!r} to {what}: {why.str()}")
        if why.code() in _TOO_LARGE:
            return Invalid(
                f"an event is larger than its topic takes ({why.str()}): raise max.message.bytes of the topic"
            )
        if cause.fatal() or (what.startswith("commit") and not cause.txn_requires_abort()):
            return Unavailable(f"Kafka at {self._bootstrap} did not {what}: {why.str()}", applied="unknown")
        return Unavailable(f"Kafka at {self._bootstrap} did not {what}: {why.str()}")

    def _fatal(self, error: KafkaError) -> KafkaError:
        """The cause behind an error that only says that another one came before it."""
        if error.code() not in _AFTER_ANOTHER:
            return error
        try:
            self._producer.commit_transaction(STEP_SECONDS)
        except KafkaException as told:
            found: KafkaError = told.args[0]
            return found if found.fatal() else error
        return KafkaError(_AFTER_FATAL, "how a transaction ended is not known", True)

    def close(self) -> None:
        """Give up the connection; a transaction that is open is aborted."""
        if self._began:
            self._producer.purge()
            try:
                self._producer.abort_transaction(STEP_SECONDS)
            except KafkaException as error:
                LOG.info("the open transaction of sink %s is left to the next one: %s", self._name, error)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a fenced producer that cannot abort any more
            try:
                self._producer.close()
            except KafkaException as error:
                LOG.info("the producer of sink %s was closed after a failure: %s", self._name, error)
