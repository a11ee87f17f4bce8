"""Rounds that Spark stages in a branch, in tests whose rows are so few that Arrow would write them."""

from __future__ import annotations

from typing import Any

import pytest

from lakestore_tiering import small_rows

PROGRAM = (
    "-c",
    "from lakestore_tiering import small_rows; from lakestore.cli.main import main;"
    " small_rows.OFFSETS_MAX = -1; main()",
)
"""Arguments of Python that run `lakestore` with a tierer that leaves all rounds to Spark."""


def sorted_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the rounds of sorted tables to Spark. Arrow writes the rounds of other tables."""
    write = small_rows.write

    def written(tools: Any, lake: Any, cut: Any, scan: Any) -> Any:
        return None if scan.table.lake.sort_by else write(tools, lake, cut, scan)

    monkeypatch.setattr(small_rows, "write", written)
