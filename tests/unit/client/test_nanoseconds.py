"""Nanoseconds that a column cannot hold are refused by name, also where pandas is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Invalid

KINDS = {
    pa.timestamp("ns"): pa.timestamp("us"),
    pa.timestamp("ns", "UTC"): pa.timestamp("us", "UTC"),
    pa.time64("ns"): pa.time64("us"),
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_value_in_nanoseconds_is_refused_without_pandas(
    kind: pa.DataType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with ls.open(tmp_path) as lake:
        table = lake.create_table("a.b", pa.schema([("id", pa.int64()), ("at", KINDS[kind])]), primary_key=["id"])
        with pytest.raises(Invalid, match=r"'at', row 1: .*000000001") as refusal:
            table.upsert(pa.table({"id": [1, 2], "at": pa.array([1_000, 1], kind)}))
        assert refusal.value.applied == "no"
        assert table.scan().count() == 0
