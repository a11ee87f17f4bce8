"""etcd's guarantees for watches, by name, with dropped connections, restarts, pauses, compaction and retention (R22);
and that a changelog is the exact difference stream of its table (R20).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lakestore as ls
from lakestore.errors import PositionExpired
from lakestore_server.changes import stream as feed
from tests.support.folding import Fold
from tests.support.seeds import examples
from tests.support.served import Served
from tests.support.watching import ACCOUNTS, MONEY, NAME, SCHEMA, Bank, Event, lsn_of, rows_of, watch, watched


@dataclass(frozen=True)
class Seen:
    """What one consumer saw."""

    bank: Bank
    start: str
    least: int | None
    """The condition is that an account holds so much."""
    behind: int
    """The LSN of the last commit before the stream began."""
    batches: list[ls.ChangeBatch]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All changes."""
        return [row for batch in self.batches for row in rows_of(batch)]


CASES = [(1, "earliest", None), (2, "snapshot", None), (3, "earliest", 90), (4, "snapshot", 90)]


@pytest.fixture(scope="module", params=CASES, ids=str)
def seen(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Seen]:
    seed, start, least = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed, "PROGRESS_SECONDS", 0.001)
        bank = opened(tmp_path_factory.mktemp("bank"), seed)
        behind = bank.newest
        yield Seen(bank, start, least, behind, list(watched(bank, start, where=condition(least))))
        bank.served.close()


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bank]:
    monkeypatch.setattr(feed, "PROGRESS_SECONDS", 0.001)
    made = opened(tmp_path, 6)
    yield made
    made.served.close()


def opened(folder: Path, seed: int) -> Bank:
    bank = Bank(folder, seed)
    for _ in range(20):
        bank.transfer()
    return bank


def condition(least: int | None) -> str:
    return "" if least is None else f"n >= {least}"


def expected(bank: Bank, least: int | None, behind: int) -> list[Event]:
    """The changes of the table, or of the filtered one, in the commits behind an LSN."""
    found: list[Event] = []
    before = bank.state(behind, least)
    for lsn in sorted(lsn for lsn in bank.states if lsn > behind):
        after = bank.state(lsn, least)
        for change, key, n in sorted(bank.events[lsn]):
            old, new = before.get(key), after.get(key)
            if old and new:
                found.append(("+U", key, n))
            elif old or new:
                found.append(("+I", key, n) if new else ("-D", key, old["n"] if old else 0))
            assert least is not None or found[-1] == (change, key, n)
        before = after
    return found


def test_ordered(seen: Seen) -> None:
    """What comes later happened later."""
    times = []
    offsets: dict[int, int] = {}
    for batch in seen.batches:
        for row in rows_of(batch):
            assert row["__offset"] >= offsets.get(row["__bucket"], -1)
            offsets[row["__bucket"]] = row["__offset"]
            if not batch.snapshot:
                times.append(row["__timestamp"])
    assert times == sorted(times)
    assert len(times) > 10


def test_unique(seen: Seen) -> None:
    """Nothing comes twice."""
    names = [(row["__change"], row["__bucket"], row["__offset"]) for row in seen.rows]
    assert len(names) == len(set(names))


def test_reliable(seen: Seen) -> None:
    """Nothing is left out."""
    bank, least = seen.bank, seen.least
    behind = seen.behind if seen.start == "snapshot" else 0
    snapshot: dict[int, int] = {}
    found: list[Event] = []
    for batch in seen.batches:
        for row in rows_of(batch):
            if batch.snapshot:
                snapshot[row["id"]] = row["n"]
            elif row["__change"] != "-U":
                found.append((row["__change"], row["id"], row["n"]))
    assert snapshot == {key: row["n"] for key, row in bank.state(behind, least).items()}
    wanted = expected(bank, least, behind)
    assert sorted(found) == sorted(wanted)
    for key in range(ACCOUNTS):
        assert [event for event in found if event[1] == key] == [event for event in wanted if event[1] == key]


