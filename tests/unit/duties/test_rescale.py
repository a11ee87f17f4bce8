"""A table gets another number of buckets while it is read and written: rows, changes, positions and answers stay."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.table import Table
from lakestore.errors import Conflict, Internal, Invalid, NotFound, PositionExpired
from lakestore.union.verify import verify
from lakestore_server.catalog import rescaling
from lakestore_server.commit.copied_rows import CopiedRows, copied_rows
from lakestore_server.duties import rescales
from tests.support.log_start import compact, move_log_start
from tests.support.seeds import seeded
from tests.support.served import DAY, Served
from tests.support.waiting import until
from tests.support.world.disk import SimDisk

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("s", pa.string())])
MERGES: dict[str, dict[str, Any]] = {
    "upsert": {"merge": "upsert"},
    "partial": {"merge": "partial"},
    "first_row": {"merge": "first_row"},
    "versioned": {"merge": ls.versioned("v"), "deletes": "ignore"},
    "aggregate": {"merge": ls.aggregate({"v": "sum", "s": "last"})},
}


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits of a few rows, so that a small table needs many."""
    monkeypatch.setattr(rescales.RescaleDuty, "wake", lambda _: None)  # the test does the steps
    monkeypatch.setattr(rescales, "COPY_ROWS", 7)
    monkeypatch.setattr(rescaling, "SWAP_ROWS_MAX", 9)


