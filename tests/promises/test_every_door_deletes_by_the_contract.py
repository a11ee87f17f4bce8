"""A delete is what the contract says, by all doors: gRPC, JSON and Debezium in Kafka, a file, Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import lakestore as ls
from jepsen.system.kafka import KafkaProcess, Topics
from lakestore.cli.main import run_command
from lakestore.evolution import SetContract
from lakestore.kafka.bridge import spec_file
from lakestore.kafka.bridge.bridge import Bridge
from lakestore_server.main import Server
from tests.support.contract_texts import column, document
from tests.support.debezium_events import event, text
from tests.support.seeds import serial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS, DLQ = "shop.orders", "shop.orders__dlq"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("who", pa.string())])
COLUMNS = (column("id", primaryKey=True, required=True), column("who"))
FATES = {"delete": ([2, 3], []), "ignore": ([1, 2, 3], []), "dead_letter": ([1, 2, 3], [1, 9])}
"""Fate to the keys that stay and the keys of the dead letters."""
Door = Callable[[], None]
"""Write row 3 and delete rows 1 and 9, which is absent. A second call is a retry that writes nothing."""


def contract(tombstone: str) -> SetContract:
    made = json.loads(document(COLUMNS))
    made["schema"][0]["customProperties"] = [{"property": "lakestore.deletes", "value": {"tombstone": tombstone}}]
    return SetContract(json.dumps(made, indent=1), "orders", "test")


def by_grpc(lake: ls.Lake, name: str) -> Door:
    def write() -> None:
        with lake.producer(name) as producer:
            if producer.progress != "1":
                with producer.commit(progress="1") as commit:
                    commit.upsert(ORDERS, [{"id": 3, "who": "cé"}])
                    commit.delete(ORDERS, [{"id": 1}, {"id": 9}])

    return write


def by_file(server: Server, folder: Path, *, keys_alone: bool) -> Door:
    """A file with changes, or two files: one with rows, one with keys to delete."""
    name, address = serial("rows äö"), ["--server", str(server.about["grpc"])]
    changes, rows, keys = (folder / f"{name} {part}.jsonl" for part in ("changes", "rows", "keys"))
    added: dict[str, object] = {"id": 3, "who": "cé"}
    deleted: list[dict[str, object]] = [{"id": 1}, {"id": 9}]
    rows.write_text(json.dumps(added) + "\n")
    keys.write_text("".join(json.dumps(each) + "\n" for each in deleted))
    changes.write_text("".join(json.dumps(each) + "\n" for each in _with_op("D", deleted) + _with_op("I", [added])))

    def load() -> None:
        if keys_alone:
            assert run_command(["write", ORDERS, str(rows), *address]) == 0
            assert run_command(["write", ORDERS, str(keys), "--delete", *address]) == 0
        else:
            assert run_command(["write", ORDERS, str(changes), "--op-column", "op", *address]) == 0

    return load


def _with_op(op: str, rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    return [{**row, "op": op} for row in rows]


def by_kafka(lake: ls.Lake, kafka: KafkaProcess, *, debezium: bool) -> Door:
    """With Debezium's deletes each has its null value behind it."""
    topic = serial("orders")
    topics = Topics(kafka.address)
    topics.make(topic, 1)
    kind, place = ("format: debezium-json", "value.id") if debezium else ("merge: upsert", "key.id")
    file = (
        f"name: {topic}\nsource: {{bootstrap: '{kafka.address}'}}\n"
        f"topics: [{{topic: {topic}, table: {ORDERS}, primary_key: [id], {kind},"
        f" columns: [{{name: id, type: int64, from: {place}}}, {{name: who, type: string}}]}}]"
    )
    added = {"id": 3, "who": "cé"}
    first = text(event("c", None, added)) if debezium else _json(added)
    records: list[tuple[bytes | None, bytes | None]] = [(_key(3), first)]
    for number in (1, 9):
        if debezium:
            records.append((_key(number), text(event("d", {"id": number, "who": "x"}))))
        records.append((_key(number), None))
    topics.send(topic, records)
    spec = spec_file.parse(file, "bridge.yaml")

    def run() -> None:
        Bridge(spec, lake).run(once=True)

    return run


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _key(number: int) -> bytes:
    return _json({"id": number})


def by_spark(spark: SparkSession, server: Server, folder: Path) -> Door:
    """A stream of changes. The retry is the same query from its checkpoint."""
    place = folder / serial("in")
    rows = [(3, "cé", "+I"), (1, "ann", "-D"), (9, None, "-D")]
    frame = spark.createDataFrame(rows, "id long, who string, __change string")
    frame.coalesce(1).write.parquet(str(place))

    def stream() -> None:
        source = spark.readStream.schema(frame.schema).parquet(str(place))
        writer = source.writeStream.format("lakestore").option("checkpointLocation", f"{place} checkpoint")
        writer = writer.options(server=server.about["grpc"], table=ORDERS)
        writer.trigger(availableNow=True).start().awaitTermination()

    return stream


@pytest.fixture(
    params=[
        "grpc",
        "file",
        "file of keys",
        pytest.param("json", marks=pytest.mark.kafka),
        pytest.param("debezium", marks=pytest.mark.kafka),
        pytest.param("spark", marks=pytest.mark.spark),
    ]
)
def new_door(request: pytest.FixtureRequest, server: Server, lake: ls.Lake, tmp_path: Path) -> Callable[[], Door]:
    """Makes a door with rows of its own."""
    if request.param == "grpc":
        return lambda: by_grpc(lake, serial("producer"))
    if request.param.startswith("file"):
        return lambda: by_file(server, tmp_path, keys_alone=request.param == "file of keys")
    if request.param == "spark":
        spark = request.getfixturevalue("spark")
        return lambda: by_spark(spark, server, tmp_path)
    kafka = request.getfixturevalue("kafka")
    return lambda: by_kafka(lake, kafka, debezium=request.param == "debezium")


def test_a_delete_by_every_door_is_what_the_contract_says(
    new_door: Callable[[], Door], lake: ls.Lake, request: pytest.FixtureRequest
) -> None:
    """One test for all fates, because a session of Spark takes seconds to start."""
    for fate, (stays, lost) in FATES.items():
        table = lake.create_table(ORDERS, SCHEMA, primary_key=["id"], buckets=3)
        table.upsert([{"id": 1, "who": "ann"}, {"id": 2, "who": "bob"}])
        table.alter(contract(fate))
        write = new_door()
        for _ in range(2):
            write()
            rows = lake.table(ORDERS).scan().to_arrow().to_pylist()
            assert sorted(row["id"] for row in rows) == stays, fate
            assert {row["who"] for row in rows if row["id"] == 3} == {"cé"}
            assert _letters(lake, from_bridge=request.node.callspec.id in ("json", "debezium")) == lost, fate
        lake.drop_table(ORDERS)
        if lost:
            lake.drop_table(DLQ)


def _letters(lake: ls.Lake, *, from_bridge: bool) -> list[int]:
    """The keys of the dead letters. A bridge makes its own, with its records."""
    if DLQ not in [table.name for table in lake.tables()]:
        return []
    letters = lake.table(DLQ).scan().to_arrow().to_pylist()
    assert {letter["code"] for letter in letters} <= {"tombstone"}
    assert {bool(letter["bridge"]) for letter in letters} <= {from_bridge}
    return sorted(_id(letter) for letter in letters)


def _id(letter: dict[str, bytes]) -> int:
    """The server's letter has the key in `value`, a bridge's letter has its record."""
    said = json.loads(letter["value"] or letter["key"])
    return int((said.get("before") or said)["id"])
