"""The pages and the rooms' docstrings say what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import jepsen
from jepsen.nemeses import NEMESES, steps
from jepsen.system.cluster import COMMAND
from jepsen.workloads import WORKLOADS

ROOM = Path(jepsen.__file__).parent
PAGE = (ROOM.parent / "docs" / "jepsen.md").read_text()


def _rows(head: str) -> list[list[str]]:
    """The cells of all tables whose first column has this head."""
    tables = re.findall(rf"(?m)^\| {head} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE)
    return [row.strip("| ").split(" | ") for table in tables for row in table.splitlines()]


def _named(cell: str) -> list[str]:
    return re.findall(r"`([\w-]+)`", cell)


def test_every_workload_is_in_the_table_and_every_anomaly_there_is_one() -> None:
    rows = _rows("workload")
    assert sorted(name for row in rows for name in _named(row[0])) == sorted(WORKLOADS)
    code = "".join(path.read_text() for path in ROOM.rglob("*.py"))
    names = {name for row in rows for name in re.split(r", | …", row[2]) if re.fullmatch(r"[\w-]+", name)}
    assert len(names) > 60
    assert {name for name in names if f'"{name}"' not in code} == set()


def test_every_nemesis_is_in_the_tables() -> None:
    assert {name for row in _rows("nemesis") for name in _named(row[0])} == {*NEMESES, COMMAND}
    assert f"one of {len(steps.at_work())} named steps" in PAGE


@pytest.mark.parametrize("room", ["", "checkers", "workloads", "nemeses", "system"])
def test_a_room_names_its_modules(room: str) -> None:
    folder = ROOM / room
    text = (folder / "__init__.py").read_text().split('"""')[1]
    there = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    assert {name for name in there if not name.startswith("__") and f"`{name}`" not in text} == set()
    assert {name for name in re.findall(r"`([a-z_]+)`", text) if name not in there} <= {"start", "kill", "stop"}
