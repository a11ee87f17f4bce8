"""A row that Python writes is the DataRow that Arrow's kernels write."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestore.model.types import arrow_type
from lakestore_server.queries.postgres.rows import DataRows, SingleRow
from tests.support.all_types import SCALARS
from tests.support.seeds import examples

EDGES: dict[str, list[Any]] = {
    "float64": [0.0, -0.0, 1e15, 9.99999999999999e14, 1e-4, 9.9e-5, 1.0, 123456789012345.6, float("nan"), 5e-324, 1e22],
    "timestamp": [
        dt.datetime(1, 1, 1),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999),
        dt.datetime(2026, 1, 1, 0, 0, 0, 10),
    ],
    "decimal(20,3)": [Decimal("0.000"), Decimal("-0.001"), Decimal("1E+16")],
    "float32": [1.5, 1e6, 0.1],
}


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_a_single_row_is_the_message_that_the_kernels_write(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(SCALARS)), min_size=1, max_size=6))
    kinds = [arrow_type(name) for name in names]
    values = [data.draw(st.none() | SCALARS[name] | st.sampled_from(EDGES.get(name, [None]))) for name in names]
    arrays = [pa.array([None, value], kind).slice(1) for value, kind in zip(values, kinds, strict=True)]
    batch = pa.record_batch(arrays, [f"c{i}" for i in range(len(names))])
    formats = data.draw(st.sampled_from([(), (True,)]) | st.tuples(*[st.booleans()] * len(names)))
    zone = data.draw(st.sampled_from(["UTC", "Europe/Paris"]))
    expected = bytes(DataRows(batch.schema, formats, zone).rows(batch).data)
    assert SingleRow(batch.schema, formats, zone).message([column[0] for column in batch.columns]) == expected


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in EDGES.items() for value in values])
def test_a_single_row_of_an_edge_is_the_message_that_the_kernels_write(kind: str, value: Any) -> None:
    batch = pa.record_batch({"x": pa.array([value], arrow_type(kind))})
    for binary in (False, True):
        expected = bytes(DataRows(batch.schema, (binary,)).rows(batch).data)
        assert SingleRow(batch.schema, (binary,)).message([column[0] for column in batch.columns]) == expected
