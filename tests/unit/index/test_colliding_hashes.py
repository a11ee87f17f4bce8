"""Keys of bytes whose hashes collide are never taken for one another: in commits, look-ups, prefixes and replay."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.union.verify import verify
from lakestore_server.arrays import bytes_table
from lakestore_server.arrays.padded_bytes import PaddedBytes
from lakestore_server.index import entry
from tests.support.seeds import seeded
from tests.support.served import Served
from tests.unit.index.test_index_faults import lose

SCHEMA = pa.schema([("a", pa.string()), ("b", pa.string()), ("n", pa.int64())])
NAMES = [(f"region-{i % 5}", f"{'customer' * (i % 4)}-{i}") for i in range(120)]
Model = dict[tuple[str, str], int]


@pytest.fixture(autouse=True, params=[0, 3], ids=["one hash", "four hashes"])
def _weak(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    mask: int = request.param

    def weak(key: bytes, *_: object) -> int:
        return ((sum(key) & mask) << 62) + 5

    def weak_ones(strings: PaddedBytes, *_: object) -> npt.NDArray[np.uint64]:
        return np.array(list(map(weak, strings.listed())), dtype=np.uint64)

    for module in (bytes_table, entry):
        monkeypatch.setattr(module, "hash_of", weak)
    monkeypatch.setattr(PaddedBytes, "hashes", weak_ones)


def exact(lake: ls.Lake, model: Model) -> None:
    """Look-ups of many and of one, prefixes, scan, log and index all say what the model says."""
    table = lake.table("a.b")
    asked = pa.table({"a": [a for a, _ in NAMES], "b": [b for _, b in NAMES]})
    wanted = [{"a": a, "b": b, "n": model[a, b]} for a, b in NAMES if (a, b) in model]
    assert table.lookup(asked).to_pylist() == wanted
    for a, b in NAMES[:3]:
        there = [model[a, b]] if (a, b) in model else []
        assert table.lookup([{"a": a, "b": b}])["n"].to_pylist() == there
    assert sorted(table.lookup([{"a": "region-1"}])["n"].to_pylist()) == sorted(
        n for (a, _), n in model.items() if a == "region-1"
    )
    assert verify(lake.transport, "a.b").same


def step(chance: random.Random, table: ls.Table, model: Model, number: int) -> None:
    """One commit of upserts or deletes, few or many, keys more than once among them."""
    some = [chance.choice(NAMES) for _ in range(chance.choice([1, 3, 40, 100]))]
    if chance.random() < 0.6:
        table.upsert([{"a": a, "b": b, "n": number} for a, b in some])
        assert table.last_result is not None
        assert table.last_result.inserted == len(set(some) - model.keys())
        model.update(dict.fromkeys(some, number))
    else:
        table.delete([{"a": a, "b": b} for a, b in some])
        assert table.last_result is not None
        assert table.last_result.deleted == len(set(some) & model.keys())
        for name in some:
            model.pop(name, None)


def test_colliding_keys_are_told_apart(tmp_path: Path) -> None:
    """Over inserts, updates, deletes, checkpoints, restarts and a rebuild."""
    chance, model = seeded(7), Model()
    served = Served(tmp_path)
    served.lake.create_table("a.b", SCHEMA, primary_key=["a", "b"], bucket_key=["a"], buckets=3)
    for number in range(16):
        step(chance, served.lake.table("a.b"), model, number)
        if number in (4, 11):
            served.checkpoint()
        if number in (6, 13):
            served.kill()
            if number == 13:
                lose(tmp_path)
            served.start()
            served.until_indexed()
        exact(served.lake, model)
    served.close()
