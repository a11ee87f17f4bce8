"""What the rounds of several tables share: a table's memory, and Spark's turn. No Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lakestore.errors import Unavailable
from lakestore_tiering import compact, flush, orphans
from lakestore_tiering.compact import Fork
from lakestore_tiering.round import Round, TableMemory

SCAN: Any = SimpleNamespace(table=SimpleNamespace(uuid="u", name="shop.a"), hot_rows=1, in_lake=True)
CUT: Any = SimpleNamespace(scan=lambda _: SCAN, lease="")
Step = Callable[[Round], object]
STEPS: dict[str, tuple[Any, str, Step]] = {
    "flush": (flush, "_round", lambda tools: flush.flush(tools, "shop.a")),
    "fork": (compact, "_forked", lambda tools: compact.fork(tools, "shop.a")),
    "land": (compact, "_land", lambda tools: compact.land(tools, Fork(SCAN, "b", 1, (0,), "", 1, whole=False))),
}
"""Each with its part that uses the memory of the table."""


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Round:
    given: dict[str, Any] = dict.fromkeys(("spark", "transport", "hot", "epoch", "confirm"))
    monkeypatch.setattr(Round, "plan", lambda *_: CUT)
    leases: Any = SimpleNamespace(release=lambda _: None)
    return Round(**given, leases=leases)


def is_free(lock: Any) -> bool:
    """Whether another thread gets a lock now."""
    got: list[bool] = []
    other = threading.Thread(target=lambda: got.append(lock.acquire(blocking=False)))
    other.start()
    other.join()
    return got[0]


@pytest.mark.parametrize("name", STEPS)
def test_one_table_has_one_step_at_a_time_and_a_failed_one_forgets_the_lake_table(
    tools: Round, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    lake: Any = object()
    memory = tools.known["u"] = TableMemory(lake=lake)
    free: list[bool] = []

    def broken(*_: object, **__: object) -> None:
        free.append(is_free(memory.turn))
        raise Unavailable("not now")

    module, part, step = STEPS[name]
    monkeypatch.setattr(module, part, broken)
    with pytest.raises(Unavailable):
        step(tools)
    assert free == [False]
    assert memory.lake is None
    memory.lake = lake
    monkeypatch.setattr(module, part, lambda *_, **__: None)
    step(tools)
    assert memory.lake is lake
    assert is_free(memory.turn)


def test_a_look_for_orphans_takes_sparks_turn(tools: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    lake: Any = SimpleNamespace(table=SimpleNamespace(location=lambda: "file:/x"), refresh=lambda: None)
    free: list[bool] = []

    def named(*_: object) -> set[str]:
        free.append(is_free(tools.spark_turn))
        return {"/x/data/a.parquet"}

    monkeypatch.setattr(Round, "standing", lambda *_: (lake, None))
    monkeypatch.setattr(orphans, "_files", lambda *_: [("/x/data/a.parquet", 0.0)])
    monkeypatch.setattr(orphans, "_is_ahead", lambda *_: False)
    monkeypatch.setattr(orphans, "_named", named)
    assert orphans.remove(tools, SCAN.table) == 0
    assert free == [False]
