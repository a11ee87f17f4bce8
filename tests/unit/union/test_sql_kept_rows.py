"""Answers of which the first rows are kept: the others are counted, and failures on the way are the query's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Invalid
from lakestore.union import sql
from lakestore.union.sql import Bounds, Query, run
from tests.support.served import Served


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ls.Lake]:
    """A lake of a server in this process."""
    with Served(tmp_path) as served:
        yield served.lake


def test_rows_behind_the_first_are_counted_in_bounded_memory(lake: ls.Lake) -> None:
    before = pa.total_allocated_bytes()
    text = "SELECT range AS r, repeat('x', 50) || range AS t FROM range(1000000)"
    found = run(lake.transport, Query(text, kept_rows=1_000))
    assert (len(found), found.rows_behind) == (1_000, 999_000)
    assert found.table.column("r").to_pylist() == list(range(1_000))
    assert pa.total_allocated_bytes() - before < 30 << 20
    assert run(lake.transport, Query("SELECT 1 AS n WHERE false", kept_rows=5)).table.column_names == ["n"]


def test_wide_rows_end_in_bytes_and_one_is_always_there(lake: ls.Lake) -> None:
    text = "SELECT range AS r, repeat('x', CASE WHEN 3000 > range THEN 1 ELSE 10000 END) AS t FROM range(20000)"
    found = run(lake.transport, Query(text, kept_rows=10_000, kept_bytes=1 << 20))
    assert 3_000 < len(found) < 3_110
    assert len(found) + found.rows_behind == 20_000
    assert found.table.column("r").to_pylist() == list(range(len(found)))
    assert (1 << 20) - 20_000 < found.table.nbytes <= 1 << 20
    assert found.table.get_total_buffer_size() < 2 << 20, "nothing of the batch that was cut is held"
    found = run(lake.transport, Query(text + " ORDER BY r DESC", kept_rows=10_000, kept_bytes=100))
    assert (len(found), found.rows_behind) == (1, 19_999)


@pytest.mark.parametrize("more", [{"kept_rows": 10}, {"bounds": Bounds(1 << 30, 600_000)}, {}])
def test_a_failure_behind_the_first_rows_is_the_query_s(lake: ls.Lake, more: dict[str, object]) -> None:
    text = "SELECT CASE WHEN range = 500000 THEN CAST('x' || range AS INT) ELSE range END AS z FROM range(1000000)"
    with pytest.raises(Invalid, match=r"^the query failed: .*Could not convert string 'x500000'"):
        run(lake.transport, Query(text, **more))  # type: ignore[arg-type]


def test_a_query_that_only_its_own_failure_stopped_says_what_failed(
    lake: ls.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    executed = sql._executed

    def stopped(connection: Any, text: str, params: sql.Params) -> Any:
        (threads,) = connection.execute("SELECT current_setting('threads')").fetchone()
        asked.append(threads)
        if threads != 1:  # as DuckDB's threads do to each other, once in a hundred failures
            connection.interrupt()
            raise duckdb.InterruptException("INTERRUPT Error: Interrupted!")
        return executed(connection, text, params)

    monkeypatch.setattr(sql, "_executed", stopped)
    with pytest.raises(Invalid, match=r"^the query failed: .*Could not convert string 'x'"):
        run(lake.transport, "SELECT CAST('x' AS INT)")
    assert asked == [os.cpu_count(), 1]

    def stopped_by_the_caller(interrupt: Callable[[], None]) -> None:
        interrupt()

    with pytest.raises(Invalid, match=r"^the query failed: INTERRUPT Error"):
        run(lake.transport, Query("SELECT 1", started=stopped_by_the_caller))
    assert asked == [os.cpu_count(), 1, os.cpu_count()]
