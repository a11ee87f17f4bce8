"""Kafka in: each record of the source topics is in its table or among the dead letters, once, whatever is killed.

Producers send unique records: rows, tombstones of keys, records that nobody can read, and transactions, some of which
are aborted. The part `kafka` of the system is a broker with the topics, and two bridges of one name that share them.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

import lakestore as ls
from jepsen import topics
from jepsen.anomaly import Anomaly
from jepsen.checkers import records as checker
from jepsen.checkers.records import POISON, ROW, TOMBSTONE
from jepsen.history import History
from jepsen.operation import Invocation
from jepsen.rows import listed
from jepsen.workload import SPACING, Target

LOG, KEYED, PARTITIONS = "jepsen-log", "jepsen-keyed", 3
TABLES = {LOG: "jepsen.bridged", KEYED: "jepsen.bridged_keyed"}
SEND_SECONDS = 15.0
SETTLE_SECONDS = 60.0
LOOK_SECONDS = 0.5


class Bridged:
    """Producers of Kafka, and readers of the tables."""

    name = "bridge"
    needs: frozenset[str] = frozenset({"kafka"})

    def __init__(self, chance: random.Random) -> None:
        self._keys = chance.choice((3, 40))
        self._many = chance.choice((3, 25))

    def setup(self, lake: ls.Lake) -> None:
        """The bridges make the tables."""

    def operations(self, process: int, chance: random.Random) -> Iterator[Invocation]:
        """Mostly records."""
        numbers = itertools.count(process * SPACING)
        while True:
            how = chance.random()
            sent = [self._record(next(numbers), chance) for _ in range(chance.randint(1, self._many))]
            if how < 0.6:
                yield Invocation("produce", {"records": sent})
            elif how < 0.9:
                yield Invocation("transact", {"records": sent, "commit": chance.random() < 0.6})
            else:
                yield Invocation("read", {"topic": chance.choice(tuple(TABLES))})
            yield Invocation("pause", round(chance.uniform(0.0, 0.3), 3))

    def _record(self, number: int, chance: random.Random) -> list[Any]:
        """Topic, key, number and what it is."""
        key, draw = chance.randrange(self._keys), chance.random()
        if draw < 0.05:
            return [chance.choice((LOG, KEYED)), key, number, POISON]
        if draw < 0.4:
            return [LOG, key, number, ROW]
        return [KEYED, key, number, TOMBSTONE if draw < 0.5 else ROW]

    def last(self, process: int) -> Iterator[Invocation]:
        """Both topics as a consumer of committed records reads them, and their tables once they have as many."""
        if process == 0:
            for topic in TABLES:
                yield Invocation("settle", {"topic": topic})

    def client(self, target: Target, process: int) -> BridgeClient:
        """A producer."""
        return BridgeClient(target, process)

    def check(self, history: History) -> Sequence[Anomaly]:
        """All that can be wrong with records."""
        return checker.check(history, keyed=KEYED)


def key_of(number: int) -> bytes:
    """The Kafka key of a key of the table."""
    return json.dumps({"id": number}).encode()


def value_of(key: int, number: int, kind: str) -> bytes | None:
    """The value of a record. One that nobody can read has its number in it, too."""
    if kind == TOMBSTONE:
        return None
    text = json.dumps({"id": key, "n": number})
    return text.encode() if kind == ROW else f"{number} is no JSON: {text}".encode()


@dataclass(slots=True)
class _Sending:
    """Records on their way, and what became of them."""

    sent: list[list[int | str]] = field(default_factory=list)
    failed: list[KafkaError] = field(default_factory=list)

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Topic, partition and offset of a record that the broker has."""
        if error is not None:
            self.failed.append(error)
        else:
            self.sent.append([message.topic() or "", message.partition() or 0, message.offset() or 0])


