"""A running source of change events: PostgreSQL, Kafka and Debezium in Kafka Connect, with two connectors on one shop.

`typed` writes the schema into each record, and Debezium's binary decimals; `plain` writes JSON without a schema, with
decimals, times and intervals as texts. Each has topics of its own, and both send TRUNCATE and transaction metadata.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

import lakestore as ls
from jepsen.system.kafka import KafkaProcess
from lakestore.kafka.bridge.spec import BatchBounds, BridgeSpec, SourceSpec, TableSpec, TopicSpec
from tests.support.connect import Connect
from tests.support.debezium_shop import KINDS, STRING_INTERVAL, Kind, Shop, differences, told_differences
from tests.support.postgres import MISSING, Postgres, programs

_COMMON = {"schema.include.list": "app", "skipped.operations": "none", "provide.transaction.metadata": "true"}
_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
CONNECTORS = {
    "typed": _COMMON,
    "plain": {
        **_COMMON,
        "decimal.handling.mode": "string",
        "time.precision.mode": "isostring",
        "interval.handling.mode": "string",
        "key.converter": _CONVERTER,
        "key.converter.schemas.enable": "false",
        "value.converter": _CONVERTER,
        "value.converter.schemas.enable": "false",
    },
}
BATCH = BatchBounds(rows=50, seconds=0.05)
TEMPLATES = {"typed": "{schema}.{table}", "plain": "plain.{schema}_{table}"}
"""The `table` of bridge.yaml by connector."""
TOLD = "app.told"
"""The table whose events are rows of a log."""
_KINDS: dict[str, dict[str, Kind]] = {"typed": {**KINDS}, "plain": {**KINDS, "interval": STRING_INTERVAL}}


class DebeziumSource:
    """The processes of one source. A context manager."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        connectors: tuple[str, ...] = ("typed", "plain"),
        *,
        kafka: KafkaProcess | None = None,
    ) -> None:
        """`kafka` is a running broker, which stays; without one the source has its own."""
        if programs() is None:
            pytest.fail(MISSING)
        self.connectors = connectors
        with ExitStack() as opening:
            with ThreadPoolExecutor(1) as beside:
                made = beside.submit(self._made, opening, seed)
                self.kafka = kafka or opening.enter_context(KafkaProcess(folder / "kafka"))
                self.connect = opening.enter_context(Connect(folder / "connect", self.kafka.address))
                self.postgres, self.shop = made.result()
            for name in connectors:
                self.connect.postgres(name, self.postgres, CONNECTORS[name])
            for name in connectors:
                self.connect.runs(name)
            self._open = opening.pop_all()

    @staticmethod
    def _made(opening: ExitStack, seed: int) -> tuple[Postgres, Shop]:
        postgres = opening.enter_context(Postgres())
        shop = Shop(postgres, random.Random(seed))
        shop.make()
        return postgres, shop

    def spec(self, name: str, *, transactions: bool = False, front: str = "", **said: object) -> BridgeSpec:
        """Return a bridge from all topics of the connectors to tables that their events name, with `front` in front."""
        topics = tuple(self._emptied(each, front=front) for each in self.connectors)
        topics += tuple(self.topic(each, transactions=transactions, front=front, **said) for each in self.connectors)
        options = {"session.timeout.ms": "1500", "heartbeat.interval.ms": "200"}
        return BridgeSpec(name, {"": SourceSpec("", self.kafka.address, name, options=options)}, topics, BATCH)

    @staticmethod
    def _emptied(connector: str, *, front: str) -> TopicSpec:
        """Return the spec's entry for tables that follow TRUNCATEs. One of these tables has no key in PostgreSQL."""
        target = TableSpec(front + TEMPLATES[connector], primary_key=("id",), truncate="follow")
        return TopicSpec("", pattern=rf"{connector}\.app\.(cleared|keyless)", target=target, format="debezium-json")

    @staticmethod
    def topic(connector: str, *, transactions: bool = False, front: str = "", **said: object) -> TopicSpec:
        """Return the entry of a connector's topics; `said` are options of its tables."""
        target = TableSpec(front + TEMPLATES[connector], **said)  # type: ignore[arg-type]
        marks = f"{connector}.transaction" if transactions else ""
        pattern = rf"{connector}\.app\..*"
        return TopicSpec("", pattern=pattern, target=target, format="debezium-json", transactions=marks)

    def settle(self) -> None:
        """Wait until the events of all changes so far are in Kafka."""
        fence = self.shop.fence()
        for connector in self.connectors:
            self.connect.committed(connector, fence)

    def differences(self, lake: ls.Lake, *tables: str, front: str = "") -> list[str]:
        """Return a sentence for each difference of tables of PostgreSQL and the lake, by every connector."""
        found: list[str] = []
        for connector in self.connectors:
            for table in tables:
                name = table.partition(".")[2].strip('"').replace(" ", "_")
                bridged = front + TEMPLATES[connector].format(schema="app", table=name)
                if table == TOLD:
                    found += told_differences(self.postgres, lake, bridged)
                    continue
                found += differences(self.postgres, lake, table, bridged, _KINDS[connector])
        return found

    @staticmethod
    def dead_letters(lake: ls.Lake) -> list[str]:
        """Return a sentence for each dead letter."""
        return [
            f"{table.name}: {row['code']}: {row['sentence']}"
            for table in lake.tables()
            if table.name.endswith("__dlq")
            for row in table.scan(["code", "sentence"]).to_arrow().to_pylist()
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._open.close()
