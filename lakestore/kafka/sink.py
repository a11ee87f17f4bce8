"""The sink writes the changes of tables to Kafka topics, exactly once.

- The position in Kafka is authoritative, because it is committed with the events.
- A named subscription follows that position, so that the server keeps unwritten changes.
- Every start is a recovery: the stream opens at Kafka's position, after Kafka has aborted or committed all pending
  work.
"""

from __future__ import annotations

import json
import re
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from lakestore.client.changes import ChangeBatch, ChangeStream, Start
from lakestore.client.read_ahead import Ahead
from lakestore.client.retry import Backoff
from lakestore.errors import Denied, Exhausted, Fenced, Internal, Invalid, LakestoreError, PositionExpired, Unavailable
from lakestore.kafka.client import ABSENT, CALL_SECONDS, DENIED, LOG, check_options, make_client, settings_of
from lakestore.kafka.debezium import Events
from lakestore.kafka.events import Encoder
from lakestore.model.times import start_text
from lakestore.model.token import LogPosition, position_of
from lakestore.release import RELEASE

if TYPE_CHECKING:
    from lakestore.client.lake import Lake


PAUSE_SECONDS = 0.05
Place = tuple[str, int]
_LATEST = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class Ends:
    """The ends of partitions. For one thread."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._admin = AdminClient(self._settings)

    def become_decided(self, places: Collection[Place], seconds: float) -> bool:
        """Wait until all present messages are committed or aborted; False on timeout. Raises `KafkaException`."""
        end, pause = time.monotonic() + seconds, 0.001
        sent = self._of(places, IsolationLevel.READ_UNCOMMITTED)
        while any(offset < sent[place] for place, offset in self._of(places, IsolationLevel.READ_COMMITTED).items()):
            if time.monotonic() > end:
                return False
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS)
        return True

    def _of(self, places: Collection[Place], isolation: IsolationLevel) -> dict[Place, int]:
        asked = {TopicPartition(*place): _LATEST for place in places}
        deadline = time.monotonic() + CALL_SECONDS
        while True:
            found = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=STEP_SECONDS)
            try:
                return {(at.topic, at.partition): future.result().offset for at, future in found.items()}
            except KafkaException as error:  # a restarting broker knows neither topics nor leaders at first
                if error.args[0].code() in DENIED or time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_SECONDS)
                self._admin = AdminClient(self._settings)  # an admin client caches unknown topics for long


STEP_SECONDS = 5.0
MARKED_SECONDS = 1.0
"""Seconds to wait for a finished transaction before the sink aborts it."""
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
    """The position of a sink, as stored in its position topic."""

    token: str
    tables: tuple[str, ...]
    topic: str

    def encode(self) -> bytes:
        data = {"token": self.token, "tables": list(self.tables), "topic": self.topic, "release": RELEASE}
        return json.dumps(data).encode()

    @staticmethod
    def decode(value: bytes) -> SinkPosition | None:
        """Parse the output of `encode`; None: nothing was written yet."""
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
        """Transactional id, and name of the position topic."""
        self._bootstrap, self._name, self._options = bootstrap, name, options
        self._common = settings_of(bootstrap, options, self._heard)
        self.transaction_seconds = int(options.get("transaction.timeout.ms", TRANSACTION_MS)) / 1000
        self._trouble: KafkaError | None = None
        self._undelivered: KafkaError | None = None
        self._failed = 0  # messages of the transaction that Kafka refused
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
        return make_client(Producer, settings)

    def _heard(self, error: KafkaError) -> None:
        self._trouble = error

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        self._failed += error is not None
        if error is not None and self._undelivered is None and error.code() not in _PURGED:
            self._undelivered = error

    def open(self) -> SinkPosition | None:
        """Fence earlier processes of this sink and return its position; None if it never wrote."""
        self._ensure(self.identity, 1, {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)})
        self._until_done(self._producer.init_transactions, "open its transactions")
        return self.position()

    def ensure_topic(self, topic: str, partitions: int) -> bool:
        """Create a topic unless it exists. Returns whether it was created."""
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
        except TimeoutError as error:  # a broker died before it answered
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

    def position(self) -> SinkPosition | None:
        """The sink's position; None if it never wrote. Call it between transactions."""
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
        if not self._began:
            self._call(self._producer.begin_transaction, "begin a transaction")
            self._began, self._undelivered, self._failed = True, None, 0

    def send(self, topic: str, events: Events, *, tombstones: bool) -> int:
        """Add events to the open transaction and return the number of messages. Events of one key keep their order."""
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
        deadline = time.monotonic() + self.transaction_seconds
        while self._producer.flush(STEP_SECONDS):
            if time.monotonic() > deadline:
                raise self._late("write")
        self._sent_bytes = 0

    def commit(self, position: SinkPosition | None) -> None:
        """Make all events since `begin` visible together with the position after them.

        Raises `Unavailable` with `applied="unknown"` if Kafka does not confirm: the next `open` finds out. After any
        other failure `stored` has the sink's position.
        """
        value = (position or SinkPosition("", (), "")).encode()
        self._send(self.identity, value, self._name.encode())
        self._until_done(self._producer.commit_transaction, "commit a transaction")
        self._began, self._sent_bytes = False, 0
        if not self._settle([(self.identity, 0)], "commit a transaction"):
            raise Unavailable(f"Kafka at {self._bootstrap} did not finish a commit of the sink {self._name!r}")

    def abort(self) -> None:
        if self._began:
            self._abort()
            self._settle(self._places(), "abort a transaction")

    def _abort(self) -> None:
        self._until_done(self._producer.abort_transaction, "abort a transaction")
        self._began, self._sent_bytes = False, 0

    def _places(self) -> list[Place]:
        return [(topic, number) for topic, count in self._partitions.items() for number in range(count)]

    def _settle(self, places: Sequence[Place], what: str) -> bool:
        """Wait until the finished transaction is decided in the partitions. False: this sink aborted it."""
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
        """Abort pending work with a mark in each partition; returns whether all marks arrived.

        Kafka accepts no mark before it has finished the previous transaction. Another producer's transaction does not
        matter.
        """
        self.begin()
        for topic, partition in self._places():
            self._send(topic, None, self._name.encode(), partition)
        self._drain()
        failed = self._failed
        self._abort()
        return not failed

    def _until_done(self, call: Callable[[float], None], what: str) -> None:
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
        if error.code() not in _AFTER_ANOTHER:
            return error
        try:
            self._producer.commit_transaction(STEP_SECONDS)
        except KafkaException as told:
            found: KafkaError = told.args[0]
            return found if found.fatal() else error
        return KafkaError(_AFTER_FATAL, "how a transaction ended is not known", True)

    def close(self) -> None:
        if self._began:
            self._producer.purge()
            try:
                self._producer.abort_transaction(STEP_SECONDS)
            except KafkaException as error:
                LOG.info("the open transaction of sink %s is left to the next one: %s", self._name, error)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a fenced producer cannot abort
            try:
                self._producer.close()
            except KafkaException as error:
                LOG.info("the producer of sink %s was closed after a failure: %s", self._name, error)


