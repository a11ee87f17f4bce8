"""Each kind of rule is obeyed by all four doors: gRPC, the Kafka bridge, a file, Spark."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import lakestore as ls
from jepsen.system.kafka import KafkaProcess, Topics
from lakestore.cli.main import run_command
from lakestore.errors import Invalid, LakestoreError
from lakestore.evolution import SetContract
from lakestore.kafka.bridge import spec_file
from lakestore.kafka.bridge.bridge import Bridge
from lakestore_server.main import Server
from tests.support.contract_texts import column, document, no_rows
from tests.support.seeds import serial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS, DLQ = "shop.orders", "shop.orders__dlq"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("who", pa.string(), nullable=False),
        ("amount", pa.decimal128(12, 2)),
        ("qty", pa.int32()),
        ("code", pa.string()),
        ("status", pa.string()),
        ("note", pa.string()),
        ("sku", pa.string()),
        ("day", pa.date32()),
    ]
)
COLUMNS = (
    column("id", primaryKey=True),
    column("who", required=True),
    column("amount", logicalTypeOptions={"minimum": 0, "exclusiveMaximum": 1000}),
    column("qty", logicalTypeOptions={"maximum": 90, "exclusiveMinimum": 0, "multipleOf": 3}),
    column("code", logicalTypeOptions={"pattern": "^[A-ZÄ]+$", "minLength": 2, "maxLength": 4}),
    column("status", enum=[{"value": "new"}, {"value": "paid"}]),
    column("note", quality=[{"metric": "missingValues", "arguments": {"missingValues": ["", "n/a"]}, "mustBe": 0}]),
    column("sku", unique=True),
    column("day", logicalTypeOptions={"minimum": "2020-01-01"}),
)
QUALITY = (no_rows("status = 'paid' AND amount < qty", "paid-is-worth-it"),)
GOOD = {
    "who": "ann", "amount": Decimal("99.50"), "qty": 6, "code": "ABÄ", "status": "new", "note": "x",
    "day": dt.date(2026, 1, 2),
}  # fmt: skip
BROKEN: dict[str, Mapping[str, Any]] = {
    "who.required": {"who": None},
    "amount.minimum": {"amount": Decimal("-0.01")},
    "amount.exclusiveMaximum": {"amount": Decimal(1000)},
    "qty.maximum": {"qty": 93},
    "qty.exclusiveMinimum": {"qty": 0},
    "qty.multipleOf": {"qty": 7},
    "code.pattern": {"code": "aB"},
    "code.minLength": {"code": "A"},
    "code.maxLength": {"code": "ABCDE"},
    "status.enum": {"status": "odd"},
    "note.missingValues": {"note": "n/a"},
    "sku.unique": {"sku": "sku 0"},
    "day.minimum": {"day": dt.date(2019, 12, 31)},
    "paid-is-worth-it": {"status": "paid", "amount": Decimal(1)},
}
"""Rule to the values of a row that breaks it alone."""
Door = Callable[[Sequence[dict[str, Any]]], None]


def order(number: int, **other: Any) -> dict[str, Any]:
    return {"id": number, "sku": f"sku {number}", **GOOD, **other}


def mixed() -> list[dict[str, Any]]:
    """Good rows, and one bad row for each rule. The row with a repeated value comes after the row that has it first."""
    good = [order(number) for number in range(40)]
    return good + [order(100 + number, **other) for number, other in enumerate(BROKEN.values())]


def contract(action: str) -> SetContract:
    return SetContract(document(COLUMNS, action, QUALITY), "orders")


def orders(lake: ls.Lake, action: str) -> None:
    who = pa.field("who", pa.string(), nullable=action == "count")
    schema = SCHEMA.set(1, who)
    lake.create_table(ORDERS, schema, primary_key=["id"], buckets=3).alter(contract(action))


def by_grpc(lake: ls.Lake) -> Door:
    return lambda rows: (lake.table(ORDERS).upsert(list(rows)), None)[1]


def by_file(server: Server, folder: Path, capsys: pytest.CaptureFixture[str]) -> Door:
    def load(rows: Sequence[dict[str, Any]]) -> None:
        path = folder / f"{serial('rows äö')}.jsonl"
        path.write_text("".join(json.dumps(row, default=str, ensure_ascii=False) + "\n" for row in rows))
        if run_command(["write", ORDERS, str(path), "--server", str(server.about["grpc"])]):
            raise Invalid(capsys.readouterr().err)

    return load


def by_kafka(lake: ls.Lake, kafka: KafkaProcess) -> Door:
    topic = serial("orders")
    topics = Topics(kafka.address)
    topics.make(topic)
    columns = ", ".join(f"{{name: {field.name}, type: '{kind}'}}" for field, kind in zip(SCHEMA, KINDS, strict=True))
    text = (
        f"name: {topic}\nsource: {{bootstrap: '{kafka.address}'}}\n"
        f"topics: [{{topic: {topic}, table: {ORDERS}, primary_key: [id], merge: upsert, columns: [{columns}]}}]"
    )
    spec = spec_file.parse(text, "bridge.yaml")

    def produce(rows: Sequence[dict[str, Any]]) -> None:
        topics.send(topic, [(None, json.dumps(row, default=str).encode()) for row in rows])
        counts = Bridge(spec, lake).run(once=True).shown()
        assert counts["commits"] == 1, "bad records are named by the server, and no commit is halved"

    return produce


KINDS = ("int64", "string", "decimal(12, 2)", "int32", "string", "string", "string", "string", "date")


def by_spark(spark: SparkSession, server: Server, folder: Path) -> Door:
    fields = "id long, who string, amount decimal(12, 2), qty int, code string, status string, note string, sku string,"

    def stream(rows: Sequence[dict[str, Any]]) -> None:
        place = folder / serial("in")
        frame = spark.createDataFrame([tuple(row[name] for name in SCHEMA.names) for row in rows], f"{fields} day date")
        frame.coalesce(1).write.parquet(str(place))
        source = spark.readStream.schema(frame.schema).parquet(str(place))
        writer = source.writeStream.format("lakestore").option("checkpointLocation", str(place) + " checkpoint")
        writer = writer.options(server=server.about["grpc"], table=ORDERS)
        writer.trigger(availableNow=True).start().awaitTermination()

    return stream


@pytest.fixture(
    params=[
        "grpc",
        "file",
        pytest.param("kafka", marks=pytest.mark.kafka),
        pytest.param("spark", marks=pytest.mark.spark),
    ]
)
def door(request: pytest.FixtureRequest, server: Server, lake: ls.Lake, tmp_path: Path) -> Door:
    if request.param == "grpc":
        return by_grpc(lake)
    if request.param == "file":
        return by_file(server, tmp_path, request.getfixturevalue("capsys"))
    if request.param == "kafka":
        return by_kafka(lake, request.getfixturevalue("kafka"))
    return by_spark(request.getfixturevalue("spark"), server, tmp_path)


def test_every_rule_is_obeyed_by_every_door(door: Door, lake: ls.Lake, request: pytest.FixtureRequest) -> None:
    """One test for all actions, because a session of Spark takes seconds to start."""
    orders(lake, "dead_letter")
    door(mixed())
    table = lake.table(ORDERS)
    assert sorted(table.scan(["id"]).to_arrow().column("id").to_pylist()) == list(range(40))
    letters = lake.table(DLQ).scan(["code", "value", "bridge"]).to_arrow().to_pylist()
    is_kafka = "kafka" in request.node.callspec.id
    assert {bool(row["bridge"]) for row in letters} == {is_kafka}, "a bridge keeps its own records"
    found = {row["code"]: json.loads(row["value"])["id"] for row in letters}
    wanted = {rule: 100 + number for number, rule in enumerate(BROKEN)}
    if is_kafka:  # its mapping finds this one before the server does
        wanted["missing-value"] = wanted.pop("who.required")
    assert found == wanted
    assert len(letters) == len(wanted)

    table.alter(contract("refuse"))
    is_slow = request.node.callspec.id in ("spark", "kafka")  # a job or a run takes a second
    for rule in ("status.enum", "sku.unique") if is_slow else BROKEN:
        _check_refused(door, lake, rule, is_kafka=is_kafka)

    lake.drop_table(ORDERS)
    orders(lake, "count")
    door(mixed())
    assert lake.table(ORDERS).scan().count() == 40 + len(BROKEN)
    [status] = [each for each in lake.status()["tables"] if each["name"] == ORDERS]
    counted = {each["rule"]: each["rows"] for each in status["contract"]["violations"] if each["action"] == "count"}
    assert counted == dict.fromkeys(BROKEN, 1)


def _check_refused(door: Door, lake: ls.Lake, rule: str, *, is_kafka: bool) -> None:
    """A bad row is never stored. Nothing is told of it but by Kafka, whose bridge keeps its record."""
    bad = order(300, **{**BROKEN[rule], **({"sku": "sku 299"} if rule == "sku.unique" else {})})
    letters = lake.table(DLQ).scan().count()
    if is_kafka:
        door([order(299), bad])
    else:
        with pytest.raises((LakestoreError, StreamingQueryException)) as refused:
            door([order(299), bad])
        assert rule in str(refused.value)
    assert lake.table(ORDERS).lookup([{"id": 300}]).num_rows == 0
    assert lake.table(DLQ).scan().count() == letters + is_kafka
