"""Figures of queries: counts by door and outcome, the log line of a slow query."""

from __future__ import annotations

import logging

import pytest

from lakestore.cli.tables import _queries
from lakestore_server.operate.query_figures import TEXT_CHARS_MAX, QueryFigures, shown_text


def counted(figures: QueryFigures, *, outcome: str = "ok", seconds: float = 0.1, is_keyed: bool = False) -> None:
    figures.count_query(
        "postgres", "ann", "SELECT 1", outcome=outcome, seconds=seconds, rows=2, nbytes=30, is_keyed=is_keyed
    )


def test_queries_are_counted_by_door_and_outcome() -> None:
    figures = QueryFigures()
    counted(figures)
    counted(figures, is_keyed=True)
    counted(figures, outcome="Invalid")
    assert {key: each.count for key, each in figures.seconds.items()} == {
        ("postgres", "ok"): 2,
        ("postgres", "Invalid"): 1,
    }
    assert _queries(figures.status() | {"processes": {"unused": 1, "idle": 2, "busy": 0}}) == (
        "postgres 2 answered (1 by key), 1 failed; processes: 1 unused, 2 idle"
    )
    assert (figures.rows["postgres"], figures.nbytes["postgres"], figures.keyed["postgres"]) == (6, 90, 1)


def test_a_slow_query_is_logged_with_principal_and_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "lakestore.queries")
    figures = QueryFigures(slow_seconds=1.0)
    counted(figures, seconds=0.9)
    assert not caplog.records
    counted(figures, seconds=1.5)
    (record,) = caplog.records
    fields = vars(record)["lakestore_fields"]
    assert record.message == "slow query"
    assert (fields["principal"], fields["door"], fields["seconds"], fields["text"]) == (
        "ann",
        "postgres",
        1.5,
        "SELECT 1",
    )


def test_a_text_is_shown_on_one_line_and_bounded() -> None:
    assert shown_text("SELECT 1\n  -- \x1b[31mred\x00\u202e") == "SELECT 1 -- \N{REPLACEMENT CHARACTER}[31mred" + (
        2 * "\N{REPLACEMENT CHARACTER}"
    )
    assert len(shown_text("x" * 1_000_000)) == TEXT_CHARS_MAX