TRANSACTION_ROWS = 50_000
TRANSACTION_SECONDS = 1.0
AHEAD_BYTES = 64 << 20
ACK_SECONDS = 1.0
PROGRESS_SECONDS = 60.0
"""Seconds between position writes while only other tables change."""
RECOVERY_SECONDS = 300.0
_TICK_SECONDS = 0.2


@dataclass(slots=True)
class SinkCounts:
    """The events that a sink has committed since its start."""

    events: int = 0
    transactions: int = 0
    token: str = ""
    """The position after them; empty: nothing was ever written."""


class KafkaSink:
    """Writes the changes of tables to Kafka. `run` returns at the given end or after `stop`."""

    def __init__(
        self,
        lake: Lake,
        tables: Sequence[str],
        *,
        bootstrap: str,
        topic: str,
        name: str = "",
        format: str = "debezium",
        start: Start = "earliest",
        where: str | None = None,
        restart: bool = False,
        tombstones: bool = True,
        partitions: int = 0,
        options: Mapping[str, str] | None = None,
        progress: Callable[[SinkCounts], None] = lambda _: None,
        noted: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`topic` may contain `{table}`, and must for several tables. `name` identifies the sink and fences: one
        process of a name writes; the default is the topic. `start` is where a new or restarted sink begins.
        `partitions` is the partition count of created topics; the default is the table's buckets. `where` filters
        rows. `noted` gets a sentence about other actions, for example a created topic.
        """
        if not tables or len(set(tables)) < len(tables):
            raise Invalid("a sink needs at least one table, each of them once")
        if len(tables) > 1 and "{table}" not in topic:
            raise Invalid("several tables have a topic each: write {table} in its name, as in 'lake.{table}'")
        for table in tables:
            check_topic(topic.replace("{table}", table))
        self._lake, self._tables = lake, tuple(tables)
        self._topic, self._format, self._where = topic, format, where
        self._start, self._restart = start_text(start), restart
        self.tombstones, self._partitions = tombstones, partitions
        self._progress, self._noted = progress, noted
        self._stop = threading.Event()
        self._found: SinkPosition | None = None  # as this run began
        self.name = name or topic.replace("{table}", "tables")
        self.written = SinkCounts()
        Encoder(lake, format)
        self._kafka = Transactions(bootstrap, self.name, options)

    def stop(self) -> None:
        """End `run`: commit a transaction of whole commits, abort any other. From any thread."""
        self._stop.set()

    def run(self, *, until: str | None = None) -> SinkCounts:
        """Write changes until stopped, or `until` 'now' or a token."""
        with closing(self._kafka):
            self._ensure_topics()
            self._found = self._kafka.open()
            self._begin_at(self._checked(self._found))
            if until == "now":
                until = self._lake.snapshot().token
            backoff = Backoff(RECOVERY_SECONDS)
            while not self._stop.is_set():
                try:
                    _Run(self, self._kafka, backoff, self._stop).write(until)
                    break
                except LakestoreError as error:
                    self._recover(error, backoff)
        return self.written

    def _begin_at(self, position: SinkPosition | None) -> None:
        if position is not None:
            self.written.token = position.token
        elif self._start == "latest":  # fixed now, for the next process too
            self._kafka.begin()
            uuids = tuple(self._lake.table(name).definition.uuid for name in self._tables)
            now = position_of(self._lake.snapshot().token)
            self.commit(self._kafka, str(LogPosition(now.timeline, now.lsn, uuids)), 0)

    def _ensure_topics(self) -> None:
        for table in self._tables:
            count = self._partitions or self._lake.table(table).definition.buckets
            topic = self.topic_of(table)
            if self._kafka.ensure_topic(topic, count):
                self._noted(f"made topic {topic} with {count} partitions")

    def _checked(self, position: SinkPosition | None) -> SinkPosition | None:
        if self._restart or position is None:
            return None
        if (position.tables, position.topic) != (self._tables, self._topic):
            raise Invalid(
                f"sink {self.name!r} writes {', '.join(position.tables)} to topic {position.topic}: run it so, give"
                " this one another name, or start it over with --restart"
            )
        return position

    def _recover(self, error: LakestoreError, backoff: Backoff) -> None:
        if isinstance(error, PositionExpired) and self.written.token:
            raise PositionExpired(
                f"sink {self.name!r} has stood for too long: {error.message}; start over with --restart, which writes"
                " rows again that are in the topic already"
            ) from error
        if error.applied == "unknown" and not isinstance(error, Fenced):
            raise error
        self._kafka.abort()
        self._go_back()
        if isinstance(error, Fenced):  # another consumer of the subscription; Kafka decides which process is the newest
            self._kafka.begin()
            self._kafka.commit(self.position())
        if not backoff.wait(Unavailable(error.message) if isinstance(error, Fenced) else error):
            raise error

    def _go_back(self) -> None:
        stored = self._kafka.position()
        if stored is not None and stored != self._found:
            self.written.token = stored.token

    def position(self) -> SinkPosition | None:
        return SinkPosition(self.written.token, self._tables, self._topic) if self.written.token else None

    def topic_of(self, table: str) -> str:
        return self._topic.replace("{table}", table)

    def commit(self, kafka: Transactions, token: str, events: int) -> None:
        """Commit the open transaction together with the position after it."""
        kafka.commit(SinkPosition(token, self._tables, self._topic))
        self.written.token = token
        self.written.events += events
        self.written.transactions += 1
        self._progress(self.written)

    def encoder(self) -> Encoder:
        """The encoder of a stream's batches as events."""
        return Encoder(self._lake, self._format, name=self.name)

    def opened(self, until: str | None) -> ChangeStream:
        """Open the stream at the position, as a consumer of the sink's subscription."""
        self._hold()
        return self._lake.changes(
            self._tables,
            self.written.token or self._start,
            until=until,
            before_images=self._format != "json",
            where=self._where,
            subscription=self._kafka.identity,
            progress=True,
        )

    def _hold(self) -> None:
        """Move the subscription to the sink's position. It is behind if a process died before acknowledging."""
        name, token = self._kafka.identity, self.written.token
        held = {each.name: each for each in self._lake.subscriptions()}.get(name)
        if held is None or (token and held.token == token):
            return
        if token and position_of(held.token).lsn <= position_of(token).lsn and held.tables == self._tables:
            stream = self._lake.changes(self._tables, token, until=token, subscription=name, progress=True)
            with closing(stream):
                for _ in stream:
                    stream.ack(token)
                    return
        self._lake.drop_subscription(name)


class _Run:
    """One stream from the sink's position. Every transaction holds whole commits."""

    def __init__(self, sink: KafkaSink, kafka: Transactions, backoff: Backoff, stop: threading.Event) -> None:
        self._sink, self._kafka, self._backoff, self._stop = sink, kafka, backoff, stop
        self._encoder = sink.encoder()
        self._token = ""
        """The position after the open transaction, once it holds whole commits only."""
        self._events = self._rows = 0
        self._began = self._acked = 0.0
        self._committed = time.monotonic()
        self._unacknowledged = False

    def write(self, until: str | None) -> None:
        with closing(Ahead(lambda: self._sink.opened(until), AHEAD_BYTES)) as ahead:
            while not ahead.has_ended and not self._stop.is_set():
                batch = ahead.take(_TICK_SECONDS)
                if batch is not None:
                    self._add(batch)
                if self._is_due(ahead):
                    self._commit(ahead)
            if self._token:
                self._commit(ahead)
            elif self._began and not self._stop.is_set():
                raise Internal("a change stream ended inside a commit")
            self._kafka.abort()
            self._acknowledge(ahead)

    def _add(self, batch: ChangeBatch) -> None:
        if batch.progress and not self._began and time.monotonic() - self._committed < PROGRESS_SECONDS:
            return
        if not self._began:
            self._kafka.begin()
            self._began = time.monotonic()
        topic = self._sink.topic_of(batch.name)
        for events in self._encoder.events(batch):
            self._kafka.send(topic, events, tombstones=self._sink.tombstones)
            self._events += len(events)
        self._rows += len(batch)
        self._token = batch.token if batch.whole else ""

    def _is_due(self, ahead: Ahead) -> bool:
        age = time.monotonic() - self._began if self._began else 0.0
        if not self._token and age > 0.9 * self._kafka.transaction_seconds:
            raise Exhausted(
                f"a commit or snapshot does not get into one transaction of {self._kafka.transaction_seconds:.0f} s:"
                " raise transaction.timeout.ms by --kafka-option, as far as the broker lets you"
            )
        full = ahead.is_empty or self._rows >= TRANSACTION_ROWS or age > TRANSACTION_SECONDS
        return bool(self._token) and full

    def _commit(self, ahead: Ahead) -> None:
        self._sink.commit(self._kafka, self._token, self._events)
        self._backoff.reset()
        self._committed = time.monotonic()
        self._token, self._events, self._rows, self._began = "", 0, 0, 0.0
        self._unacknowledged = True
        if time.monotonic() - self._acked > ACK_SECONDS:
            self._acknowledge(ahead)

    def _acknowledge(self, ahead: Ahead) -> None:
        if self._unacknowledged:
            ahead.ack(self._sink.written.token)
            self._acked, self._unacknowledged = time.monotonic(), False
