"""The checker of erasures, against histories of every anomaly, and the marks that a search for bytes finds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from jepsen.checkers.erasures import DELETED
from jepsen.raw_bytes import matches
from jepsen.workloads.erase import MARK, Erased, mark
from tests.jepsen.hand_made import Written, names


def _wrote() -> Written:
    """Rows 1 to 4, of which 1 is erased, 2 perhaps; a write of row 5 and a second one of row 4 have no answer."""
    told = Written().call(0, "write", {"table": "keyed", "rows": [[1, 0], [2, 0], [3, 0], [4, 0]]})
    told = told.call(0, "write", {"table": "keyed", "rows": [[3, 1]]})
    told = told.call(0, "erase", {"table": "keyed", "ids": [1]}, {"table": "keyed", "ids": [1], "erasure": "a"})
    told = told.unknown(0, "erase", {"table": "keyed", "ids": [2]})
    told = told.unknown(1, "write", {"table": "keyed", "rows": [[4, 1], [5, 0]]})
    return told.failed(2, "erase", {"table": "keyed", "ids": [3]})


def _done(told: Written) -> Written:
    return told.call(2, "ended", {"table": "keyed"}, {"table": "keyed", "done": ["a"], "waiting": {}})


def _read(told: Written, rows: list[list[int]], way: str = "scan") -> Written:
    value: dict[str, Any] = {"table": "keyed", "way": way, **({"ids": [3]} if way == "lookup" else {})}
    return told.call(3, "read", value, {**value, "rows": rows})


def _names(told: Written) -> set[str]:
    return names(Erased(random.Random(1)), told)


def test_what_is_promised_is_no_anomaly() -> None:
    told = _read(_wrote(), [[1, 0], [2, 0], [3, 1], [4, 0]])
    told = _read(told, [[3, 1], [4, 1], [5, 0]])
    told = _read(_done(told), [[2, 0], [3, 1], [4, 0]])
    told = _read(told, [[2, DELETED], [3, 0], [3, 1]], "changes")
    told = _read(_read(told, [], "lake"), [[3, 1]], "lookup")
    told = told.call(3, "bytes", {}, {"ids": [2, 3, 4, 5]}).call(3, "verified", {}, {"findings": []})
    told = told.call(3, "settle", {"table": "keyed"}, {"table": "keyed", "done": ["a"], "waiting": {}})
    assert _names(told) == set()


@pytest.mark.parametrize("way", ["scan", "cut", "lake", "changes"])
def test_an_erased_row_is_nowhere_after_its_end(way: str) -> None:
    assert _names(_read(_done(_wrote()), [[1, 0], [3, 1], [4, 0]], way)) == {"still-there"}
    assert _names(_read(_wrote(), [[1, 0], [3, 1], [4, 0]], way)) == set(), "it is not known to be done"


def test_every_anomaly() -> None:
    assert _names(_read(_done(_wrote()), [[1, DELETED]], "changes")) == {"still-there"}
    assert _names(_read(_wrote(), [[4, 0]])) == {"lost"}
    assert _names(_read(_wrote(), [], "lookup")) == {"lost"}
    assert _names(_read(_wrote(), [[3, 0], [4, 0]])) == {"stale"}
    assert _names(_read(_wrote(), [[3, 1], [3, 1], [4, 0]])) == {"twice"}
    assert _names(_read(_wrote(), [[3, 1], [4, 0], [9, 0]])) == {"phantom"}
    assert _names(_read(_wrote(), [[3, -1], [4, 0]])) == {"phantom", "stale"}
    assert _names(_done(_wrote()).call(3, "bytes", {}, {"ids": [1]})) == {"bytes-left"}
    assert _names(_wrote().call(3, "bytes", {}, {"ids": [1]})) == set()
    assert _names(_wrote().call(3, "verified", {}, {"findings": ["x: it has erased rows"]})) == {"finding"}
    waits = {"table": "keyed", "done": [], "waiting": {"a": ["lake", "a tierer"]}}
    assert _names(_wrote().call(3, "settle", {"table": "keyed"}, waits)) == {"unfinished"}


def test_marks_are_found_in_files(tmp_path: Path) -> None:
    (tmp_path / "one é").write_bytes(b"\x00" + mark(7).encode() + b"\x01")
    (tmp_path / mark(8)).write_bytes(b"nothing")
    assert {int(text) for text in matches(tmp_path, MARK)} == {7, 8}
