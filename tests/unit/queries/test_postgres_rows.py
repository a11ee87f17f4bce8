"""Rows of Arrow batches as messages of the Postgres protocol: framing, formats, escapes, batches of every shape."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest

from lakestore.errors import Invalid
from lakestore.union import sql
from lakestore_server.queries.postgres import texts, types
from lakestore_server.queries.postgres.rows import CopyBinary, CopyOptions, CopyText, DataRows, RowEncoder

if TYPE_CHECKING:
    from lakestore.union.cut import Source


def messages(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(tag, body) of each message."""
    while data:
        size = struct.unpack(">i", data[1:5])[0]
        assert len(data) >= 1 + size
        yield data[:1], data[5 : 1 + size]
        data = data[1 + size :]


def encoded(encoder: RowEncoder, *batches: pa.RecordBatch, bytes_max: int = 1 << 20) -> list[bytes]:
    """The bodies of all messages of a result."""
    data = encoder.start()
    rows = 0
    for batch in batches:
        for count, part in encoder.parts(batch, bytes_max):
            rows, data = rows + count, data + bytes(part)
    assert rows == sum(batch.num_rows for batch in batches)
    return [body for _, body in messages(data + encoder.end())]


def cells(body: bytes) -> list[bytes | None]:
    """The values of a DataRow."""
    count, place = struct.unpack(">h", body[:2])[0], 2
    values: list[bytes | None] = []
    for _ in range(count):
        size = struct.unpack(">i", body[place : place + 4])[0]
        place += 4
        values.append(None if size < 0 else body[place : place + size])
        place += max(size, 0)
    assert place == len(body)
    return values


SHOP = pa.record_batch(
    {
        "id": pa.array([1, None, -3], pa.int64()),
        "price": pa.array([0.5, -0.0, None], pa.float64()),
        "name": pa.array(["a\tb\\", "", None], pa.string()),
    }
)


def test_a_row_is_one_message_in_the_format_of_each_column() -> None:
    rows = [cells(body) for body in encoded(DataRows(SHOP.schema, (True, False, False)), SHOP)]
    assert rows == [
        [struct.pack(">q", 1), b"0.5", b"a\tb\\"],
        [None, b"-0", b""],
        [struct.pack(">q", -3), None, None],
    ]
    assert encoded(DataRows(SHOP.schema), SHOP) == encoded(DataRows(SHOP.schema, (False,)), SHOP)


def test_copy_escapes_delimiter_backslash_and_null() -> None:
    text = encoded(CopyText(SHOP.schema, CopyOptions(has_header=True)), SHOP)
    assert text == [b"id\tprice\tname\n", b"1\t0.5\ta\\tb\\\\\n", b"\\N\t-0\t\n", b"-3\t\\N\t\\N\n"]
    csv = encoded(CopyText(SHOP.schema, CopyOptions.csv()), SHOP)
    assert csv == [b"1,0.5,a\tb\\\n", b',-0,""\n', b"-3,,\n"]


def test_copy_in_binary_begins_with_the_signature_in_the_first_row() -> None:
    signature = b"PGCOPY\n\xff\r\n\0" + bytes(8)
    two = encoded(CopyBinary(), SHOP.slice(0, 0), SHOP.slice(0, 1), SHOP.slice(2))
    assert two[0].startswith(signature + struct.pack(">hi", 3, 8))
    assert two[1] == struct.pack(">hiqii", 3, 8, -3, -1, -1)
    assert two[2] == b"\xff\xff"
    assert encoded(CopyBinary()) == [signature + b"\xff\xff"]


@pytest.mark.parametrize("bytes_max", [1, 40, 1 << 20])
def test_parts_are_whole_messages_of_any_batch(bytes_max: int) -> None:
    encoders = [lambda: DataRows(SHOP.schema), lambda: CopyText(SHOP.schema, CopyOptions()), CopyBinary]
    for encoder in encoders:
        whole = encoded(encoder(), SHOP)
        assert encoded(encoder(), SHOP, bytes_max=bytes_max) == whole
        assert encoded(encoder(), SHOP.slice(0, 1), SHOP.slice(1, 1), SHOP.slice(2)) == whole


