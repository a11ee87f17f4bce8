"""Kafka in the demo: a broker, a topic of payments, and a bridge that writes them to a table."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from prometheus_client.parser import text_string_to_metric_families

from lakestore.errors import Unavailable
from lakestore_demo.actors import LOAD_ORDERS
from lakestore_demo.broker import START_SECONDS, Broker
from lakestore_demo.shop import EPOCH_US, TABLES_FILE, Numbers, cents, money

if TYPE_CHECKING:
    from lakestore.client.lake import Lake


PAYMENTS = TOPIC = "shop.payments"
PARTITIONS = 3
LETTERS = f"{PAYMENTS}__dlq"
BRIDGE_FILE = TABLES_FILE.with_name("bridge.yaml")
ADDRESS_VARIABLE = "SHOP_KAFKA"
_STATUS = ("open", "paid", "refunded")
_BAD = (
    '{{"payment_id": {0}, "order_id": ',
    '{{"payment_id": {0}, "order_id": 1, "status": "open", "amount": "much"}}',
    '{{"payment_id": {0}, "order_id": 1, "status": "open"}}',
)
"""Records that are truncated, have an invalid amount, or have no amount."""

Record = tuple[bytes, bytes]
"""Key and value."""


class Payments:
    """Creates records and remembers the table that they lead to. Each record pays one of the first `orders`."""

    def __init__(self, orders: int, seed: int = 11) -> None:
        self._random = np.random.default_rng(seed)
        self._orders = orders
        self._versions: Numbers = np.empty(0, dtype=np.int64)
        self._bad = 0

    def step(self, opened: int, changed: int) -> list[Record]:
        """Records of new payments and of changed payments, all different."""
        old = self._random.choice(len(self._versions), min(changed, len(self._versions)), replace=False)
        new = np.arange(len(self._versions), len(self._versions) + opened, dtype=np.int64)
        self._versions = np.concatenate([self._versions, np.zeros(opened, dtype=np.int64)])
        self._versions[old] += 1
        rows = self._table(np.concatenate([np.sort(old), new])).to_pydict()
        times = rows["opened_at"]
        return [
            (
                str(number).encode(),
                f'{{"payment_id": {number}, "order_id": {order}, "status": "{status}", "amount": "{amount}", '
                f'"opened_at": {round(at.timestamp() * 1_000)}}}'.encode(),
            )
            for number, order, status, amount, at in zip(
                rows["payment_id"], rows["order_id"], rows["status"], rows["amount"], times, strict=True
            )
        ]

    def bad(self) -> Record:
        self._bad += 1
        number = self._bad % max(len(self._versions), 1)
        return str(number).encode(), _BAD[self._bad % len(_BAD)].format(number).encode()

    def table(self) -> pa.Table:
        return self._table(np.arange(len(self._versions), dtype=np.int64))

    def joined(self, alive: pa.Array) -> tuple[int, int]:
        """Number and cents of the payments whose order is `alive`."""
        found = self.table().filter(pc.is_in(self.table().column("order_id"), alive))
        total = pc.sum(found.column("amount")).as_py()
        return found.num_rows, int(total * 100) if total is not None else 0

    def _table(self, numbers: Numbers) -> pa.Table:
        versions = self._versions[numbers]
        return pa.table(
            {
                "payment_id": numbers,
                "order_id": numbers * 7919 % self._orders,
                "status": pa.array(_STATUS).take(pa.array(np.minimum(versions, len(_STATUS) - 1))),
                "amount": money(cents(numbers, versions)),
                "opened_at": pa.array(EPOCH_US + numbers * 1_000, pa.timestamp("us", tz="UTC")),
            }
        )


STEPS_PER_SECOND = 5
STEP_NEW, STEP_CHANGED = 100, 99
"""Payments of one step. One bad record is added."""
FLUSH_SECONDS = 30
# Small heap and quick start: the broker shares two cores with everything else.
JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(frozen=True, slots=True)
class Seen:
    """Figures of the bridge's metrics."""

    records: int
    rejected: int
    age_seconds: float
    """99th percentile of the records' ages at their commit."""


