"""Values that were looked up ahead: with what came since they are those of a look-up now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lakestore_server.commit.engine import Engine
from lakestore_server.host.disk import RealDisk
from lakestore_server.index import hints, levels
from lakestore_server.index.entry import ABSENT, FLAG, Ints, table_prefix
from lakestore_server.index.hints import HINTED_MIN, Hint
from lakestore_server.index.key_index import Index
from lakestore_server.index.keys import ByteKeys, IndexKeys, NumberKeys
from lakestore_server.index.levels import Levels
from tests.support.seeds import seeded
from tests.support.served import Served

PREFIX = table_prefix(1)
KEYS, MOST = 60, 25


def number_keys(numbers: list[int]) -> IndexKeys:
    return NumberKeys(PREFIX, 8, np.array(numbers, dtype=np.uint64))


def byte_keys(numbers: list[int]) -> IndexKeys:
    return ByteKeys([PREFIX + b"key %d" % number for number in numbers])


class Steps:
    """An index through commits, checkpoints and merges, and hints of several moments."""

    def __init__(self, folder: Path, seed: int, keys_of: Callable[[list[int]], IndexKeys]) -> None:
        self.chance, self.keys_of = seeded(seed), keys_of
        folder.mkdir()
        self.index = Index(folder=folder, disk=RealDisk())
        self.right: dict[int, int] = {}
        self.hints: list[tuple[list[int], Hint]] = []
        self.lsn = 0

    def commit(self) -> None:
        numbers = self.chance.sample(range(KEYS), self.chance.randrange(1, MOST))
        values = [self.chance.choice((ABSENT, self.lsn, self.lsn | FLAG)) for _ in numbers]
        self.lsn += 1
        with self.index.lock:
            self.index.put(self.keys_of(numbers), np.array(values, dtype=np.int64))
        self.right |= dict(zip(numbers, values, strict=True))

    def forget(self) -> None:
        """At an LSN that a checkpoint may have had already."""
        numbers = self.chance.sample(range(KEYS), 9)
        values = [self.right.get(number, ABSENT) for number in numbers]
        self.index.forget(self.keys_of(numbers), np.array(values, dtype=np.int64))
        self.right |= dict.fromkeys(numbers, ABSENT)

    def hint(self) -> None:
        """Of one change, or of several at once."""
        parts = [
            self.chance.choices(range(KEYS), k=self.chance.randrange(1, MOST))
            for _ in range(self.chance.randrange(1, 4))
        ]
        for numbers, hint in zip(parts, self.index.foreseen(list(map(self.keys_of, parts))), strict=True):
            assert hint is not None
            self.hints = [*self.hints[-5:], (numbers, hint)]

    def freeze(self) -> None:
        self.index.freeze(self.lsn)

    def adopt(self) -> None:
        self.freeze()
        self.index.merge(self.lsn)
        runs = self.index.to_name()
        self.commit()
        self.index.merged()
        self.index.named(runs)

    def merge(self) -> None:
        self.index.work(lambda entries: True)

    def check(self) -> None:
        """Of some hints together, some of them in vain, and keys without one."""
        chosen: list[tuple[list[int], Hint | None]] = [(self.chance.choices(range(KEYS), k=5), None)]
        chosen += self.chance.sample(self.hints, min(len(self.hints), 3))
        self.chance.shuffle(chosen)
        numbers = [number for part, _ in chosen for number in part]
        hints = [(len(part), hint) for part, hint in chosen]
        right = [self.right.get(number, ABSENT) for number in numbers]
        assert self.index.find(self.keys_of(numbers)).tolist() == right
        found = self.index.find(self.keys_of(numbers), hints)
        assert found.tolist() == right


@pytest.mark.parametrize("keys_of", [number_keys, byte_keys])
@pytest.mark.parametrize(("seed", "steps"), [(1, 60), pytest.param(2, 2_000, marks=pytest.mark.long)])
def test_a_look_up_with_hints_is_one_of_now(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    steps: int,
    keys_of: Callable[[list[int]], IndexKeys],
) -> None:
    monkeypatch.setattr(hints, "HINTED_MIN", 1)
    monkeypatch.setattr(levels, "SIMILAR", 3)
    table = Steps(tmp_path / "index", seed, keys_of)
    ways = [table.commit, table.hint, table.hint, table.forget, table.freeze, table.adopt, table.merge]
    for _ in range(steps):
        table.chance.choice(ways)()
        table.check()


@pytest.mark.parametrize("keys_of", [number_keys, byte_keys])
def test_a_hint_ends_when_a_merge_of_deleted_keys_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys_of: Callable[[list[int]], IndexKeys]
) -> None:
    monkeypatch.setattr(hints, "HINTED_MIN", 1)
    monkeypatch.setattr(levels, "SIMILAR", 2)
    index, keys = Index(folder=tmp_path, disk=RealDisk()), keys_of([1, 2, 3])

    def checkpoint(lsn: int, value: int) -> None:
        with index.lock:
            index.put(keys, np.full(3, value, dtype=np.int64))
        index.freeze(lsn)
        index.merge(lsn)
        index.merged()
        index.named(index.to_name())
        with index.lock:
            index._older = ()  # as once the merged overlays are too many to be kept

    checkpoint(1, 7)
    (hint,) = index.foreseen([keys])
    checkpoint(2, ABSENT)
    assert index.work(lambda entries: True)
    assert not index.runs
    assert index.find(keys, [(3, hint)]).tolist() == [ABSENT] * 3


def test_the_loop_searches_nothing_that_was_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a large request that has to wait, but for runs that are newer."""
    asked: list[int] = []
    find = Levels.find

    def counted(self: Levels, keys: NumberKeys) -> Ints:
        asked.append(len(keys))
        return find(self, keys)

    schema = pa.schema([("id", pa.int64()), ("v", pa.int64())])
    rows = pa.table({"id": range(HINTED_MIN), "v": range(HINTED_MIN)}, schema)
    with Served(tmp_path) as served:
        table = served.lake.create_table("a.b", schema, primary_key=["id"], buckets=1)
        table.upsert(rows)
        served.checkpoint()
        monkeypatch.setattr(Levels, "find", counted)
        table.upsert(rows.slice(1))
        assert asked == [HINTED_MIN - 1], "by the loop"
        monkeypatch.setattr(Engine, "is_busy", True)
        table.upsert(rows.slice(1))
        assert len(asked) == 1, "few wait for the loop, which finds all in memory"
        table.upsert(rows)
        assert asked[1:] == [HINTED_MIN], "before it was queued, and no more"
