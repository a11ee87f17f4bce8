"""Edges of keys and batches, for every merge engine: put back in one commit, twice in a batch, odd bytes, very long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.limits import Limits
from lakestore.rows import keys
from lakestore.union.verify import verify
from lakestore_server.duties.checkpoint import Checkpointer
from lakestore_server.files import new_segment
from lakestore_server.files.segment import Segment
from tests.support.folding import Fold
from tests.support.log_start import compact, move_log_start
from tests.support.merge_cases import COUNTS
from tests.support.seeds import seeded
from tests.support.served import Served
from tests.unit.index.test_index_faults import lose

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64(), False), ("n", pa.int64())])
PARTIAL = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("n", pa.int64())])
ENGINES: dict[str, dict[str, Any]] = {
    "upsert": {},
    "partial": {"merge": "partial"},
    "first_row": {"merge": "first_row"},
    "versioned": {"merge": "versioned(v)"},
    "aggregate": {"merge": ls.aggregate({"v": "max", "n": "sum"})},
}


@pytest.fixture(name="lake")
def _lake(served: Served) -> ls.Lake:
    return served.lake


def create(lake: ls.Lake, engine: str) -> ls.Table:
    schema = PARTIAL if engine == "partial" else SCHEMA
    return lake.create_table(f"e.{engine}", schema, primary_key=["id"], buckets=2, **ENGINES[engine])


def changes(table: ls.Table, start: str = "earliest") -> list[tuple[str, int, int, int | None]]:
    stream = table.changes(start, until="now", before_images=True)
    return [(r["__change"], r["id"], r["v"], r["n"]) for batch in stream for r in batch.to_pylist()]


def agree(lake: ls.Lake, table: ls.Table) -> dict[int, tuple[int, int | None]]:
    """The rows, which scan, look-up, fold and audit say."""
    found = {row["id"]: row for row in table.scan().to_arrow().to_pylist()}
    assert {row["id"]: row for row in table.lookup([{"id": i} for i in range(-5, 20)]).to_pylist()} == found
    assert Fold().add(table.changes(until="now", before_images=True)).rows == found
    assert verify(lake.transport, table.name).problems() == []
    return {key: (row["v"], row["n"]) for key, row in found.items()}


def counted(result: Any) -> dict[str, int]:
    return {name: getattr(result, name) for name in COUNTS if getattr(result, name)}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stored", ["memory", "segment"])
def test_delete_then_reinsert_same_key_same_commit(served: Served, lake: ls.Lake, engine: str, stored: str) -> None:
    """Two changes, in this order; the row that comes back has nothing of the one that went."""
    table = create(lake, engine)
    before = table.upsert([{"id": 1, "v": 5, "n": 10}, {"id": 2, "v": 5, "n": 10}])
    if stored == "segment":
        served.checkpoint()
    with lake.commit() as commit:
        commit.delete(table.name, [{"id": 1}, {"id": 3}])
        commit.upsert(table.name, [{"id": 1, "v": 5, "n": 1}, {"id": 3, "v": 1, "n": 3}])
    assert [counted(result) for result in commit.results] == [{"deleted": 1, "not_found": 1}, {"inserted": 2}]
    assert sorted(changes(table, before), key=lambda change: change[1]) == [
        ("-D", 1, 5, 10),
        ("+I", 1, 5, 1),
        ("+I", 3, 1, 3),
    ]
    assert agree(lake, table) == {1: (5, 1), 2: (5, 10), 3: (1, 3)}
    with lake.commit() as commit:
        commit.delete(table.name, [{"id": 2}])
        commit.upsert(table.name, [{"id": 2, "v": 4, "n": 2}])
        commit.delete(table.name, [{"id": 2}])
        commit.upsert(table.name, [{"id": 2, "v": 6, "n": 7}])
    lower = {"ignored": 1} if engine == "versioned" else {"inserted": 1}
    found = {"not_found": 1} if engine == "versioned" else {"deleted": 1}
    assert [counted(result) for result in commit.results] == [{"deleted": 1}, lower, found, {"inserted": 1}]
    assert agree(lake, table)[2] == (6, 7)


BATCH = [(1, 3, 1), (2, 1, 5), (1, 4, None), (1, 2, 7), (2, 1, 6)]
"""id, v and n of rows of one batch."""
MADE = {
    "upsert": ({1: (2, 7), 2: (1, 6)}, {"inserted": 2, "updated": 3}, {"updated": 5}),
    "partial": ({1: (2, 7), 2: (1, 6)}, {"inserted": 2, "folded": 3}, {"updated": 2, "folded": 3}),
    "first_row": ({1: (3, 1), 2: (1, 5)}, {"inserted": 2, "folded": 3}, {"ignored": 2, "folded": 3}),
    "versioned": ({1: (4, None), 2: (1, 6)}, {"inserted": 2, "folded": 3}, {"updated": 2, "folded": 3}),
    "aggregate": ({1: (4, 8), 2: (1, 11)}, {"inserted": 2, "folded": 3}, {"updated": 2, "folded": 3}),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_duplicates_inside_a_batch(served: Served, lake: ls.Lake, engine: str) -> None:
    """`upsert` keeps their order, the others make one change of them; deletes of one key twice find it once."""
    table = create(lake, engine)
    rows, first, second = MADE[engine]
    batch = [{"id": i, "v": v, "n": n} for i, v, n in BATCH]
    table.upsert(batch)
    assert counted(table.last_result) == first
    assert agree(lake, table) == rows
    served.checkpoint()
    table.upsert(batch)
    assert counted(table.last_result) == second
    again = {1: (4, 16), 2: (1, 22)} if engine == "aggregate" else rows
    assert agree(lake, table) == again
    if engine == "upsert":
        assert [c for c in changes(table) if c[1] == 1][:5] == [
            ("+I", 1, 3, 1),
            ("-U", 1, 3, 1),
            ("+U", 1, 4, None),
            ("-U", 1, 4, None),
            ("+U", 1, 2, 7),
        ]
    table.delete([{"id": 1}, {"id": 9}, {"id": 1}, {"id": 9}])
    twice = {"not_found": 3} if engine == "upsert" else {"not_found": 1, "folded": 2}
    assert counted(table.last_result) == {"deleted": 1, **twice}
    assert agree(lake, table) == {2: again[2]}


NAMES = ["", "\0", "\0\0", "\0a", "\1", "a", "a\0", "a\0\0", "a\0b", "a\1", "ab", "b", "é", "\U0001f600"]
NUMBERS = [-(2**63), -(2**32), -256, -255, -2, -1, 0, 1, 255, 256, 2**32, 2**63 - 1]
PAIRS = pa.schema([("name", pa.string()), ("id", pa.int64()), ("v", pa.int64())])


@pytest.mark.parametrize("how", ["overlay", "runs", "rebuilt"])
def test_key_order_edge_cases(tmp_path: Path, how: str) -> None:
    """Negative numbers, the empty text and zero bytes: whole keys find their row, and prefixes theirs, in order."""
    rows: list[dict[str, Any]] = [
        {"name": name, "id": number, "v": i} for i, (name, number) in enumerate((a, b) for a in NAMES for b in NUMBERS)
    ]
    with Served(tmp_path) as served:
        lake = served.lake
        table = lake.create_table("e.p", PAIRS, primary_key=["name", "id"], bucket_key=["name"], buckets=3)
        table.upsert(seeded(1).sample(rows, len(rows)))
        gone = [row for row in rows if row["v"] % 5 == 2]
        table.delete([{"name": row["name"], "id": row["id"]} for row in gone])
        if how == "runs":
            served.checkpoint()
    if how == "rebuilt":
        lose(tmp_path)
    with Served(tmp_path) as served:
        lake = served.lake
        served.until_indexed()
        table = lake.table("e.p")
        live = [row for row in rows if row["v"] % 5 != 2]
        assert table.lookup([{"name": row["name"], "id": row["id"]} for row in rows]).to_pylist() == live
        for name in NAMES:
            found = table.lookup([{"name": name}]).to_pylist()
            assert found == [row for row in live if row["name"] == name], repr(name)
        assert table.lookup([{"name": "a\0\0\0"}, {"name": "\2"}]).num_rows == 0
        assert verify(lake.transport, "e.p").problems() == []


LONG = "k" * keys.KEPT_BYTES
LONG_NAMES = [*(f"{LONG}{i}" for i in range(6)), LONG, LONG[:-1], "x" * 60_000, "x" * 60_000 + "\0", "x" * 59_999]


@pytest.mark.parametrize("end", ["restart", "index lost"])
def test_very_long_keys(tmp_path: Path, end: str) -> None:
    """Through look-ups, prefix look-ups, cuts, local compaction, restarts and rebuilds."""
    limits = Limits(segment_rows=64)
    served = Served(tmp_path, limits=limits)
    table = served.lake.create_table("e.l", PAIRS, primary_key=["name", "id"], bucket_key=["name"], buckets=2)
    live: dict[tuple[str, int], int] = {}
    tokens: list[tuple[str, dict[tuple[str, int], int]]] = []
    for step in range(6):
        rows: list[dict[str, Any]] = [
            {"name": name, "id": i, "v": step} for name in LONG_NAMES for i in range(3) if (i + step) % 3
        ]
        token = table.upsert(rows)
        live |= {(row["name"], row["id"]): step for row in rows}
        gone: list[dict[str, Any]] = [{"name": name, "id": step % 3} for name in LONG_NAMES[step::3]]
        token = table.delete(gone)
        for row in gone:
            live.pop((row["name"], row["id"]), None)
        tokens.append((token, dict(live)))
        if step % 2:
            move_log_start(served.engine, "e.l")
            compact(served.server)
    state = served.state("e.l")
    assert any(isinstance(chunk, Segment) and chunk.is_sparse for log in state.logs for chunk in log.chunks)
    served.close()
    if end == "index lost":
        lose(tmp_path)
    served.start()
    served.until_indexed()
    table = served.lake.table("e.l")
    after = table.upsert([{"name": LONG_NAMES[8], "id": 0, "v": 50}, {"name": LONG_NAMES[3], "id": 9, "v": 50}])
    now = {**live, (LONG_NAMES[8], 0): 50, (LONG_NAMES[3], 9): 50}
    for at, wanted in ((tokens[-1][0], live), (after, now)):
        whole = [{"name": name, "id": i} for name in LONG_NAMES for i in (0, 1, 2, 9)]
        found = table.lookup(whole, at=at).to_pylist()
        assert {(row["name"], row["id"]): row["v"] for row in found} == wanted
        for name in LONG_NAMES:
            prefix = table.lookup([{"name": name}], at=at).to_pylist()
            assert prefix == [{"name": n, "id": i, "v": v} for (n, i), v in sorted(wanted.items()) if n == name]
    assert {(row["name"], row["id"]): row["v"] for row in table.scan().to_arrow().to_pylist()} == now
    assert verify(served.lake.transport, "e.l", deep=True).problems() == []
    served.close()


def test_the_index_lost_between_any_two_segment_rewrites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is rebuilt from what the compaction under way has not swapped yet, beside it."""
    monkeypatch.setattr(Checkpointer, "wake", lambda self: None)  # the next one waits until the test asks
    served = Served(tmp_path, limits=Limits(segment_rows=64, compaction_bytes=1))
    engine, live = served.engine, dict[int, int]()
    table = served.lake.create_table("e.w", PARTIAL, primary_key=["id"], buckets=4)
    for step in range(9):
        changed = (
            range(step, 40, 3) if step else range(400)
        )  # most of the first segments lives on, with dead rows in it
        table.upsert([{"id": i, "v": step, "n": i} for i in changed])
        live |= dict.fromkeys(changed, step)
        gone = range(step, 40, 7)
        table.delete([{"id": i} for i in gone])
        live = {i: v for i, v in live.items() if i not in gone}
        served.checkpoint()
    rewrites, encoded = 0, new_segment.encoded_sparse

    def lost(left: new_segment.SparseRows) -> new_segment.EncodedSegment:
        nonlocal rewrites
        rewrites += 1
        engine.index.found_problem("a test says so", damaged=False)
        return encoded(left)

    monkeypatch.setattr(new_segment, "encoded_sparse", lost)
    move_log_start(engine, "e.w")
    before, rounds = -1, 0
    while before < rewrites:
        before, rounds = rewrites, rounds + 1
        served.checkpoint()
        served.until_indexed()
        found = table.lookup([{"id": i} for i in range(400)]).to_pylist()
        assert {row["id"]: row["v"] for row in found} == live
    assert rewrites >= 4
    assert rounds >= 4
    assert verify(served.lake.transport, "e.w").problems() == []
    served.close()
