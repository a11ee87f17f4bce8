"""The ratios of a contest's run before, so that a reader sees how well a second run repeats the first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SAME = 0.15
"""Ratios that differ by at most this part are the same."""


def ratios_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Each other system and its ratio in a row."""
    return {name: value["ratio"] for name, value in row["values"].items() if value["ratio"] is not None}


def ratios_before(file: Path, what: str) -> dict[str, Any] | None:
    """Day, commit and ratios of the run in a table's file; None if it did other work or none."""
    if not file.exists():
        return None
    table = json.loads(file.read_text())
    if "contest" not in table or table["contest"]["what"] != what:
        return None
    ratios = {row["name"]: ratios_of(row) for row in table["contest"]["rows"]}
    return {"day": table["run"]["day"], "commit": table["run"]["commit"], "ratios": ratios}


def lines(contest: Mapping[str, Any]) -> Iterator[str]:
    """One line that compares this run with the run before. The line names each ratio that differs by more than
    `SAME`."""
    before = contest.get("earlier")
    if before is None:
        return
    count, others = 0, []
    for row in contest["rows"]:
        then_of = before["ratios"].get(row["name"], {})
        for name, now in ratios_of(row).items():
            if name not in then_of:
                continue
            count, then = count + 1, then_of[name]
            if max(then, now) > min(then, now) * (1 + SAME):
                others.append(f"{name} in {row['name']} {then:.2f}x")
    run = f"The run before ({before['day']}, commit {before['commit']})"
    within = f"within {SAME:.0%}"
    if others:
        yield f"- {run} had {count - len(others)} of {count} ratios {within}. The others were: {'; '.join(others)}."
    elif count:
        yield f"- {run} had the same ratios {within}."
