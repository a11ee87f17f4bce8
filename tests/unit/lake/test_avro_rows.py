"""Avro data files: every type that Iceberg writes, of every codec, in batches."""

from __future__ import annotations

import io
import zlib
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from lakestore.errors import Corrupt
from lakestore.iceberg import other_formats
from lakestore.iceberg.avro import AvroFile, Container
from lakestore.iceberg.field_ids import id_of
from lakestore.iceberg.other_formats import AvroRows
from tests.support.seeds import seeded


def part(name: str, kind: Any, number: int, optional: bool = True) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind] if optional else kind, "field-id": number}


POINT = {"type": "record", "name": "r9", "fields": [part("x", "long", 10, False), part("y", "string", 11)]}
PAIRS = {"type": "record", "name": "k1_v2", "fields": [part("key", "long", 13, False), part("value", "r9", 14)]}
PRICE = {"type": "fixed", "name": "decimal_9_2", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}
SCHEMA = {
    "type": "record",
    "name": "table",
    "fields": [
        part("id", "long", 1, False),
        part("yes", "boolean", 2),
        part("f", "float", 3),
        part("day", {"type": "int", "logicalType": "date"}, 4),
        part("time", {"type": "long", "logicalType": "time-micros"}, 5),
        part("at", {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True}, 6),
        part("local", {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False}, 7),
        part("price", PRICE, 8),
        part("point", POINT, 9),
        part("by_number", {"type": "array", "logicalType": "map", "items": PAIRS}, 12),
        part("by_name", {"type": "map", "values": ["null", "decimal_9_2"], "key-id": 16, "value-id": 17}, 15),
        part("many", {"type": "array", "items": ["null", "double"], "element-id": 19}, 18),
        part("raw", "bytes", 20),
        part("three", {"type": "fixed", "name": "fixed_3", "size": 3}, 21),
    ],
}
ROWS: list[dict[str, Any]] = [
    {
        "id": -5,
        "yes": True,
        "f": 1.5,
        "day": date(1969, 12, 31),
        "time": time(1, 2, 3, 4),
        "at": datetime(1900, 1, 1, tzinfo=UTC),
        "local": datetime(9000, 1, 1, 0, 0, 0, 1),
        "price": Decimal("-1234567.89"),
        "point": {"x": 1, "y": None},
        "by_number": [(7, {"x": 2, "y": "ä"}), (8, None)],
        "by_name": [("a", Decimal("0.01")), ("b", None)],
        "many": [1.0, None],
        "raw": b"\0\1",
        "three": b"abc",
    },
    {"id": 6, **{name["name"]: None for name in SCHEMA["fields"][1:]}},  # type: ignore[index]
]


def stored(row: dict[str, Any]) -> dict[str, Any]:
    """A row as fastavro takes it."""
    pairs = row["by_number"] and [{"key": key, "value": value} for key, value in row["by_number"]]
    local = row["local"] and (row["local"] - datetime(1970, 1, 1)) // (datetime(1, 1, 1, 0, 0, 0, 1) - datetime.min)
    return {**row, "by_number": pairs, "by_name": row["by_name"] and dict(row["by_name"]), "local": local}


def file(codec: str = "null", rows: list[dict[str, Any]] = ROWS, interval: int = 16_000) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, SCHEMA, map(stored, rows), codec=codec, sync_interval=interval)
    return out.getvalue()


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2"])
def test_every_type_is_read(codec: str) -> None:
    found = AvroRows(file(codec), "a.avro")
    assert [id_of(field) for field in found.schema] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 18, 20, 21]
    point = found.schema.field("point").type
    assert [id_of(field) for field in point] == [10, 11]
    assert (point.field("x").nullable, point.field("y").nullable) == (False, True)
    assert id_of(found.schema.field("many").type.value_field) == 19
    assert id_of(found.schema.field("by_name").type.item_field) == 17
    (batch,) = found.batches(found.schema.names)
    assert batch.to_pylist() == ROWS
    (some,) = found.batches(["three", "id"])
    assert some.to_pylist() == [{"three": row["three"], "id": row["id"]} for row in ROWS]


def test_snappy_and_zstandard_are_read() -> None:
    container = Container.opened(file(), "x")
    found = AvroFile({**container.meta, "avro.codec": b"zstandard"}, container.sync, container.records()).encode()
    (batch,) = AvroRows(found, "a.avro").batches(["id"])
    assert batch.column(0).to_pylist() == [-5, 6]
    body = container.data[container.begin : -16]
    count, size = body[:1], len(body) - 3
    assert body[1:3] == bytes([2 * size & 0x7F | 0x80, 2 * size >> 7])
    packed = pa.compress(body[3:], "snappy", asbytes=True) + zlib.crc32(body[3:]).to_bytes(4, "big")
    wide = bytes([2 * len(packed) & 0x7F | 0x80, 2 * len(packed) >> 7])
    head = container.data[: container.begin].replace(b"\x14avro.codec\x08null", b"\x14avro.codec\x0csnappy")
    (batch,) = AvroRows(head + count + wide + packed + container.sync, "a.avro").batches(["id"])
    assert batch.column(0).to_pylist() == [-5, 6]
    wrong = packed[:-1] + bytes([packed[-1] ^ 1])
    with pytest.raises(Corrupt, match=r"a\.avro is no readable Avro file: a block has another checksum"):
        list(AvroRows(head + count + wide + wrong + container.sync, "a.avro").batches(["id"]))


def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_formats, "BATCH_ROWS", 10)
    found = AvroRows(file(rows=ROWS * 17, interval=500), "a.avro")
    batches = list(found.batches(["id"]))
    assert [batch.num_rows for batch in batches] == [10, 10, 10, 4]
    assert [value for batch in batches for value in batch.column(0).to_pylist()] == [-5, 6] * 17


def test_damaged_files_are_corrupt_and_named() -> None:
    random, whole, damaged = seeded("damage"), file(rows=ROWS * 3), 0
    for _ in range(300):
        held = bytearray(whole)
        held[random.randrange(len(held))] = random.randrange(256)
        cut = held[: random.randrange(len(held))] if random.random() < 0.2 else held
        try:
            found = AvroRows(bytes(cut), "a.avro")
            list(found.batches(found.schema.names))
        except Corrupt as error:
            damaged += 1
            assert "a.avro" in error.message
    assert damaged > 100
