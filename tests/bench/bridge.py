"""Figures of the Kafka bridge: records of 1 KB in a filled topic, one bridge process, a server and a broker beside."""

from __future__ import annotations

import json
import random
import statistics
import string
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass

import lakestore
from jepsen.system.kafka import KafkaProcess, Topics
from lakestore.kafka.bridge.decode.protobuf_schema import compile_proto, message
from lakestore.kafka.bridge.spec import (
    BridgeSpec,
    ColumnSpec,
    Format,
    SchemaSpec,
    SourceSpec,
    TableSpec,
    TopicSpec,
)
from tests.bench.report import Figure
from tests.support.bridge_process import BridgeProcess, once
from tests.support.process import ServerProcess

RECORDS, KEYS, PARTITIONS, RUNS = 300_000, 100_000, 3, 3
_CHANCE = random.Random(7)
_WORDS = ["".join(_CHANCE.choices(string.ascii_lowercase, k=_CHANCE.randint(3, 10))) for _ in range(5_000)]
COLUMNS = (
    ColumnSpec("order_id", "int64", required=True),
    ColumnSpec("customer", "string"),
    ColumnSpec("amount", "float64"),
    ColumnSpec("quantity", "int32"),
    ColumnSpec("paid", "bool"),
    ColumnSpec("placed", "timestamptz"),
    ColumnSpec("status", "string"),
    ColumnSpec("city", "string", "value.address.city"),
    ColumnSpec("street", "string", "value.address.street"),
    ColumnSpec("note", "string"),
)
_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "order_id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "quantity", "type": "int"},
        {"name": "paid", "type": "boolean"},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "status", "type": "string"},
        {
            "name": "address",
            "type": {
                "type": "record",
                "name": "Address",
                "fields": [{"name": "city", "type": "string"}, {"name": "street", "type": "string"}],
            },
        },
        {"name": "note", "type": "string"},
    ],
}


_PROTO = """syntax = "proto3";
message Order {
  int64 order_id = 1; string customer = 2; double amount = 3; int32 quantity = 4; bool paid = 5; int64 placed = 6;
  string status = 7; Address address = 8; string note = 9;
}
message Address { string city = 1; string street = 2; }
"""


def row(number: int) -> dict[str, Any]:
    """An order of about 1 KB."""
    words = _CHANCE.choices(_WORDS, k=100)
    return {
        "order_id": number % KEYS,
        "customer": f"{words[0]} {words[1]}",
        "amount": _CHANCE.randrange(1_000_000) / 100,
        "quantity": _CHANCE.randrange(100),
        "paid": _CHANCE.random() < 0.5,
        "placed": 1_790_000_000_000 + number,
        "status": _CHANCE.choice(("new", "paid", "sent", "returned")),
        "address": {"city": words[2], "street": f"{words[3]} {number % 200}"},
        "note": " ".join(words[4:]),
    }


def _json(number: int) -> bytes:
    return json.dumps(row(number)).encode()


def _debezium(number: int) -> bytes:
    after = row(number)
    source = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "orders", "lsn": number, "ts_ms": 1}
    payload = {"before": None, "after": after, "source": source, "op": "c", "ts_ms": 1_790_000_000_000 + number}
    return json.dumps(payload).encode()


def _avro() -> Callable[[int], bytes]:
    import io

    import fastavro

    schema = fastavro.parse_schema(_AVRO)

    def encode(number: int) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row(number))
        return out.getvalue()

    return encode


def _protobuf() -> Callable[[int], bytes]:
    made: Any = GetMessageClass(message(*compile_proto(_PROTO, {}), (0,)))

    def encode(number: int) -> bytes:
        found: bytes = ParseDict(row(number), made()).SerializeToString()
        return found

    return encode


@dataclass(frozen=True, slots=True)
class Case:
    """One figure."""

    name: str
    bar: int
    format: Format
    make: Callable[[int], bytes]
    keyed: bool = False
    schema: str = ""