class BridgeClient:
    """A producer with a transactional one beside it, and a reader of tables."""

    def __init__(self, target: Target, process: int) -> None:
        self._lake, self._kafka, self._process = target.connect(process), target.kafka, process
        self._plain: Producer | None = None
        self._transactional: Producer | None = None

    def invoke(self, invocation: Invocation) -> Any:
        """Do it. Of records whose fate the broker does not tell nobody knows whether they are there."""
        value = invocation.value
        try:
            match invocation.f:
                case "produce":
                    return {**value, "sent": self._produce(value["records"])}
                case "transact":
                    return {**value, "sent": self._transact(value["records"], commit=value["commit"])}
                case "pause":
                    time.sleep(value)
                    return value
                case "read":
                    return {**value, **self._tables(value["topic"])}
                case _:
                    return self._settle(value)
        except KafkaException as error:
            raise ls.Unavailable(f"Kafka: {error}", applied="unknown") from error

    def _produce(self, records: Sequence[Sequence[Any]]) -> list[list[int | str]]:
        if self._plain is None:
            self._plain = topics.producer(self._kafka)
        return self._sent(self._plain, records)

    def _sent(self, producer: Producer, records: Sequence[Sequence[Any]]) -> list[list[int | str]]:
        sending = _Sending()
        for topic, key, number, kind in records:
            value = value_of(key, number, kind)
            headers: list[tuple[str, str | bytes | None]] = [("n", str(number))]
            partition = key % PARTITIONS
            producer.produce(topic, value, key_of(key), partition, headers=headers, on_delivery=sending.delivered)
        left = producer.flush(SEND_SECONDS)
        if left or sending.failed:
            raise ls.Unavailable(f"{left} records were not sent: {sending.failed[:1]}", applied="unknown")
        return sending.sent

    def _transact(self, records: Sequence[Sequence[Any]], *, commit: bool) -> list[list[int | str]]:
        if self._transactional is None:
            self._transactional = topics.producer(self._kafka, f"jepsen-{self._process}")
            self._transactional.init_transactions(SEND_SECONDS)
        producer = self._transactional
        producer.begin_transaction()
        sent = self._sent(producer, records)
        if commit:
            producer.commit_transaction(SEND_SECONDS)
        else:
            producer.abort_transaction(SEND_SECONDS)
        return sent

    def _tables(self, topic: str) -> dict[str, Any]:
        """The table's rows and the dead letters, by their places; none of a table that is not there yet."""
        rows: list[list[int]] = []
        letters: list[list[int]] = []
        with suppress(ls.NotFound):
            rows = _columns(self._lake, TABLES[topic], "kafka_partition", "kafka_offset", "id", "n")
        with suppress(ls.NotFound):
            letters = _columns(self._lake, f"{TABLES[topic]}__dlq", "partition", "kafka_offset")
        return {"rows": rows, "letters": letters}

    def _settle(self, value: dict[str, Any]) -> dict[str, Any]:
        """Wait until the tables have what the topic has; then read everything."""
        topic, deadline = value["topic"], time.monotonic() + SETTLE_SECONDS
        source = [[m.partition(), m.offset(), *_said(m)] for m in topics.read_committed(self._kafka, topic)]
        while True:
            found = {**value, "source": source, **self._tables(topic)}
            done = checker.is_settled(found, keyed=topic == KEYED)
            if done or time.monotonic() > deadline:
                return {**found, "done": done, "changes": self._changes(topic)}
            time.sleep(LOOK_SECONDS)

    def _changes(self, topic: str) -> list[list[Any]]:
        try:
            stream = self._lake.table(TABLES[topic]).changes(until="now")
        except ls.NotFound:
            return []
        return [[row["id"], row["__change"], row["n"]] for batch in stream for row in batch.to_pylist()]

    def close(self) -> None:
        """End the connection; producers end by themselves."""
        self._lake.close()
        self._plain = self._transactional = None


def _columns(lake: ls.Lake, table: str, *names: str) -> list[list[int]]:
    return listed(lake.table(table).scan(list(names)).to_arrow(), *names)


def _said(message: Message) -> list[Any]:
    """Key, number and kind of a record."""
    value, key = message.value(), json.loads(message.key() or b"{}")["id"]
    number = int(dict(_headers(message))["n"])
    kind = TOMBSTONE if value is None else ROW if value.startswith(b"{") else POISON
    return [key, number, kind]


def _headers(message: Message) -> list[tuple[str, bytes]]:
    found: Any = message.headers()
    return list(found or [])
