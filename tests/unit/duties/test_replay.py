"""A branch of a table is filled, corrected, compared and swapped; the table stays as it is until the swap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.client.table import Table
from lakestore.errors import Conflict, Invalid, NotFound, PositionExpired
from lakestore.union.difference import Difference
from lakestore.union.verify import verify
from lakestore_server.catalog import rescaling
from lakestore_server.duties import rescales
from lakestore_server.state.rescale import CopyKind
from tests.support.log_start import compact, move_log_start
from tests.support.served import DAY, Served
from tests.support.world.disk import SimDisk

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("s", pa.string())])
Rows = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of a few rows, so that a small table needs many; the test does the steps."""
    monkeypatch.setattr(rescales.RescaleDuty, "wake", lambda _: None)
    monkeypatch.setattr(rescales, "COPY_ROWS", 7)
    monkeypatch.setattr(rescaling, "SWAP_ROWS_MAX", 9)


@pytest.fixture(name="served")
def one_server(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", rescale_check_seconds=DAY) as served:
        yield served


def rows_of(table: Table, **about: Any) -> Rows:
    return sorted(tuple(row.values()) for row in table.scan(columns=["k", "v", "s"], **about).to_arrow().to_pylist())


def rows(*numbers: int, text: str = "a") -> list[dict[str, Any]]:
    return [{"k": number, "v": number, "s": text} for number in numbers]


def tuples(*numbers: int, text: str = "a") -> Rows:
    return [(number, number, text) for number in numbers]


def fill(served: Served, uuid: str, between: Callable[[], object] = lambda: None) -> None:
    """All steps until the branch waits for its user."""
    while (waits := served.server.rescales.step(uuid)) is None or waits == "rows":
        between()
    assert waits == "user"
    served.server.rescales.run_once()


def fold(table: Table, start: Any) -> Rows:
    """The rows that the changes come to."""
    found: dict[int, tuple[Any, ...]] = {}
    for batch in table.changes(start, until="now"):
        for change in batch.to_pylist():
            if change["__change"] == "-D":
                del found[change["k"]]
            else:
                found[change["k"]] = (change["k"], change["v"], change["s"])
    return sorted(found.values())


def figures(told: Difference) -> tuple[int, int, int, int]:
    return told.same, told.changed, told.removed, told.added


def test_a_table_goes_back_to_a_position_with_corrections(served: Served) -> None:
    """The log began after some of the rows, and rows died on both sides of the position."""
    table = served.lake.create_table("shop.a", SCHEMA, primary_key=["k"], buckets=3)
    table.upsert(rows(*range(40)))
    table.delete([{"k": number} for number in range(5)])
    move_log_start(served.engine, "shop.a")
    compact(served.server)
    good = table.upsert(rows(*range(5, 10), text="é"))
    before = rows_of(table)
    table.upsert(rows(*range(8, 20), text="wrong"))
    bad = table.delete([{"k": number} for number in range(30, 40)])
    wrong = rows_of(table)
    uuid = table.definition.uuid
    branch = table.replay("shop.fixed", at=good, wait=False)
    with pytest.raises(Conflict, match="takes rows once it is filled"):
        branch.upsert(rows(1))
    with pytest.raises(Conflict, match="not filled yet"):
        table.replay_difference()
    fill(served, uuid)
    assert rows_of(branch) == before
    assert rows_of(table) == wrong, "the table stays as it is"
    branch.upsert(rows(7, text="corrected"))
    branch.upsert(rows(100))
    branch.delete([{"k": 39}])
    told = table.replay_difference(sample=3)
    assert figures(told) == (12, 13, 0, 10), "8 to 19 and 7 changed; 30 to 38 and 100 are added"
    kinds = [(pair.table is None, pair.branch is None) for pair in told.sample]
    assert kinds == [(False, False)] * 3 + [(True, False)] * 3
    for pair in told.sample[:3]:
        assert pair.table is not None
        assert pair.branch is not None
        assert pair.table["k"] == pair.branch["k"]
        assert pair.table != pair.branch
    with pytest.raises(Invalid, match="needs the token of a difference"):
        table.swap_replay()
    branch.upsert(rows(101))
    with pytest.raises(Conflict, match=r"shop\.fixed was written at LSN"):
        table.swap_replay(told.token)
    told = table.replay_difference()
    table.upsert(rows(0))
    with pytest.raises(Conflict, match=r"shop\.a was written at LSN"):
        table.swap_replay(told.token)
    expected = rows_of(branch)
    swapped = table.swap_replay(table.replay_difference().token)
    assert rows_of(table) == expected == rows_of(table, at=swapped)
    assert rows_of(table, at=bad) == wrong, "a token of before the swap"
    assert rows_of(table, at=good) == before
    assert [each.name for each in served.lake.tables()] == ["shop.a"]
    assert verify(served.lake.transport, "shop.a").same
    served.checkpoint()
    served.restart()
    table = served.lake.table("shop.a")
    assert rows_of(table) == expected
    assert rows_of(table, at=bad) == wrong
    served.purge_dropped(uuid)
    with pytest.raises(PositionExpired):
        rows_of(table, at=bad)
    assert rows_of(table) == expected


def test_a_branch_follows_its_table_and_keeps_its_corrections(served: Served) -> None:
    table = served.lake.create_table("shop.a", SCHEMA, primary_key=["k"], buckets=2)
    table.upsert(rows(*range(30)))
    uuid = table.definition.uuid
    branch = table.replay("other.b", buckets=5, wait=False)
    fill(served, uuid, lambda: table.upsert(rows(0, 1, 50, text="later")))
    assert table.replay_difference().is_empty
    branch.upsert(rows(3, 4, text="corrected"))
    branch.delete([{"k": 5}, {"k": 6}])
    table.upsert(rows(4, 5, text="newer"))
    table.delete([{"k": 6}, {"k": 7}])
    fill(served, uuid)
    assert figures(table.replay_difference()) == (28, 1, 0, 0), "later changes of the table replace corrections"
    table.upsert(rows(8, text="last"))  # the commit of the swap copies it
    served.lake.registers(["complete/other.b/etl"])
    with pytest.raises(Conflict, match=r"complete/other\.b/etl.*drop it first"):
        table.swap_replay()
    served.lake.drop_registers(["complete/other.b/etl"])
    table.swap_replay()
    assert table.definition.buckets == 5
    expected = sorted(
        [
            *tuples(0, 1, 50, text="later"),
            *tuples(2, *range(9, 30)),
            *tuples(3, text="corrected"),
            *tuples(4, 5, text="newer"),
            *tuples(8, text="last"),
        ]
    )
    assert rows_of(table) == expected
    assert verify(served.lake.transport, "shop.a").same
    assert [each.name for each in served.lake.tables()] == ["shop.a"]


def test_the_old_table_can_be_had_back(served: Served) -> None:
    table = served.lake.create_table("shop.a", SCHEMA, primary_key=["k"], buckets=2)
    token = table.upsert(rows(*range(10)))
    branch = table.replay("shop.b", wait=False)
    fill(served, table.definition.uuid)
    branch.upsert(rows(1, text="corrected"))
    table.swap_replay()
    old = served.lake.undrop("shop.a", as_name="shop.old")
    assert rows_of(old) == tuples(*range(10)) == rows_of(old, at=token)
    assert fold(old, "earliest") == tuples(*range(10)), "its changes are its own again"
    with pytest.raises(PositionExpired):
        rows_of(table, at=token)
    assert rows_of(table) == sorted([*tuples(0, *range(2, 10)), (1, 1, "corrected")])
    old.upsert(rows(20))
    assert rows_of(table) == sorted([*tuples(0, *range(2, 10)), (1, 1, "corrected")])


def test_change_streams_end_at_the_swap(served: Served) -> None:
    """The branch has rows that no change made: a stream across the swap would come to other rows than a read."""
    table = served.lake.create_table("shop.a", SCHEMA, primary_key=["k"], buckets=2)
    token = table.upsert(rows(*range(20)))
    follower = table.changes("earliest")
    next(follower)
    named = table.changes("earliest", subscription="billing")
    next(named).ack()
    named.close()
    uuid = table.definition.uuid
    branch = table.replay("shop.b", wait=False)
    fill(served, uuid)
    with pytest.raises(Conflict, match="is the branch of table"):
        list(branch.changes("earliest", until="now"))
    branch.upsert(rows(1, text="corrected"))
    table.swap_replay()
    with pytest.raises(PositionExpired, match="a branch took the place"):
        list(table.changes(token, until="now"))
    with pytest.raises(PositionExpired, match="a branch took the place"):
        for _ in follower:
            pass
    follower.close()
    with pytest.raises(PositionExpired, match=r"a branch took its place.* reset billing"):
        list(served.lake.table("shop.a").changes(subscription="billing", until="now"))
    table.upsert(rows(2, text="after"))
    expected = sorted([*tuples(0, *range(3, 20)), (1, 1, "corrected"), (2, 2, "after")])
    assert rows_of(table) == expected
    for start in ("earliest", "snapshot"):
        assert fold(served.lake.table("shop.a"), start) == expected, start
    served.lake.reset_subscription("billing", "snapshot")
    served.checkpoint()
    served.restart()
    table = served.lake.table("shop.a")
    assert fold(table, "earliest") == expected
    with pytest.raises(PositionExpired, match="a branch took the place"):
        list(table.changes(token, until="now"))


def test_a_branch_of_a_log_table(served: Served) -> None:
    table = served.lake.create_table("shop.log", SCHEMA, buckets=2)
    token = table.append(rows(*range(20)) + rows(1, 1))
    table.append(rows(1, 20, 21))
    uuid = table.definition.uuid
    branch = table.replay("shop.b", at=token, wait=False)
    fill(served, uuid)
    branch.append(rows(2, 30))
    told = table.replay_difference()
    assert figures(told) == (22, 0, 3, 2), "rows are counted: one more 1 here, one more 2 there"
    assert {row["k"] for pair in told.sample if (row := pair.table)} == {1, 20, 21}
    table.swap_replay(told.token)
    assert rows_of(table) == sorted(tuples(*range(20), 1, 1, 2, 30))
    assert fold(table, "earliest") == sorted(tuples(*range(20), 30)), "as a snapshot"


def test_what_a_branch_refuses_and_what_ends_it(served: Served) -> None:
    lake = served.lake
    table = lake.create_table("shop.a", SCHEMA, primary_key=["k"], buckets=2)
    lake.create_table("shop.taken", SCHEMA, primary_key=["k"])
    first = table.upsert(rows(*range(10)))
    uuid = table.definition.uuid
    with pytest.raises(NotFound, match="has no branch"):
        table.replay_difference()
    with pytest.raises(NotFound, match="has no branch"):
        table.swap_replay()
    with pytest.raises(NotFound, match="has no branch"):
        table.drop_replay()
    with pytest.raises(Conflict, match="exists already"):
        table.replay("shop.taken")
    with pytest.raises(Invalid, match="table name"):
        table.replay("")
    with pytest.raises(Invalid, match="buckets must be"):
        table.replay("shop.b", buckets=1_000_000)
    branch = table.replay("shop.b", wait=False)
    fill(served, uuid)
    with pytest.raises(NotFound, match="not being rescaled"):
        table.stop_rescale()
    for refused in (
        lambda: lake.drop_table("shop.b"),
        lambda: branch.rename("shop.c"),
        lambda: branch.truncate(),
        lambda: branch.alter(drop=["s"]),
        lambda: branch.rescale(3),
        lambda: branch.replay("shop.c"),
        lambda: table.rescale(3),
        lambda: table.replay("shop.c"),
    ):
        with pytest.raises(Conflict, match=r"branch"):
            refused()
    table.alter(rename={"s": "text"}, add={"n": pa.int64()})
    assert lake.table("shop.b").schema.names == ["k", "v", "text", "n"]
    assert table.replay_difference().is_empty
    table.drop_replay()
    assert [each.name for each in lake.tables()] == ["shop.a", "shop.taken"]
    assert served.server.rescales.step(uuid) == ""
    table.truncate()
    with pytest.raises((Invalid, PositionExpired)):
        table.replay("shop.b", at=first, wait=False)
    table.upsert(rows_with_text(range(4)))
    table.replay("shop.b", wait=False)
    table.truncate()
    assert [each.name for each in lake.tables()] == ["shop.a", "shop.taken"], "a truncate removes the branch"


def rows_with_text(numbers: range) -> list[dict[str, Any]]:
    return [{"k": number, "v": number, "text": "t", "n": 1} for number in numbers]


def test_retention_waits_for_a_branch_until_it_is_filled(served: Served) -> None:
    table = served.lake.create_table("shop.a", SCHEMA, primary_key=["k"], buckets=1, retention="1s")
    token = table.upsert(rows(*range(20)))
    table.upsert(rows(*range(10), text="later"))
    uuid = table.definition.uuid
    table.replay("shop.b", at=token, wait=False)

    def holds() -> list[str]:
        view = served.engine.view
        return [hold.by for hold in served.server.retention._holds(view, view.tables[uuid])]

    assert "rescale" in holds()
    fill(served, uuid)
    assert served.engine.view.rescales[uuid].kind is CopyKind.BRANCH_AT
    assert "rescale" not in holds()


@pytest.mark.parametrize("is_at", [False, True])
def test_a_kill_after_each_step_leaves_the_table_and_loses_no_correction(tmp_path: Path, *, is_at: bool) -> None:
    """Every commit of the branch and the swap is followed by a kill that may lose what was not synced."""
    disk = SimDisk(tmp_path / "0")
    served = Served(disk.root, disk=disk, rescale_check_seconds=DAY)
    table = served.lake.create_table("shop.a", SCHEMA, primary_key=["k"], buckets=2)
    token = table.upsert(rows(*range(40)))
    uuid = table.definition.uuid
    table.replay("shop.b", at=token if is_at else None, wait=False)
    steps = 0

    def kill() -> None:
        nonlocal disk, steps
        steps += 1
        served.kill()
        disk = disk.crash(tmp_path / str(steps), steps)
        served.open(disk.root, disk)
        served.until_indexed()

    while (waits := served.server.rescales.step(uuid)) != "user":
        assert waits in (None, "rows")
        kill()
        assert rows_of(served.lake.table("shop.a")) == tuples(*range(40))
    assert steps >= 6
    served.lake.table("shop.b").upsert(rows(3, text="corrected"))
    kill()
    expected = sorted([*tuples(*range(3), *range(4, 40)), (3, 3, "corrected")])
    assert rows_of(served.lake.table("shop.b")) == expected
    table = served.lake.table("shop.a")
    served.server.rescales.run_once()
    table.swap_replay(table.replay_difference().token if is_at else None)
    kill()
    assert sum(log.head for log in served.state("shop.a").logs) == 41, "each row was copied once"
    assert rows_of(served.lake.table("shop.a")) == expected
    assert rows_of(served.lake.table("shop.a"), at=token) == tuples(*range(40))
    assert verify(served.lake.transport, "shop.a").same
    served.close()
