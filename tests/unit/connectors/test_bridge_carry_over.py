"""Values that a key change does not send: carried over from the old key's row, however events lie in commits."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakestore.kafka.bridge.carry_over import carry_over
from lakestore.kafka.bridge.outcome import Op, TableRows
from lakestore.kafka.bridge.spec import TableSpec

KEY = ("a", "b")
SCHEMA = pa.schema(
    [
        ("a", pa.int64()), ("b", pa.string()), ("n", pa.int64()), ("big", pa.string()),
        ("words", pa.list_(pa.string())), ("kafka_source", pa.string()), ("kafka_offset", pa.int64()),
    ]
)  # fmt: skip
LARGE = ("big", "words")
Key = tuple[Any, ...]
Row = dict[str, Any]


@dataclass
class Event:
    """A row of a change event: a put, or a delete without a row."""

    key: Key
    row: Row | None
    kept: frozenset[str] = frozenset()
    pair: int = -1


@dataclass
class Lake:
    """A table that applies commits as the server does: a kept column has the value of the row of its own key."""

    rows: dict[Key, Row] = field(default_factory=dict)
    source: str = "t/id/0"

    def live(self, keys: pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
        found = [self.rows[key] for row in keys.to_pylist() if (key := (row["a"], row["b"])) in self.rows]
        return pa.Table.from_pylist(found, SCHEMA).select(list(columns))

    def commit(self, rows: TableRows) -> list[Key]:
        """Apply the rows; return the keys that had nothing to keep."""
        refused = []
        flags = {name: mask.to_pylist() for name, mask in rows.kept.items()}
        for number, row in enumerate(rows.batch.to_pylist()):
            key = (row["a"], row["b"])
            if rows.op[number] == Op.DELETE:
                self.rows.pop(key, None)
                continue
            keeps = [name for name in flags if flags[name][number]]
            if keeps and key not in self.rows:
                refused.append(key)
                continue
            self.rows[key] = row | {name: self.rows[key][name] for name in keeps}
        return refused


def _rows(events: Sequence[Event], offset: int, source: str = "t/id/0") -> TableRows:
    listed = []
    for number, event in enumerate(events):
        shown = {name: None if name in event.kept else value for name, value in (event.row or {}).items()}
        place = {"kafka_source": source, "kafka_offset": offset + number}
        listed.append(dict.fromkeys(SCHEMA.names) | shown | dict(zip(KEY, event.key, strict=True)) | place)
    kept = {name: pa.array([name in event.kept for event in events]) for name in LARGE}
    kept = {name: mask for name, mask in kept.items() if mask.true_count}
    op = np.array([Op.PUT if event.row is not None else Op.DELETE for event in events], np.int8)
    atomic = np.array([event.pair for event in events])
    return TableRows(
        "t", TableSpec("t", KEY), pa.RecordBatch.from_pylist(listed, SCHEMA), np.arange(len(events)), op, kept,
        atomic if (atomic >= 0).any() else None,
    )  # fmt: skip


class Table:
    """A source table, and the events of its changes as PostgreSQL's connector writes them."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.rows, self.pairs = chance, dict[Key, Row](), 0

    def key(self) -> Key:
        return self.chance.randrange(4), self.chance.choice("xy")

    def events(self) -> Iterator[Event]:
        key = self.key()
        row = self.rows.get(key)
        n = self.chance.randrange(10**6)
        if row is None:
            self.rows[key] = {"n": n, "big": f"big {n}", "words": [f"w{n}", None]}
            yield Event(key, self.rows[key])
            return
        sent = {} if self.chance.random() < 0.7 else {self.chance.choice(LARGE): None}
        row = row | {"n": n} | sent
        kept = frozenset(LARGE) - set(sent)
        kind = self.chance.choice(("update", "update", "delete", "move", "move", "move"))
        if kind == "update":
            self.rows[key] = row
            yield Event(key, row, kept)
        elif kind == "delete":
            del self.rows[key]
            yield Event(key, None)
        elif (to := self.key()) not in self.rows:
            del self.rows[key]
            self.rows[to] = row
            self.pairs += 1
            yield Event(key, None, pair=self.pairs)
            yield Event(to, row, kept, self.pairs)


def _batches(events: Sequence[Event], chance: random.Random) -> Iterator[tuple[int, Sequence[Event]]]:
    """Cuts of the events that part no pair, with the offset of the first one of each."""
    start = 0
    while start < len(events):
        end = min(start + chance.randrange(1, 12), len(events))
        while end < len(events) and events[end].pair >= 0 and events[end].pair == events[end - 1].pair:
            end += 1
        yield start, events[start:end]
        start = end


def _content(lake: Lake) -> dict[Key, Row]:
    return {key: {name: row[name] for name in ("n", *LARGE)} for key, row in lake.rows.items()}


@pytest.mark.parametrize("seed", range(20))
def test_chains_of_key_changes_end_as_the_source(seed: int) -> None:
    chance = random.Random(seed)
    table, lake, offset = Table(chance), Lake(), 0
    for _ in range(60):
        events = [event for _ in range(chance.randrange(1, 15)) for event in table.events()]
        for start, some in _batches(events, chance):
            assert lake.commit(carry_over(_rows(some, offset + start), KEY, lake.live)) == []
        offset += len(events)
        assert _content(lake) == table.rows


def test_a_key_change_that_comes_again_keeps_the_value_of_its_row() -> None:
    lake, first = Lake(), {"n": 1, "big": "first", "words": []}
    moved = [Event((1, "x"), None, pair=0), Event((2, "x"), first, frozenset({"big"}), 0)]
    second = Event((1, "x"), {"n": 2, "big": "second", "words": []})
    for offset, events in enumerate(([Event((1, "x"), first)], moved, [second], [*moved, second])):
        assert lake.commit(carry_over(_rows(events, 10 * offset), KEY, lake.live)) == []
    assert {key: row["big"] for key, row in lake.rows.items()} == {(1, "x"): "second", (2, "x"): "first"}


def test_a_younger_row_under_the_old_key_is_another_row() -> None:
    lake = Lake()
    lake.commit(_rows([Event((1, "x"), {"n": 2, "big": "younger", "words": None})], offset=90))
    late = [Event((1, "x"), None, pair=0), Event((2, "x"), {"n": 1, "big": None, "words": []}, frozenset({"big"}), 0)]
    assert carry_over(_rows(late, offset=10), KEY, lake.live).kept["big"].to_pylist() == [False, True]
    filled = carry_over(_rows(late, offset=100), KEY, lake.live)
    assert filled.batch["big"].to_pylist() == [None, "younger"]
    assert not filled.kept["big"].true_count


def test_rows_without_a_key_change_ask_nothing_of_the_lake() -> None:
    def never(keys: pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
        pytest.fail(f"a look-up of {columns} of {keys}")

    rows = _rows([Event((1, "x"), {"n": 1, "big": None, "words": None}, frozenset({"big"}))], 0)
    assert carry_over(rows, KEY, never) is rows
