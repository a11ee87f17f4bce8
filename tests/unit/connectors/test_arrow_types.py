"""Arrow records of one block whose types differ."""

from __future__ import annotations

import io
from decimal import Decimal

import pyarrow as pa
import pytest

from lakestore.kafka.bridge.decode.decoders import ArrowDecoder
from tests.support.bridge_blocks import block


def _record(**columns: pa.Array) -> bytes:
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    out = io.BytesIO()
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue()


@pytest.mark.parametrize(
    ("odd", "other"),
    [
        (pa.array([2**53 + 1]), pa.array([1.5])),
        (pa.array([2**62]), pa.array([Decimal("1.5")], pa.decimal128(38, 30))),
    ],
    ids=["float", "decimal"],
)
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
def test_value_that_the_common_type_does_not_hold_is_a_dead_letter(
    odd: pa.Array, other: pa.Array, is_first: bool
) -> None:
    records = [_record(c=odd), _record(c=other)] if is_first else [_record(c=other), _record(c=odd)]
    decoded = ArrowDecoder().decode(block(records), None)
    assert [row["c"] for row in decoded.values.to_pylist()] == other.to_pylist()
    assert [(reject.record, reject.code) for reject in decoded.rejects] == [(0 if is_first else 1, "other-types")]


def test_dictionary_of_views_is_decoded() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 0]), pa.array(["a"], pa.string_view()))
    decoded = ArrowDecoder().decode(block([_record(c=array)]), None)
    assert decoded.values.to_pylist() == [{"c": "a"}, {"c": "a"}]


def test_column_of_an_earlier_block_is_null_in_a_later_one() -> None:
    decoder = ArrowDecoder()
    decoder.decode(block([_record(a=pa.array([1]), b=pa.array(["x"]))]), None)
    later = decoder.decode(block([_record(a=pa.array([2]))]), None)
    assert later.values.to_pylist() == [{"a": 2, "b": None}]