def test_atomic(seen: Seen) -> None:
    """Between tokens lie whole commits: at each one the sum is right, for the state is the table's at that LSN."""
    fold, at, looks = Fold(), 0, 0
    for batch in seen.batches:
        fold.add([batch])
        if lsn_of(batch) > at:
            at, looks = lsn_of(batch), looks + 1
            assert fold.rows == seen.bank.state(at, seen.least)
            assert seen.least is not None or sum(row["n"] for row in fold.rows.values()) == ACCOUNTS * MONEY
    assert looks > 5


@pytest.mark.parametrize("start", ["earliest", "snapshot"])
@pytest.mark.parametrize("least", [None, 90])
def test_resumable(bank: Bank, start: str, least: int | None) -> None:
    """A new stream goes on at any token of an old one, and says so when what lies behind it is gone."""
    table, where, fold, token = bank.served.lake.table(NAME), condition(least) or None, Fold(), start
    for _ in range(20):
        stream = table.changes(token, where=where, before_images=True, progress=True, until="now")
        step = _whole(list(itertools.islice(stream, bank.random.randint(1, 4))))
        stream.close()
        fold.add(step)
        token = step[-1].token if step else token
        bank.transfer()
    rest = table.changes(token, where=where, before_images=True, until="now")
    fold.add(rest)
    assert fold.rows == bank.state(bank.newest, least)
    bank.transfer()
    bank.forget()
    with pytest.raises(PositionExpired, match="start at 'snapshot'"):
        next(table.changes(rest.token))


def _whole(batches: list[ls.ChangeBatch]) -> list[ls.ChangeBatch]:
    """The batches up to the last one whose token lies behind it: what follows comes again."""
    return batches[: max((i + 1 for i, batch in enumerate(batches) if batch.whole), default=0)]


@pytest.mark.parametrize("start", ["earliest", "snapshot"])
def test_bookmarkable(bank: Bank, start: str) -> None:
    """How far a stream says it has come, so far it has everything; and it says so where nothing matches."""
    told, fold = 0, Fold()
    for batch in watched(bank, start, where="n >= 250"):
        fold.add([batch] if not batch.progress else [])
        if batch.progress and lsn_of(batch) > 0:
            told += 1
            assert fold.rows == bank.state(lsn_of(batch), 250)
    assert told
    for _ in range(10):
        bank.transfer()
    stream = watch(bank, "earliest", where="n > 100000")
    while lsn_of(batch := next(stream)) < bank.newest:
        assert batch.progress
    batch.ack()
    stream.close()
    (held,) = bank.served.lake.subscriptions()
    assert held.behind == 0


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    commits=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(0, 2))), min_size=1, max_size=6),
        min_size=1,
        max_size=8,
    ),
    split=st.integers(1, 8),
)
def test_for_every_prefix_the_fold_of_the_changelog_is_the_table(
    difference_table: Served, commits: list[list[tuple[int, int | None]]], split: int
) -> None:
    """R20: each image is the last one of its key, +I only where nothing is, at every commit."""
    lake = difference_table.lake
    table = lake.create_table(f"d.t{len(lake.tables())}", SCHEMA, primary_key=["id"], buckets=2)
    fold, start, state = Fold(), "earliest", dict[int, int]()
    for i, changes in enumerate(commits):
        with lake.commit() as commit:
            for key, n in changes:
                if n is None:
                    commit.delete(table.name, [{"id": key}])
                    state.pop(key, None)
                else:
                    commit.upsert(table.name, [{"id": key, "n": n}])
                    state[key] = n
        if i == split:
            difference_table.server.upkeep.checkpoint()
        stream = table.changes(start, until="now", before_images=True)
        assert {key: row["n"] for key, row in fold.add(stream).rows.items()} == state
        start = stream.token or start


@pytest.fixture(scope="module")
def difference_table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("difference"))
    yield served
    served.close()
