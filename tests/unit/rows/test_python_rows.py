"""Rows of Python: a value that its column does not take is named by column, row and rule, in our words."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakestore.errors import Invalid
from lakestore.model.table import define
from lakestore.rows.ipc import conform
from lakestore.rows.user import from_user

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("amount", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
        ("small", pa.int8()),
        ("text", pa.string()),
    ]
)
TABLE = define("shop.orders", SCHEMA, primary_key=["id"])


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"id": "abc"}, "column 'id', row 1: 'abc' is no int64"),
        ({"id": 2**70}, "column 'id', row 1: 1180591620717411303424 is no int64"),
        ({"small": 300}, "column 'small', row 1: 300 is no int8"),
        ({"text": 5}, "column 'text', row 1: 5 is no string"),
        ({"at": "yesterday"}, "column 'at', row 1: 'yesterday' is no timestamp"),
        ({"amount": "x"}, "column 'amount', row 1: 'x' is no decimal(9,2)"),
        (
            {"amount": Decimal("1.234")},
            "column 'amount', row 1: Decimal('1.234') is no decimal(9,2): it has 3 places after the point, and the"
            " type has 2",
        ),
        (
            {"amount": Decimal("12345678901")},
            "column 'amount', row 1: Decimal('12345678901') is no decimal(9,2): it has more than 7 digits before the"
            " point",
        ),
        ({"tags": "abc"}, "column 'tags', row 1: 'abc' is no list<string>"),
        ({"tags": b"abc"}, "column 'tags', row 1: b'abc' is no list<string>"),
        ({"tags": {"a": 1}}, "column 'tags', row 1: {'a': 1} is no list<string>"),
    ],
)
def test_a_value_that_does_not_fit_is_named(row: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Invalid) as refused:
        from_user([{"id": 1, "tags": ["a"]}, {"id": 2, **row}], SCHEMA)
    assert refused.value.message == sentence


def test_a_decimal_of_arrow_that_does_not_fit_is_named() -> None:
    rows = pa.record_batch({"id": [1, 2], "amount": pa.array([Decimal("1.50"), Decimal("1.555")], pa.decimal128(9, 3))})
    with pytest.raises(
        Invalid, match=r"column 'amount', row 1: Decimal\('1.555'\) is no decimal\(9,2\): it has 3 places"
    ):
        conform(rows, TABLE)


def test_a_column_that_is_nearly_one_of_the_table_is_told() -> None:
    rows = pa.record_batch({"id": [1], "amonut": [1]})
    with pytest.raises(Invalid, match=r"table shop.orders has no column 'amonut': did you mean amount\?"):
        conform(rows, TABLE)
