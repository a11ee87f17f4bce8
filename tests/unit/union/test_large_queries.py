"""Queries with very many conditions: DuckDB keeps these to itself, for Arrow would end the process."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakestore.union import sql
from lakestore.union.dataset import Rows
from tests.support.served import Served


def test_conditions_of_a_long_query_are_not_handed_down(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("duckdb")
    handed: list[bool] = []
    real = Rows.scanner

    def scanner(rows: Rows, columns: Any = None, filter: Any = None, **more: Any) -> Any:
        handed.append(filter is not None)
        return real(rows, columns, filter, **more)

    monkeypatch.setattr(Rows, "scanner", scanner)
    with Served(tmp_path) as served:
        table = served.lake.create_table("a.t", pa.schema([("id", pa.int64())]), primary_key=["id"])
        table.upsert([{"id": i} for i in range(10)])
        for spaces in (0, sql.PUSHED_CHARS_MAX):
            text = "SELECT count(id) AS n FROM a.t WHERE" + " " * spaces + " id = 1 OR id = 2"
            assert served.lake.sql(text).to_pylist() == [{"n": 2}]
    assert handed == [True, False]