def test_rows_without_columns() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert encoded(DataRows(batch.schema), batch) == [b"\0\0", b"\0\0"]
    assert encoded(CopyText(batch.schema, CopyOptions()), batch) == [b"\n", b"\n"]


def test_a_type_without_a_postgres_type_is_refused_or_named() -> None:
    bignum = pa.field("n", pa.opaque(pa.binary(), "bignum", "DuckDB"))
    with pytest.raises(Invalid, match="column 'n' has the type bignum, which Postgres does not have"):
        types.postgres_type(bignum)
    nanoseconds = pa.field("t", pa.timestamp("ns"))
    assert types.postgres_type(nanoseconds).name == "text"
    assert "nanoseconds" in str(types.notice(nanoseconds))
    assert types.notice(pa.field("t", pa.timestamp("us"))) is None


NESTED = {
    "struct": (
        pa.struct([("a", pa.int32()), ('"', pa.string())]),
        [{"a": 1, '"': 'x"\\\n\x01é'}, None, {"a": None, '"': None}],
    ),
    "list of lists": (pa.list_(pa.list_(pa.int8())), [[[1], None, []], None, []]),
    "map": (pa.map_(pa.string(), pa.float64()), [[("k", 0.5), ("ä", None)], None, []]),
    "list of structs": (pa.list_(pa.struct([("b", pa.bool_())])), [[{"b": True}, None], [], None]),
    "struct of lists": (pa.struct([("l", pa.list_(pa.string()))]), [{"l": ["a", None]}, {"l": None}, None]),
}


@pytest.mark.parametrize("name", NESTED)
def test_nested_values_are_json(name: str) -> None:
    kind, values = NESTED[name]
    column = pa.array(values, kind)
    assert types.postgres_type(pa.field("v", kind)).name == "jsonb"
    for part in (column, column.slice(1), column.slice(2), column.slice(0, 0), pa.nulls(2, kind)):
        expected = [dict(value) if isinstance(value, list) and name == "map" else value for value in part.to_pylist()]
        written = [None if text is None else json.loads(text) for text in texts.text(part).to_pylist()]
        assert written == expected


def test_json_keeps_its_text_and_unions_have_their_alternative() -> None:
    documents = pa.array(['{"b":1, "a":[]}', None], pa.json_())
    assert texts.text(documents).to_pylist() == ['{"b":1, "a":[]}', None]
    inside = pa.StructArray.from_arrays([documents], ["j"])
    assert texts.text(inside).to_pylist() == ['{"j": {"b":1, "a":[]}}', '{"j": null}']
    codes = pa.array([0, 1, 0], pa.int8())
    union = pa.UnionArray.from_sparse(codes, [pa.array([1, 2, None]), pa.array(["a", "b", "c"])], ["n", "s"])
    assert texts.text(union).to_pylist() == ["1", '"b"', None]


def test_what_json_has_no_type_for_is_a_string_as_in_to_jsonb() -> None:
    kind = pa.struct(
        [("t", pa.timestamp("us", "UTC")), ("f", pa.float64()), ("d", pa.decimal128(5, 2)), ("b", pa.binary())]
    )
    column = pa.array([{"t": 0, "f": float("nan"), "d": Decimal("1.50"), "b": b"\1"}], kind)
    written = '{"t": "1970-01-01T01:00:00+01:00", "f": "NaN", "d": 1.50, "b": "\\\\x01"}'
    assert texts.text(column, "Europe/Berlin").to_pylist() == [written]


def test_a_lossless_query_names_the_types_that_arrow_lacks() -> None:
    text = "SELECT uuid() u, '[1]'::json j, true b, 1::hugeint h, '101'::bit t, '12:00:00+02'::timetz z"
    text += ", [uuid()] l, {'j': 1::hugeint} s"
    names = {
        False: "text text bool numeric bytea time _text jsonb",
        True: "uuid jsonb bool numeric text timetz _uuid jsonb",
    }
    for is_lossless, expected in names.items():
        query = sql.Query(text, is_lossless=is_lossless)
        with sql.stream(cast("Source", None), query) as rows:  # a text without a table needs no source
            assert " ".join(types.postgres_type(field).name for field in rows.schema) == expected
            (message,) = encoded(DataRows(rows.schema), *rows.batches)
            assert cells(message)[1:4] == [b"[1]", b"t", b"1"]
