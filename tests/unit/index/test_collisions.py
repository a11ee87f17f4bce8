"""Keys of one hash are never taken for one another: in commits, look-ups, replay and rebuild."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.rows import keys
from lakestore.union.verify import verify
from tests.support.seeds import seeded
from tests.support.served import Served
from tests.unit.index.test_index_faults import lose

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
LONG = "x" * 60_000
"""As long as keys may be; what differs comes last."""
NAMES = [f"{LONG}{i:02d}" for i in range(60)] + [f"{i}" for i in range(20)]
ABSENT = [f"{LONG}no{i}" for i in range(20)]


@pytest.fixture(autouse=True)
def _four_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "HASH_BITS", 4)


def exact(lake: ls.Lake, model: dict[str, int]) -> None:
    """Look-ups, scan, log and index all say what the model says."""
    table = lake.table("a.b")
    found = table.lookup(pa.table({"k": [*NAMES, *ABSENT]}))
    assert found.to_pylist() == [{"k": name, "n": model[name]} for name in NAMES if name in model]
    assert {row["k"]: row["n"] for row in table.scan().to_arrow().to_pylist()} == model
    assert verify(lake.transport, "a.b").same


def step(chance: random.Random, table: ls.Table, model: dict[str, int], number: int) -> None:
    """One commit of upserts or deletes, keys more than once among them."""
    some = [chance.choice(NAMES) for _ in range(chance.randrange(1, 40))]
    if chance.random() < 0.5:
        table.upsert([{"k": name, "n": number} for name in some])
        assert table.last_result is not None
        assert table.last_result.inserted == len(set(some) - model.keys())
        model.update(dict.fromkeys(some, number))
    else:
        table.delete([{"k": name} for name in [*some, *ABSENT[:3]]])
        assert table.last_result is not None
        assert table.last_result.deleted == len(set(some) & model.keys())
        for name in some:
            model.pop(name, None)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_hash_collision_forced(tmp_path: Path, seed: int) -> None:
    """Inserts, updates, deletes, keys that come back, checkpoints, restarts and rebuilds."""
    chance, model = seeded(seed), dict[str, int]()
    served = Served(tmp_path)
    served.lake.create_table("a.b", SCHEMA, primary_key=["k"], buckets=3)
    for number in range(12):
        step(chance, served.lake.table("a.b"), model, number)
        event = chance.random()
        if event < 0.15:
            served.checkpoint()
        elif event < 0.4:
            served.server.close(checkpoint=event < 0.2)
            served.close()
            if event > 0.3:
                lose(tmp_path)
            served.start()
            served.until_indexed()
        exact(served.lake, model)
    served.close()


def twins(count: int) -> list[str]:
    """Keys of one hash."""
    names = [f"{LONG}{i}" for i in range(16 * count)]
    encoded = keys.encode([pa.array(names)], b"four")
    return [name for name, key in zip(names, encoded, strict=True) if key == encoded[0]][:count]


def pairs(table: ls.Table, names: list[str]) -> list[int]:
    """What is found under some names."""
    found: list[int] = table.lookup([{"k": name} for name in names])["n"].to_pylist()
    return found


def test_a_rebuild_may_give_other_slots_than_the_journal_behind_the_checkpoint_says(tmp_path: Path) -> None:
    first, second = twins(2)
    with Served(tmp_path) as served:
        lake = served.lake
        table = lake.create_table("a.b", SCHEMA, primary_key=["k"], buckets=1)
        table.upsert([{"k": first, "n": 1}, {"k": second, "n": 2}])
        served.checkpoint()
        table.delete([{"k": first}])
        served.server.close(checkpoint=False)
    lose(tmp_path)
    for _ in range(2):
        with Served(tmp_path) as served:
            lake = served.lake
            served.until_indexed()
            assert pairs(lake.table("a.b"), [first, second]) == [2]
            served.server.close(checkpoint=False)


def test_a_delete_of_an_absent_key_leaves_no_gap_before_a_key_of_its_hash(tmp_path: Path) -> None:
    first, second, third = twins(3)
    with Served(tmp_path) as served:
        lake = served.lake
        table = lake.create_table("a.b", SCHEMA, primary_key=["k"], buckets=1)
        with lake.commit() as commit:
            commit.delete("a.b", [{"k": first}])
            commit.upsert("a.b", [{"k": second, "n": 2}, {"k": third, "n": 3}])
            commit.delete("a.b", [{"k": second}])
        assert pairs(table, [first, second, third]) == [3]
        with lake.commit() as commit:
            commit.upsert("a.b", [{"k": first, "n": 1}, {"k": second, "n": 2}])
        assert pairs(table, [first, second, third]) == [1, 2, 3]
        served.checkpoint()
        assert served.server.upkeep.scrubber.run_once() == [], "the scrub adds up the entries of hashed keys"
        assert served.engine.index.ready