class Kafka:
    """A broker with the topic. It answers when the constructor returns. Raises `Unavailable`."""

    def __init__(self, folder: Path, metrics_port: int) -> None:
        self.metrics_port = metrics_port
        self._broker = Broker(folder, options=JAVA_OPTIONS)
        self.address = self._broker.address
        self.payments = Payments(LOAD_ORDERS)
        self.sent = 0
        self.seconds = 0.0
        self._bad: list[tuple[int, int, bytes]] = []
        self._failed: list[KafkaError] = []
        # librdkafka's own log lines are dropped; `check` watches the broker.
        settings: dict[str, str | int | float | bool] = {"bootstrap.servers": self.address, "log_level": 0}
        admin = AdminClient(settings)
        try:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(START_SECONDS)
        except KafkaException as error:
            self.stop()
            raise Unavailable(f"the Kafka broker does not make a topic: {error.args[0]}") from error
        self._producer = Producer({**settings, "enable.idempotence": True, "linger.ms": 5})

    def stream(self, stop: threading.Event) -> None:
        """Send records at a steady pace until stopped. Returns when the broker has them all."""
        started = due = time.perf_counter()
        while not stop.is_set():
            for record in self.payments.step(STEP_NEW, STEP_CHANGED):
                self._send(record, self._delivered)
            self._send(self.payments.bad(), self._delivered_bad)
            due = max(due + 1 / STEPS_PER_SECOND, time.perf_counter() - 1)
            while (left := due - time.perf_counter()) > 0 and not stop.is_set():
                self._producer.poll(min(left, 0.05))
        left_over = self._producer.flush(FLUSH_SECONDS)
        self.seconds = time.perf_counter() - started
        if left_over or self._failed:
            raise Unavailable(f"the Kafka broker does not take records: {self._failed[:1] or 'no answer'}")

    def _send(self, record: Record, delivered: Callable[[KafkaError | None, Message], None]) -> None:
        key, value = record
        self._producer.produce(TOPIC, value, key, on_delivery=delivered)
        self.sent += 1

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed.append(error)

    def _delivered_bad(self, error: KafkaError | None, message: Message) -> None:
        self._delivered(error, message)
        self._bad.append((message.partition() or 0, message.offset() or 0, message.value() or b""))

    def check(self) -> None:
        """Raise `Unavailable` if the broker has ended."""
        self._broker.check()

    def stop(self) -> None:
        self._broker.kill()

    def seen(self) -> Seen | None:
        """The bridge's figures; None until it answers."""
        try:
            with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return None
        values: dict[str, float] = {}
        ages: list[tuple[float, float]] = []
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values[sample.name] = values.get(sample.name, 0) + sample.value
                if sample.name == "lakestore_bridge_age_seconds_bucket":
                    ages.append((float(sample.labels["le"]), sample.value))
        enough = 0.99 * values.get("lakestore_bridge_age_seconds_count", 0)
        return Seen(
            int(values.get("lakestore_bridge_records_total", 0)),
            int(values.get("lakestore_bridge_rejected_total", 0)),
            next((bound for bound, count in sorted(ages) if count >= enough), 0.0),
        )

    def caught_up(self) -> bool:
        """True if the bridge has committed everything that was sent."""
        seen = self.seen()
        return seen is not None and seen.records >= self.sent

    def table_is_right(self, lake: Lake) -> bool:
        """True if the table holds the last good record of each payment."""
        wanted = self.payments.table()
        found = lake.table(PAYMENTS).scan().to_arrow().select(wanted.column_names).sort_by("payment_id")
        return bool(found.cast(wanted.schema).equals(wanted))

    def letters_are_right(self, lake: Lake) -> bool:
        """True if the dead letters are the bad records, each once, byte for byte."""
        found: pa.Table = lake.table(LETTERS).scan().to_arrow()
        columns = (found.column(name).to_pylist() for name in ("partition", "kafka_offset", "value"))
        return sorted(zip(*columns, strict=True)) == sorted(self._bad)

    def line(self) -> str:
        seen = self.seen() or Seen(0, 0, 0.0)
        return (
            f"{seen.records:,} records by the bridge at {self.sent / max(self.seconds, 1e-9):,.0f}/s, "
            f"99 % in {seen.age_seconds:g} s from record to commit, {seen.rejected:,} dead letters"
        )
