"""Keys of one hash are never taken for one another: in commits, look-ups, replay and rebuild."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore import keys
from lakestore.verify import verify
from tests.unit.test_index_faults import engine_of, lose, ready

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
LONG = "x" * 600
NAMES = [f"{LONG}{i:03d}" for i in range(90)] + [f"{i}" for i in range(20)]
ABSENT = [f"{LONG}no{i}" for i in range(30)]


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


@pytest.mark.parametrize("seed", range(3))
def test_hash_collision_forced(tmp_path: Path, seed: int) -> None:
    """Inserts, updates, deletes, keys that come back, checkpoints, restarts and rebuilds."""
    chance, model = random.Random(seed), dict[str, int]()
    lake = ls.open(tmp_path)
    lake.create_table("a.b", SCHEMA, primary_key=["k"], buckets=3)
    for number in range(25):
        step(chance, lake.table("a.b"), model, number)
        event = chance.random()
        if event < 0.15:
            engine_of(lake).checkpoint()
        elif event < 0.4:
            engine_of(lake).close(checkpoint=event < 0.2)
            lake.close()
            if event > 0.3:
                lose(tmp_path)
            lake = ls.open(tmp_path)
            ready(lake)
        exact(lake, model)
    lake.close()
