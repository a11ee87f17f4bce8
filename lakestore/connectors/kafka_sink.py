"""A sink: the changes of tables, written to Kafka topics exactly once.

The sink's position in Kafka is the truth, for it is committed with the events. A named subscription of the same
identity follows that position, so that the server keeps the changes that are not written yet. Every start is a
recovery: the stream is opened where Kafka says; Kafka has aborted or committed everything that was under way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakestore.client.changes import ChangeBatch, ChangeStream, Start
from lakestore.client.read_ahead import Ahead
from lakestore.client.retry import Backoff
from lakestore.connectors.events import Encoder
from lakestore.connectors.kafka import SinkPosition, Transactions, check_topic
from lakestore.errors import Exhausted, Fenced, Internal, Invalid, LakestoreError, PositionExpired, Unavailable
from lakestore.model.times import start_text
from lakestore.model.token import LogPosition, position_of

if TYPE_CHECKING:
    from lakestore.client.lake import Lake

TRANSACTION_ROWS = 50_000
TRANSACTION_SECONDS = 1.0
AHEAD_BYTES = 64 << 20
ACK_SECONDS = 1.0
PROGRESS_SECONDS = 60.0
"""Seconds between writes of the position while the sink's tables are quiet and others are not."""
RECOVERY_SECONDS = 300.0
WHOLE_SINCE = 3
"""The protocol whose change batches say whether their token lies behind them."""
_TICK_SECONDS = 0.2


@dataclass(slots=True)
class Written:
    """The events that a sink has committed since it began to run."""

    events: int = 0
    transactions: int = 0
    token: str = ""
    """The position behind it; empty as long as nothing was ever written."""


class KafkaSink:
    """Writes the changes of tables to Kafka. `run` does, until the end that it is told, or `stop`."""

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
        progress: Callable[[Written], None] = lambda _: None,
        noted: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`topic` may hold `{table}`, and must for several tables. `name` tells sinks apart, and fences: one process
        of a name writes; by default it is the topic's. `start` is where a sink begins that never wrote, or that is to
        begin anew (`restart`). `partitions` are those of a topic that is made, as many as the table's buckets by
        default. `where` lets only rows through that meet it. `noted` is told in a sentence what else is done, such as
        a topic made."""
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
        """The sink's name."""
        self.written = Written()
        """So far."""
        Encoder(lake, format)
        self._kafka = Transactions(bootstrap, self.name, options)

    def stop(self) -> None:
        """Let `run` end: a transaction that holds whole commits is committed, another one aborted. From any thread."""
        self._stop.set()

    def run(self, *, until: str | None = None) -> Written:
        """Write what there is and what comes: for ever, or `until` 'now' or a token."""
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
            self._check_server()
            topic = self.topic_of(table)
            if self._kafka.ensure_topic(topic, count):
                self._noted(f"made topic {topic} with {count} partitions")

    def _check_server(self) -> None:
        server = self._lake.transport.server
        if server.protocol < WHOLE_SINCE:
            raise Invalid(
                f"the server ({server.release or 'an older release'}) does not say where its commits end, which a sink"
                " needs: run the server with a newer release"
            )

    def _checked(self, position: SinkPosition | None) -> SinkPosition | None:
        if self._restart or position is None:
            return None
        if (position.tables, position.topic) != (self._tables, self._topic):
            raise Invalid(
                f"sink {self.name!r} writes {', '.join(position.tables)} to topic {position.topic}: run it so, give"
                " this one another name, or let it begin anew with --restart"
            )
        return position

    def _recover(self, error: LakestoreError, backoff: Backoff) -> None:
        """Back to the last committed position, if the failure is one that passes."""
        if isinstance(error, PositionExpired) and self.written.token:
            raise PositionExpired(
                f"sink {self.name!r} has stood for too long: {error.message}; begin anew with --restart, which writes"
                " rows again that are in the topic already"
            ) from error
        if error.applied == "unknown" and not isinstance(error, Fenced):
            raise error
        self._kafka.abort()
        self._go_back()
        if isinstance(error, Fenced):  # of the subscription: Kafka says who is the newest
            self._kafka.begin()
            self._kafka.commit(self.position())
        if not backoff.wait(Unavailable(error.message) if isinstance(error, Fenced) else error):
            raise error

    def _go_back(self) -> None:
        """To where Kafka says that the sink stands: a commit that failed may have counted all the same."""
        stored = self._kafka.stored()
        if stored is not None and stored != self._found:
            self.written.token = stored.token

    def position(self) -> SinkPosition | None:
        """The sink's position."""
        return SinkPosition(self.written.token, self._tables, self._topic) if self.written.token else None

    def topic_of(self, table: str) -> str:
        """The topic of a table's changes."""
        return self._topic.replace("{table}", table)

    def commit(self, kafka: Transactions, token: str, events: int) -> None:
        """Commit the open transaction with the position behind it."""
        kafka.commit(SinkPosition(token, self._tables, self._topic))
        self.written.token = token
        self.written.events += events
        self.written.transactions += 1
        self._progress(self.written)

    def encoder(self) -> Encoder:
        """The encoder of a stream's batches as events."""
        return Encoder(self._lake, self._format, name=self.name)

    def opened(self, until: str | None) -> ChangeStream:
        """The stream behind the position, as the consumer of the sink's subscription."""
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
        """Bring the subscription to the sink's position: it lies behind it if a process died before it acknowledged."""
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
    """One stream from the sink's position on, in transactions that hold whole commits."""

    def __init__(self, sink: KafkaSink, kafka: Transactions, backoff: Backoff, stop: threading.Event) -> None:
        self._sink, self._kafka, self._backoff, self._stop = sink, kafka, backoff, stop
        self._encoder = sink.encoder()
        self._token = ""
        """The position behind the open transaction, once it ends with whole commits."""
        self._events = self._rows = 0
        self._began = self._acked = 0.0
        self._committed = time.monotonic()
        self._unacknowledged = False

    def write(self, until: str | None) -> None:
        """To the stream's end, or until the sink is stopped."""
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
