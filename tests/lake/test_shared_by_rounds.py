"""What the rounds of several tables share: a table's memory, Spark's turn, and names that change. No Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lakestore.errors import NotFound, Unavailable
from lakestore.model.columns import LakeOptions
from lakestore_tiering import compact, flush, orphans
from lakestore_tiering.compact import Fork
from lakestore_tiering.round import Round, StopAsked, TableMemory

LAKE_OPTIONS = LakeOptions(snapshots=9)
TABLE: Any = SimpleNamespace(uuid="u", name="shop.a", lake=LAKE_OPTIONS, contract=None)
SCAN: Any = SimpleNamespace(table=TABLE, hot_rows=1, in_lake=True)
CUT: Any = SimpleNamespace(scan=lambda _: SCAN, lease="")
FORK = Fork(SCAN, "b", 1, (0,), "", 1, 0.0, whole=False)
Step = Callable[[Round], object]
STEPS: dict[str, tuple[Any, str, Step]] = {
    "flush": (flush, "_round", lambda tools: flush.flush(tools, "shop.a")),
    "fork": (compact, "_forked", lambda tools: compact.fork(tools, "shop.a")),
    "land": (compact, "_land", lambda tools: compact.land(tools, FORK)),
}
"""Each with its part that uses the memory of the table."""
OTHER: Any = SimpleNamespace(table=SimpleNamespace(uuid="other", name="shop.a"), lake_table=None)


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Round:
    given: dict[str, Any] = dict.fromkeys(("spark", "transport", "hot", "epoch", "confirm"))
    monkeypatch.setattr(Round, "plan", lambda *_: CUT)
    leases: Any = SimpleNamespace(release=lambda _: None)
    given["spark"] = SimpleNamespace(sparkContext=SimpleNamespace(setJobGroup=lambda *_: None))
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


SPARK_STEPS: dict[str, Step] = {
    "flush": lambda tools: flush._stage(tools, SCAN, CUT, SCAN, 1),
    "compact": lambda tools: compact.compact(tools, "shop.a"),
    "orphans": lambda tools: orphans.remove(tools, SCAN.table),
}
"""The steps that have a job of Spark's."""


@pytest.mark.parametrize("name", SPARK_STEPS)
@pytest.mark.parametrize("stops", [True, False])
def test_no_step_begins_a_spark_job_after_the_word_to_stop(
    tools: Round, monkeypatch: pytest.MonkeyPatch, name: str, stops: bool
) -> None:
    begun: list[str] = []
    lake: Any = SimpleNamespace(table=SimpleNamespace(location=lambda: "file:/x"), refresh=lambda: None)
    monkeypatch.setattr("lakestore_tiering.small_rows.write", lambda *_: None)
    monkeypatch.setattr(flush, "_staged_by_spark", lambda *_: begun.append("flush"))
    monkeypatch.setattr(compact, "fork", lambda *_, **__: FORK)
    monkeypatch.setattr(compact, "rewrite", lambda *_: begun.append("compact"))
    monkeypatch.setattr(compact, "_land", lambda *_: None)
    dropped: list[Fork] = []

    def named(*_: object) -> set[str]:
        begun.append("orphans")
        return {"/x/data/a.parquet"}

    monkeypatch.setattr(compact, "abandon", lambda _, fork: dropped.append(fork))
    monkeypatch.setattr(Round, "standing", lambda *_: (lake, None))
    monkeypatch.setattr(orphans, "_files", lambda *_: [("/x/data/a.parquet", 0.0)])
    monkeypatch.setattr(orphans, "_is_ahead", lambda *_: False)
    monkeypatch.setattr(orphans, "_named", named)
    step = SPARK_STEPS[name]
    if not stops:
        step(tools)
        assert begun == [name]
        return
    stop_on_entry(tools, monkeypatch)
    with pytest.raises(StopAsked):
        step(tools)
    assert not begun
    assert dropped == ([FORK] if name == "compact" else [])


def stop_on_entry(tools: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    """The word to stop comes while the step waits for Spark's turn."""

    class Turn:
        def __enter__(self) -> None:
            tools.stop.set()

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(tools, "spark_turn", Turn())


BY_NAME: dict[str, Step] = {
    "sweep": lambda tools: tools.sweep_once(SCAN.table),
    "expire": lambda tools: orphans.expire(tools, TABLE),
    "orphans": lambda tools: orphans.remove(tools, TABLE),
    "land": lambda tools: compact.land(tools, FORK),
    "failed": lambda tools: tools.standing(TABLE),
}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_step_does_not_touch_the_table_that_has_its_name_now(
    tools: Round, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(tools, "transport", SimpleNamespace(plan=lambda _: None))
    monkeypatch.setattr("lakestore.union.plan.decode", lambda _: SimpleNamespace(scan=lambda _: OTHER))
    loaded: list[object] = []
    monkeypatch.setattr(Round, "lake", lambda _, version: loaded.append(version))
    with pytest.raises(NotFound, match=r"shop\.a was renamed, and another table has its name now"):
        BY_NAME[name](tools)
    assert not loaded
    assert not tools.swept
    assert tools.known.keys() <= {"u"}


def test_a_lake_table_of_another_identity_is_not_loaded(tools: Round, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestore_tiering.round.Iceberg", lambda *_: SimpleNamespace(uuid=lambda: "other"))
    monkeypatch.setattr(Round, "lake_name", lambda *_: "lake.shop.a")
    with pytest.raises(NotFound, match="another table has its name"):
        tools.lake(TABLE)
    monkeypatch.setattr("lakestore_tiering.round.Iceberg", lambda *_: SimpleNamespace(uuid=lambda: "u"))
    assert tools.lake(TABLE).uuid() == "u"