@pytest.fixture(name="served")
def one_server(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", rescale_check_seconds=DAY) as served:
        yield served


SCALES = [(2, 5), (5, 2), (3, 1)]


def uuid_of(served: Served, name: str) -> str:
    return served.state(name).table.uuid


def finish(served: Served, uuid: str, between: Callable[[], object] = lambda: None) -> None:
    """All steps of a rescale."""
    while (waits := served.server.rescales.step(uuid)) != "":
        between()
        assert waits in (None, "rows"), waits
    assert uuid not in served.engine.view.rescales


def rows_of(table: Table, **about: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.scan(columns=["k", "v", "s"], **about).to_arrow().to_pylist())


def fold(table: Table, start: Any = "earliest") -> list[tuple[Any, ...]]:
    """The rows that the changes come to; a row before a change is the row that was there."""
    rows: dict[int, tuple[Any, ...]] = {}
    for batch in table.changes(start, until="now", before_images=True):
        for change in batch.to_pylist():
            row = (change["k"], change["v"], change["s"])
            if change["__change"] in ("-D", "-U"):
                assert rows.pop(row[0]) == row
            else:
                assert row[0] not in rows
                rows[row[0]] = row
    return sorted(rows.values())


def write(draw: random.Random, served: Served, name: str) -> str:
    """One random commit; its token."""
    table, keyed = served.lake.table(name), served.state(name).table.keyed
    rows = [
        {"k": draw.randrange(60), "v": draw.randrange(9), "s": draw.choice(("é", "x y", None))}
        for _ in range(draw.randrange(1, 9))
    ]
    if not keyed:
        return str(table.append(rows))
    if draw.random() < 0.3 and served.state(name).table.deletes == "allow":
        return str(table.delete([{"k": row["k"]} for row in rows]))
    return str(table.upsert(rows))


def disturb(event: float, served: Served) -> None:
    """Sometimes end the process and start it on what is left, or write a checkpoint."""
    if event < 0.1:
        served.kill()
        served.start()
        served.until_indexed()
    elif event < 0.2:
        served.checkpoint()


CASES = [
    *(
        pytest.param(merge, buckets, id=f"{merge}-{buckets}")
        for merge, buckets in zip(MERGES, SCALES * 3, strict=False)
    ),
    *(
        pytest.param(merge, buckets, id=f"{merge}-{buckets}-more", marks=pytest.mark.long)
        for merge in MERGES
        for buckets in SCALES
    ),
]
"""Each engine once, and in `make long` with each change of the number."""


@pytest.mark.parametrize(("merge", "buckets"), CASES)
def test_rows_changes_and_positions_are_those_of_an_unscaled_table(
    tmp_path: Path, merge: str, buckets: tuple[int, int]
) -> None:
    """A second table gets the same commits and is never rescaled: it is the model. Between two steps the server is
    killed or writes a checkpoint. The log began later than the table, so the copy begins with rows below the start."""
    draw, disk = seeded(), SimDisk(tmp_path / "0")
    served = Served(disk.root, disk=disk, rescale_check_seconds=DAY)
    options: dict[str, Any] = {"primary_key": ["k"], **MERGES[merge]}
    for name, count in (("shop.a", buckets[0]), ("shop.model", 2)):
        served.lake.create_table(name, SCHEMA, buckets=count, **options)
    cuts: list[tuple[str, list[tuple[Any, ...]]]] = []

    def commit() -> None:
        state = draw.getstate()
        write(draw, served, "shop.model")
        draw.setstate(state)
        token = write(draw, served, "shop.a")
        cuts.append((token, rows_of(served.lake.table("shop.model"))))

    def between() -> None:
        if draw.random() < 0.5:
            commit()
        disturb(draw.random(), served)

    for _ in range(25):
        commit()
    expired = len(cuts)
    move_log_start(served.engine, "shop.a")
    compact(served.server)
    for _ in range(5):
        commit()
    uuid = uuid_of(served, "shop.a")
    served.lake.table("shop.a").rescale(buckets[1], wait=False)
    finish(served, uuid, between)
    assert served.state("shop.a").table.buckets == buckets[1]
    for _ in range(3):
        between()
    commit()
    table = served.lake.table("shop.a")
    for token, expected in cuts[expired:]:
        assert rows_of(table, at=token) == expected, "a union read at a token, of before the swap too"
        found = table.lookup([{"k": key} for key in range(60)], at=token, columns=["k", "v", "s"])
        assert sorted(tuple(row.values()) for row in found.to_pylist()) == expected
    assert rows_of(table) == cuts[-1][1]
    found = table.lookup([{"k": key} for key in range(60)], columns=["k", "v", "s"])
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == cuts[-1][1]
    assert verify(served.lake.transport, "shop.a").same
    served.close()


def test_changes_go_on_across_the_swap(served: Served) -> None:
    """From the beginning, from a token of before, by a subscription, and in a stream that is open all the time."""
    draw = seeded()
    served.lake.create_table("shop.a", SCHEMA, primary_key=["k"], buckets=3)
    for _ in range(10):
        middle = write(draw, served, "shop.a")
    table = served.lake.table("shop.a")
    before = fold(table)
    stream = table.changes("earliest", subscription="billing")
    first = next(stream)
    first.ack()
    stream.close()
    seen: list[dict[str, Any]] = []
    follower = table.changes("earliest")

    def read_until(key: int) -> None:
        for batch in follower:
            seen.extend(batch.to_pylist())
            if any(row["k"] == key for row in seen):
                return

    broken = table.changes("earliest")
    kept = next(broken).to_pylist()
    reads = threading.Thread(target=read_until, args=(999,))
    reads.start()
    uuid = uuid_of(served, "shop.a")
    table.rescale(7, wait=False)
    finish(served, uuid, lambda: write(draw, served, "shop.a") if draw.random() < 0.5 else None)
    for _ in range(5):
        write(draw, served, "shop.a")
    table.upsert([{"k": 999, "v": 1, "s": "last"}])  # by a handle from before the swap
    reads.join()
    follower.close()
    expected = rows_of(served.lake.table("shop.a"))
    assert apply([], seen) == expected, "a stream that is open all the time"
    assert fold(served.lake.table("shop.a")) == expected, "from the beginning"
    broken._messages._messages = None  # the connection breaks
    broken._messages._handed.broken()
    while all(row["k"] != 999 for row in kept):
        kept += next(broken).to_pylist()
    broken.close()
    assert apply([], kept) == expected, "a stream that connects again"
    rest = [row for batch in table.changes(middle, until="now") for row in batch.to_pylist()]
    assert apply(before, rest) == expected, "from a token, by a handle from before"
    served.restart()
    again = served.lake.table("shop.a").changes(subscription="billing", until="now")
    rest = [row for batch in again for row in batch.to_pylist()]
    assert apply([], [*first.to_pylist(), *rest]) == expected, "a subscription"


def apply(rows: list[tuple[Any, ...]], changes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """The rows after changes."""
    after = {row[0]: row for row in rows}
    for change in changes:
        if change["__change"] == "-D":
            del after[change["k"]]
        elif change["__change"] in ("+I", "+U"):
            assert (change["__change"] == "+U") == (change["k"] in after)
            after[change["k"]] = (change["k"], change["v"], change["s"])
    return sorted(after.values())


@pytest.mark.parametrize("bucket_key", [[], ["k"]])
def test_a_log_table_keeps_its_rows_and_the_order_of_a_bucket(served: Served, bucket_key: list[str]) -> None:
    draw = seeded()
    served.lake.create_table("shop.log", SCHEMA, buckets=4, bucket_key=bucket_key)
    served.lake.create_table("shop.model", SCHEMA, buckets=1)
    count = iter(range(10_000))

    def append() -> None:
        rows = [{"k": draw.randrange(9), "v": next(count), "s": "x"} for _ in range(draw.randrange(1, 9))]
        for name in ("shop.log", "shop.model"):
            served.lake.table(name).append(rows)

    for _ in range(20):
        append()
    token = served.lake.table("shop.log").append([{"k": 1, "v": 10_000, "s": "x"}])
    served.lake.table("shop.model").append([{"k": 1, "v": 10_000, "s": "x"}])
    before = rows_of(served.lake.table("shop.log"))
    uuid = uuid_of(served, "shop.log")
    served.lake.table("shop.log").rescale(3, wait=False)
    finish(served, uuid, lambda: append() if draw.random() < 0.3 else None)
    append()
    table = served.lake.table("shop.log")
    assert rows_of(table) == rows_of(served.lake.table("shop.model"))
    assert rows_of(table, at=token) == before
    changes = [row for batch in table.changes("earliest", until="now") for row in batch.to_pylist()]
    assert sorted(row["v"] for row in changes) == sorted(row[1] for row in rows_of(table)), "each row once"
    stored = table.scan(columns=["k", "v", "__bucket", "__offset"]).to_arrow().to_pylist()
    stored.sort(key=lambda row: (row["__bucket"], row["__offset"]))
    if bucket_key:
        for key in range(9):
            mine = [row["v"] for row in stored if row["k"] == key and row["v"] != 10_000]
            assert mine == sorted(mine), "rows of one key keep their order"
    served.purge_dropped(uuid)
    changes = [row for batch in table.changes("earliest", until="now") for row in batch.to_pylist()]
    assert sorted(row["v"] for row in changes) == sorted(row[1] for row in rows_of(table)), "without the old table too"


def test_a_log_table_without_a_bucket_key_moves_each_bucket_whole(served: Served) -> None:
    served.lake.create_table("shop.log", SCHEMA, buckets=4)
    table = served.lake.table("shop.log")
    for start in range(0, 400, 40):  # the bucket follows from the producer's name
        with table.writer(producer=f"p{start // 40}") as writer:
            writer.append([{"k": v, "v": v, "s": "x"} for v in range(start, start + 40)])

    def layout() -> dict[int, list[int]]:
        rows = table.scan(columns=["v", "__bucket", "__offset"]).to_arrow().to_pylist()
        rows.sort(key=lambda row: (row["__bucket"], row["__offset"]))
        return {b: [row["v"] for row in rows if row["__bucket"] == b] for b in range(4)}

    before = layout()
    assert sum(map(bool, before.values())) > 1, "rows in several buckets"
    uuid = uuid_of(served, "shop.log")
    table.rescale(3, wait=False)
    finish(served, uuid)
    after = layout()
    for bucket, rows in before.items():
        moved = set(rows)
        assert [v for v in after[bucket % 3] if v in moved] == rows, "the rows of a bucket keep their order"


def test_a_copy_with_another_value_is_not_swapped(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of the copying that keeps the number of rows: one value is another one."""
    table = served.lake.create_table("shop.a", SCHEMA, primary_key=["k"], buckets=2)
    table.upsert([{"k": i, "v": i, "s": "a"} for i in range(30)])
    uuid, real = uuid_of(served, "shop.a"), copied_rows

    def defect(*about: Any) -> CopiedRows:
        rows = real(*about)
        if rows.change is None:
            return rows
        batch = rows.change.batch
        values = [8 if value == 7 else value for value in batch.column("v").to_pylist()]
        batch = batch.set_column(batch.schema.get_field_index("v"), batch.schema.field("v"), pa.array(values))
        return replace(rows, change=replace(rows.change, batch=batch))

    table.rescale(3, wait=False)
    with monkeypatch.context() as patch:
        patch.setattr(rescales, "copied_rows", defect)
        with pytest.raises(Internal, match="it is not swapped"):
            finish(served, uuid)
    for _ in range(2):
        served.server.rescales.run_once()
        progress = table.rescale_progress
        assert progress is not None
        assert "has 30 rows with sum" in progress.waits
    assert rows_of(table) == [(i, i, "a") for i in range(30)]
    table.stop_rescale()
    table.rescale(3, wait=False)
    finish(served, uuid)
    assert served.state("shop.a").table.buckets == 3


def test_positions_of_before_expire_with_the_old_table(served: Served) -> None:
    table = served.lake.create_table("shop.a", SCHEMA, primary_key=["k"], buckets=2)
    token = table.upsert([{"k": 1, "v": 1, "s": "a"}])
    stream = table.changes("earliest", subscription="billing")
    next(stream)
    stream.close()
    uuid = uuid_of(served, "shop.a")
    table.rescale(3, wait=False)
    finish(served, uuid)
    swapped = served.lake.table("shop.a").upsert([{"k": 2, "v": 1, "s": "a"}])
    assert rows_of(table, at=token) == [(1, 1, "a")]
    served.purge_dropped(uuid)
    with pytest.raises(PositionExpired, match="rescaled"):
        rows_of(table, at=token)
    with pytest.raises(PositionExpired):
        list(table.changes(token, until="now"))
    with pytest.raises(PositionExpired, match="reset billing"):
        list(table.changes(subscription="billing", until="now"))
    assert fold(served.lake.table("shop.a"), "snapshot") == rows_of(served.lake.table("shop.a"), at=swapped)
    served.checkpoint()
    served.restart()
    with pytest.raises(PositionExpired, match="rescaled"):
        rows_of(served.lake.table("shop.a"), at=token)


def test_a_shared_subscription_holds_the_swap_and_begins_after_it(served: Served) -> None:
    table = served.lake.create_table("shop.a", SCHEMA, primary_key=["k"], buckets=2)
    table.upsert([{"k": i, "v": i, "s": "a"} for i in range(5)])
    uuid = uuid_of(served, "shop.a")
    table.rescale(3, wait=False)
    with table.changes("earliest", subscription="billing", shared=True) as shared:
        shared.next(timeout=30)
        while (waits := served.server.rescales.step(uuid)) is None:
            pass
        assert waits == "subscription"
    served.lake.drop_subscription("billing")
    finish(served, uuid)
    table = served.lake.table("shop.a")
    with table.changes("earliest", subscription="billing", shared=True) as shared:
        with pytest.raises(Conflict, match="was rescaled or swapped"):
            shared.next(timeout=30)
    with table.changes("snapshot", subscription="billing", shared=True) as shared:
        batch = shared.next(timeout=30)
        assert batch is not None
    with pytest.raises(Conflict, match="is shared"):
        table.rescale(2, wait=False)


def test_what_ends_a_rescale_and_what_it_refuses(served: Served) -> None:
    lake = served.lake
    table = lake.create_table("shop.a", SCHEMA, primary_key=["k"], buckets=2)
    table.upsert([{"k": i, "v": i, "s": "a"} for i in range(30)])
    uuid = uuid_of(served, "shop.a")

    def begin() -> str:
        lake.table("shop.a").rescale(3, wait=False)
        assert served.server.rescales.step(uuid) is None
        return "shop.a__rescale"

    with pytest.raises(Invalid, match="has 2 buckets already"):
        table.rescale(2)
    with pytest.raises(Invalid, match="buckets must be"):
        table.rescale(1_000_000)
    copy = begin()
    for refused in (
        lambda: lake.table(copy).upsert([{"k": 1, "v": 1, "s": "b"}]),
        lambda: lake.drop_table(copy),
        lambda: lake.table(copy).rename("shop.b"),
        lambda: lake.table(copy).truncate(),
        lambda: lake.table(copy).alter(drop=["s"]),
        lambda: list(lake.table(copy).changes("earliest", until="now")),
        lambda: table.rescale(4),
    ):
        with pytest.raises(Conflict, match=r"copy of a rescale|is being rescaled"):
            refused()
    table.stop_rescale()
    assert copy not in [each.name for each in lake.tables()]
    with pytest.raises(NotFound, match="not being rescaled"):
        table.stop_rescale()
    begin()
    table.truncate()
    assert uuid not in served.engine.view.rescales
    assert table.rescale_progress is None
    table.upsert([{"k": 1, "v": 1, "s": "b"}])
    begin()
    lake.drop_table("shop.a")
    assert [each.name for each in lake.tables()] == []
    lake.undrop("shop.a")
    assert served.server.rescales.step(uuid) == ""
    begin()
    lake.table("shop.a").rename("shop.new")
    first = lake.table("shop.new")
    lake.table("shop.new").alter(add={"n": pa.int64()}, rename={"s": "text"})
    lake.table("shop.new").upsert([{"k": 5, "v": 5, "text": "t", "n": 7}])
    finish(served, uuid)
    assert served.state("shop.new").table.buckets == 3
    found = lake.table("shop.new").scan().to_arrow().sort_by("k").to_pylist()
    assert found == [{"k": 1, "v": 1, "text": "b", "n": None}, {"k": 5, "v": 5, "text": "t", "n": 7}]
    assert first.definition.schema_id == 0
    first.upsert([{"k": 6, "v": 6, "s": "by the first version"}])
    served.purge_dropped(uuid)
    assert [row["text"] for row in lake.table("shop.new").lookup([{"k": 6}]).to_pylist()] == ["by the first version"]


def test_writes_that_wait_in_the_queue_go_to_the_new_table(served: Served) -> None:
    """A commit was checked against the old table and comes to its turn after the swap."""
    table = served.lake.create_table("shop.a", SCHEMA, primary_key=["k"], buckets=2)
    table.upsert([{"k": i, "v": i, "s": "a"} for i in range(5)])
    uuid = uuid_of(served, "shop.a")
    table.rescale(5, wait=False)
    reached, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        go_on.wait(60)

    duty = served.server.rescales
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rescales, "_is_near", lambda *_: False)
        while duty.step(uuid) is None:
            pass
    blocks = threading.Thread(target=lambda: served.engine.loop.run(hold))
    blocks.start()
    reached.wait()
    swaps = threading.Thread(target=duty.step, args=(uuid,))
    swaps.start()
    until(lambda: len(served.engine.loop.queue) > 0, "the swap waits for the loop")
    tokens: list[Any] = []
    rows = [{"k": i, "v": 100 + i, "s": "late"} for i in range(3, 40)]
    writes = threading.Thread(target=lambda: tokens.append(table.upsert(rows)))
    writes.start()
    until(lambda: len(served.engine.loop.queue) == 2, "the write waits for the loop")
    go_on.set()
    for thread in (blocks, swaps, writes):
        thread.join()
    assert served.state("shop.a").table.buckets == 5
    assert tokens[0].result.inserted == 35
    assert [row[1] for row in rows_of(served.lake.table("shop.a"))] == [0, 1, 2, *range(103, 140)]
    assert verify(served.lake.transport, "shop.a").same


@pytest.mark.parametrize("keyed", [True, False])
def test_a_kill_after_each_step_copies_no_row_twice(tmp_path: Path, *, keyed: bool) -> None:
    disk = SimDisk(tmp_path / "0")
    served = Served(disk.root, disk=disk, rescale_check_seconds=DAY)
    key = ["k"] if keyed else None
    table = served.lake.create_table("shop.a", SCHEMA, primary_key=key, buckets=2)
    write_rows = table.upsert if keyed else table.append
    write_rows([{"k": i, "v": i, "s": "a"} for i in range(40)])
    expected = rows_of(table)
    uuid = uuid_of(served, "shop.a")
    table.rescale(3, wait=False)
    steps = 0
    while True:
        waits = served.server.rescales.step(uuid)
        served.kill()
        disk = disk.crash(tmp_path / str(steps + 1), steps)  # what was not synced may be lost
        served.open(disk.root, disk)
        served.until_indexed()
        steps += 1
        if waits == "":
            break
    assert steps >= 6
    state = served.state("shop.a")
    assert state.table.buckets == 3
    assert sum(log.head for log in state.logs) == 40, "each row was copied once"
    assert rows_of(served.lake.table("shop.a")) == expected
    assert verify(served.lake.transport, "shop.a").same
    served.close()
