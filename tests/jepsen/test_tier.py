"""The checker of lakes, against histories of every anomaly."""

from __future__ import annotations

import random
from typing import Any, Self
from unittest.mock import Mock

import pytest
from pyiceberg.table.refs import SnapshotRefType

from jepsen import engines
from jepsen.operation import Invocation, Kind
from jepsen.workloads import tier
from jepsen.workloads.tier import Tier
from tests.jepsen.hand_made import Written, names

CHANGES = [[0, 0, "+I", 1, 10], [0, 1, "+I", 2, 11], [0, 2, "+U", 1, 12], [0, 3, "-D", 2, None], [1, 0, "+I", 3, 13]]
AT_TWO = [[0, 0, 1, 10], [0, 1, 2, 11]]
NEWEST = [[0, 2, 1, 12], [1, 0, 3, 13]]


class _Told(Written):
    """The calls of the workload, told shortly; all of the table with a key."""

    def lake(self, point: list[int], rows: list[list[int]], **more: Any) -> Self:
        value = {"table": "keyed", "engine": "duckdb"}
        return self.call(0, "lake", value, {**value, "snapshot": 7, "point": point, "rows": rows, **more})

    def cut(self, rows: list[list[int]], scanned: list[list[int]]) -> Self:
        value = {"table": "keyed", "engine": "pyiceberg"}
        return self.call(0, "cut", value, {**value, "token": "t", "rows": rows, "scanned": scanned})

    def scan(self, rows: list[list[int]]) -> Self:
        return self.call(0, "scan", {"table": "keyed"}, {"table": "keyed", "rows": rows})

    def deletes(self, hits: list[list[int]], dangling: int = 0) -> Self:
        told = {"table": "keyed", "hits": hits, "dangling": dangling, "snapshot": 7, "point": [4, 1]}
        return self.call(0, "deletes", {"table": "keyed"}, told)

    def changelog(self, changes: list[list[Any]] | None = None) -> Self:
        return self.call(0, "changelog", {"table": "keyed"}, {"table": "keyed", "changes": changes or CHANGES})


def _told() -> _Told:
    first = {"upsert": [[1, 10], [2, 11], [3, 13]], "delete": []}
    return _Told().call(0, "write", first).unknown(1, "write", {"upsert": [[1, 12]], "delete": [2]})


def _names(told: Written) -> set[str]:
    return names(Tier(random.Random(1)), told)


def test_what_is_promised_is_no_anomaly() -> None:
    told = _told().unknown(1, "write", {"upsert": [[9, 99]], "delete": []})
    told.lake([], []).lake([2, 0], AT_TWO).lake([3, 0], [[0, 1, 2, 11], [0, 2, 1, 12]]).lake([4, 1], NEWEST)
    told.scan([]).scan(AT_TWO).scan([*AT_TWO, [1, 0, 3, 13]]).cut(NEWEST, NEWEST).deletes([[0, 0], [0, 1]])
    assert _names(told.failed(0, "lake", {"table": "keyed"}).changelog()) == set()


def test_a_log_table_keeps_every_row() -> None:
    told = _Told().call(0, "append", [5, 6])
    value = {"table": "log", "engine": "duckdb"}
    rows = [[0, 0, 5, 5], [0, 1, 6, 6]]
    told.call(0, "lake", value, {**value, "snapshot": 7, "point": [2], "rows": rows})
    changes = [[0, 0, "+I", 5, 5], [0, 1, "+I", 6, 6]]
    assert _names(told.call(0, "changelog", {"table": "log"}, {"table": "log", "changes": changes})) == set()


BAD = {
    "lake-lost": _told().lake([2, 0], AT_TWO[:1]),
    "lake-stale": _told().lake([4, 1], [*NEWEST, [0, 1, 2, 11]]),
    "lake-twice": _told().lake([4, 1], [*NEWEST, NEWEST[0]]),
    "beyond": _told().lake([4, 2], NEWEST),
    "point-back": _told().lake([4, 1], NEWEST).lake([2, 0], AT_TWO),
    "missing-file": _told().lake([], [], missing="00000.parquet"),
    "engines-differ": _told().cut(NEWEST[:1], NEWEST),
    "no-state": _told().scan([[0, 0, 1, 10], [0, 2, 1, 12]]),
    "read-twice": _told().scan([*AT_TWO, AT_TWO[0]]),
    "dangling-delete": _told().deletes([], 1),
    "wrong-delete": _told().deletes([[0, 2]]),
    "deleted-twice": _told().deletes([[0, 0], [0, 0]]),
    "lost": _told().call(0, "write", {"upsert": [[4, 40]], "delete": []}),
    "aborted": _told().failed(0, "write", {"upsert": [[4, 40]], "delete": []}),
    "phantom": _told(),
    "unfinished": _told().call(0, "level", None, {"table": "keyed", "done": False, "point": [2, 0], "trouble": ""}),
}


@pytest.mark.parametrize("name", BAD)
def test_an_anomaly(name: str) -> None:
    strange = [[1, 1, "+I", 4, 40]] if name in ("aborted", "phantom") else []
    assert _names(BAD[name].changelog([*CHANGES, *strange])) == {name}


def test_an_outcome_that_is_unknown_may_be_in_the_log() -> None:
    told = _told().call(0, "write", {"upsert": [[4, 40]], "delete": []}, kind=Kind.INFO)
    assert _names(told.changelog([*CHANGES, [1, 1, "+I", 4, 40]])) == set()


def _client(monkeypatch: pytest.MonkeyPatch) -> tuple[tier.TierClient, list[float]]:
    """A client with a clock of its own, which only sleeping moves."""
    now = [0.0]
    clock = Mock(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(tier, "time", clock)
    return tier.TierClient(Mock(), 0), now


def test_a_lake_that_stands_still_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three waits took longer than the hunt's grace, so a run whose lake stood still was ended without a verdict."""
    client, now = _client(monkeypatch)
    monkeypatch.setattr(client, "_changes", lambda name: CHANGES)
    monkeypatch.setattr(client, "_point", lambda name: {"snapshot": 7, "point": [2, 0]})
    told = [client.invoke(Invocation("level", {"table": name})) for name in ("keyed", "keyed", "log")]
    assert [each["done"] for each in told] == [False, False, False]
    assert tier.TIERED_SECONDS <= now[0] < 1.5 * tier.TIERED_SECONDS


def test_the_last_reads_come_behind_a_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lake was level before the compaction landed, and no read saw the rows that it brought back."""
    client, now = _client(monkeypatch)
    kinds = {"main": "branch", "lakestore-tier": "tag", "lakestore_compact_1_a": "branch"}

    def load(*_: object) -> Mock:
        if now[0] >= 3:
            kinds.pop("lakestore_compact_1_a", None)
        return Mock(refs=lambda: {name: Mock(snapshot_ref_type=SnapshotRefType(kind)) for name, kind in kinds.items()})

    monkeypatch.setattr(engines, "load", load)
    assert client.invoke(Invocation("landed", {"table": "keyed"}))["branches"] == []
    assert now[0] == 3
    last = [(each.f, each.value["table"]) for each in Tier(random.Random(1)).last(0)]
    assert last[last.index(("landed", "keyed")) + 1] == ("lake", "keyed")