def cases() -> list[Case]:
    """All rates."""
    return [
        Case("JSON into a log table", 60_000, "json", _json),
        Case("JSON upserted", 40_000, "json", _json, keyed=True),
        Case("Avro into a log table", 80_000, "avro", _avro(), schema=json.dumps(_AVRO)),
        Case("Protobuf into a log table", 40_000, "protobuf", _protobuf(), schema=_PROTO),
        Case("Debezium JSON upserted", 30_000, "debezium-json", _debezium, keyed=True),
    ]


def measure(folder: Path) -> Iterator[Figure]:
    """All figures, one after the other."""
    with (
        KafkaProcess(folder / "kafka") as kafka,
        ServerProcess(folder / "server") as server,
        lakestore.connect(server.address) as lake,
    ):
        topics = Topics(kafka.address)
        filled: dict[Format, str] = {}
        for case in cases():
            if case.format not in filled:
                filled[case.format] = _filled(topics, case)
            rates = []
            for run in range(RUNS):
                spec = _spec(kafka, filled[case.format], case, run)
                records, seconds = once(folder / "bridge", spec, server.address)
                if records != RECORDS:
                    raise AssertionError(f"{records} records of {RECORDS}")
                rates.append(records / seconds)
                lake.drop_table(spec.topics[0].tables[0].table)
            median = statistics.median(rates)
            shown = f"{median:,.0f} records/s (of {', '.join(f'{rate:,.0f}' for rate in sorted(rates))})"
            yield Figure(case.name, shown, f"≥ {case.bar:,}", median >= case.bar)
        yield _latency(folder, kafka, topics, server, lake)


def _filled(topics: Topics, case: Case) -> str:
    topic = topics.make(f"bench.{case.format}", PARTITIONS)
    for number in range(RECORDS):
        topics.put(topic, case.make(number), None, number % KEYS % PARTITIONS)
    topics.flush()
    return topic


def _spec(kafka: KafkaProcess, topic: str, case: Case, run: int) -> BridgeSpec:
    name = f"b{abs(hash((case.name, run)))}"
    table = TableSpec(f"bench.{name}", ("order_id",) if case.keyed else (), COLUMNS)
    source = SourceSpec("", kafka.address, name)
    wired = TopicSpec("", topic, target=table, format=case.format, schema=SchemaSpec(text=case.schema), wire="plain")
    return BridgeSpec(name, {"": source}, (wired,))


def _latency(folder: Path, kafka: KafkaProcess, topics: Topics, server: ServerProcess, lake: lakestore.Lake) -> Figure:
    """From a producer's send to a subscriber's hands, 200 records a second."""
    topic = topics.make("bench.latency", PARTITIONS)
    columns = (ColumnSpec("sent", "float64"),)
    wired = TopicSpec("", topic, target=TableSpec("bench.latency", columns=columns))
    spec = BridgeSpec("latency", {"": SourceSpec("", kafka.address, "latency")}, (wired,))
    once(folder / "bridge", spec, server.address)
    took: list[float] = []
    done = threading.Event()

    def listen() -> None:
        for batch in lake.changes(["bench.latency"], "latest"):
            now = time.time()
            took.extend(now - sent for sent in batch.to_arrow().column("sent").to_pylist())
            if len(took) >= 2_000:
                break
        done.set()

    threading.Thread(target=listen, daemon=True).start()
    with BridgeProcess(folder / "latency", spec, server.address):
        for number in range(2_600):
            topics.put(topic, json.dumps({"sent": time.time()}).encode(), None, number % PARTITIONS)
            topics.serve()
            time.sleep(0.005)
        topics.flush()
        if not done.wait(30):
            raise AssertionError(f"only {len(took)} records came")
    middle, high = np.percentile(took[-1_500:], [50, 99])
    shown = f"p50 {middle * 1e3:.0f} ms, p99 {high * 1e3:.0f} ms"
    return Figure("Kafka to subscriber", shown, "p99 < 500 ms", bool(high < 0.5))
