"""Replay: exactly once whatever kills it, older records never win, failures stay with a new sentence."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakestore as ls
from lakestore.client.commit import Commit
from lakestore.errors import Fenced, Invalid
from lakestore.kafka.bridge import dead_letters, spec_file
from lakestore.kafka.bridge.assembly import Assembly
from lakestore.kafka.bridge.dead_letters import ReplayCounts, Selection
from lakestore.kafka.bridge.outcome import Reject, Stage
from lakestore.kafka.bridge.records import Records
from lakestore.kafka.bridge.replay import Replay
from lakestore.kafka.bridge.spec import BridgeSpec, TopicSpec
from lakestore.model.dead_letter_table import definition as dead_letter_table

ORDERS = "d.orders"
ALL = Selection()


def bridge(text: str) -> BridgeSpec:
    return spec_file.parse(f"name: b\nsource: {{bootstrap: 'h:1'}}\ntopics: [{{topic: t, {text}}}]", "bridge.yaml")


KEYED_COLUMNS = "primary_key: [id], columns: [{name: id, type: int64}, {name: v, type: int64}]"
KEYED = bridge(f"table: d.orders, {KEYED_COLUMNS}")
LOG = bridge("table: d.orders, columns: [{name: id, type: int64, required: true}, {name: v, type: int64}]")


def records(values: Sequence[Any], *, partition: int = 0, first: int = 0) -> Records:
    count = len(values)
    raw = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    return Records(
        "t",
        "/I/D+==",
        np.full(count, partition),
        np.arange(first, first + count),
        np.full(count, 1_790_000_000_000),
        pa.nulls(count, pa.binary()),
        pa.array(raw, pa.binary()),
    )


def letter(lake: ls.Lake, found: Records, most: int = 1 << 20, bridge: str = "b") -> None:
    """Store records as dead letters."""
    name = dead_letters.table_of(ORDERS)
    if name not in {table.name for table in lake.tables()}:
        lake.create(dead_letter_table(ORDERS))
    rejects = [Reject(row, Stage.DECODE, "bad-json", "was wrong") for row in range(len(found))]
    lake.table(name).upsert(dead_letters.rows_of(found, rejects, bridge, most))


def write(lake: ls.Lake, spec: BridgeSpec, found: Records) -> None:
    """Records as a bridge writes them."""
    [rows] = Assembly(spec, lake).pipeline(spec.topics[0], "t").process(found).tables
    lake.table(ORDERS).upsert(rows.batch)


Values = Mapping[tuple[int, int], bytes | None]


class Now:
    """The topics as they are now: values that are still there, and the sources that have the topic."""

    def __init__(self, whole: Callable[..., Values], sources: Sequence[str] = ()) -> None:
        self._sources, self.whole = sources, whole

    def has(self, topic: TopicSpec, name: str, identity: str) -> bool:
        return topic.source in self._sources


def nothing(*_: Any) -> Values:
    return {}


def replay(lake: ls.Lake, spec: BridgeSpec, selection: Selection = ALL, **said: Any) -> ReplayCounts:
    now = Now(said.pop("whole", nothing), said.pop("sources", ()))
    return Replay(lake, spec, ORDERS, Assembly(spec, lake).pipeline, now, **said).run(selection)


def rows(lake: ls.Lake) -> list[tuple[int, int | None]]:
    found = lake.table(ORDERS).scan(["id", "v"]).to_arrow().to_pylist()
    return sorted((row["id"], row["v"]) for row in found)


def left(lake: ls.Lake) -> list[tuple[int, str]]:
    found = lake.table(dead_letters.table_of(ORDERS)).scan(["kafka_offset", "code"]).to_arrow().to_pylist()
    return sorted((row["kafka_offset"], row["code"]) for row in found)


def test_letters_of_a_topic_go_by_its_own_entry_though_a_pattern_before_it_fits_too(lake: ls.Lake) -> None:
    columns = "columns: [{name: id, type: int64}, {name: v, type: int64, from: %s}]"
    entries = (
        f"{{pattern: '.*', table: 'd.{{topic}}', primary_key: [id], {columns % 'value.other'}}}",
        f"{{topic: t, table: d.orders, primary_key: [id], {columns % 'value.v'}}}",
    )
    both = spec_file.parse(f"name: b\nsource: {{bootstrap: 'h:1'}}\ntopics: [{', '.join(entries)}]", "bridge.yaml")
    letter(lake, records([{"id": 1, "v": 1, "other": 2}]))
    assert (replay(lake, both).applied, rows(lake)) == (1, [(1, 1)])
    assert both.entry("u") is both.topics[0]
    assert both.entry("__consumer_offsets") is None


def test_a_letter_of_a_topic_that_two_sources_have_goes_by_the_source_whose_topic_it_was(lake: ls.Lake) -> None:
    entry = (
        "{topic: t, source: %s, table: d.orders, columns: [{name: id, type: int64}, {name: v, type: int64, from: %s}]}"
    )
    entries = ", ".join([entry % ("east", "value.v"), entry % ("west", "value.other")])
    text = f"name: b\nsources: {{east: {{bootstrap: 'h:1'}}, west: {{bootstrap: 'h:2'}}}}\ntopics: [{entries}]"
    both = spec_file.parse(text, "bridge.yaml")
    letter(lake, records([{"id": 1, "v": 1, "other": 2}]))
    with pytest.raises(Invalid, match="none of the 2 sources that may have the topic"):
        replay(lake, both)
    assert (replay(lake, both, sources=["west"]).applied, rows(lake)) == (1, [(1, 2)])


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ls.Lake]:
    with ls.open(tmp_path) as opened:
        yield opened


def test_a_letter_that_fails_for_another_table_is_a_letter_of_that_one(lake: ls.Lake) -> None:
    letter(lake, records([{"kind": "a", "id": 1}, {"kind": "b"}, {"kind": "b", "id": 2}]))
    tables = "{a: {table: d.orders, columns: C}, b: {table: d.others, columns: C}}".replace(
        "C", "[{name: id, type: int64, required: true}]"
    )
    spec = bridge(f"route: {{by: value.kind, tables: {tables}}}")
    found = replay(lake, spec)
    assert (found.applied, found.failed) == (2, 1)
    assert left(lake) == []
    assert lake.table("d.others").scan(["id"]).to_arrow().to_pylist() == [{"id": 2}]
    [other] = lake.table("d.others__dlq").scan(["topic", "kafka_offset", "code"]).to_arrow().to_pylist()
    assert other == {"topic": "t", "kafka_offset": 1, "code": "missing-value"}


def test_letters_become_rows_and_those_that_fail_stay_with_a_new_sentence(lake: ls.Lake) -> None:
    letter(lake, records([{"id": 1, "v": 1}, {"id": None}, b"{", {"id": 2, "v": 2}]))
    counts = replay(lake, KEYED)
    assert (counts.applied, counts.superseded, counts.left_out, counts.failed) == (2, 0, 0, 2)
    assert rows(lake) == [(1, 1), (2, 2)]
    assert left(lake) == [(1, "null-key"), (2, "bad-json")]
    assert set(counts.examples) == {"null-key", "bad-json"}
    [one] = dead_letters.sample_rows(lake, ORDERS, Selection(codes=("null-key",)), 9).to_pylist()
    assert "a key has no nulls" in one["sentence"]
    assert (one["stage"], one["path"], one["value"]) == ("constraint", "value.id", b'{"id": null}')
    token = lake.snapshot().token
    assert replay(lake, KEYED).failed == 2
    assert list(lake.changes([ORDERS, dead_letters.table_of(ORDERS)], token, until="now")) == [], "nothing is rewritten"


def test_an_older_record_never_replaces_what_a_later_one_of_its_key_wrote(lake: ls.Lake) -> None:
    letter(lake, records([{"id": 1, "v": 10}, {"id": 2, "v": 20}], first=5))
    letter(lake, records([{"id": 3, "v": 30}], partition=1, first=5))
    write(lake, KEYED, records([{"id": 1, "v": 11}], first=9))
    write(lake, KEYED, records([{"id": 3, "v": 31}], partition=0, first=1))
    counts = replay(lake, KEYED)
    assert rows(lake) == [(1, 11), (2, 20), (3, 31)], "the key of another partition came later than the letter"
    assert (counts.applied, counts.superseded) == (1, 2)
    assert left(lake) == []


def events(pairs: Sequence[tuple[Any, Any]], *, partition: int = 0, first: int = 0) -> Records:
    """Keys and values as change events."""
    keys = pa.array([json.dumps(key).encode() for key, _ in pairs], pa.binary())
    return replace(records([value for _, value in pairs], partition=partition, first=first), keys=keys)


@pytest.mark.parametrize("partition", [0, 1])
def test_a_create_that_is_replayed_behind_its_delete_brings_no_row_back(lake: ls.Lake, partition: int) -> None:
    spec = bridge("table: d.orders, format: debezium-json, " + KEYED_COLUMNS)
    created = ({"id": 1}, {"op": "c", "after": {"id": 1, "v": 10}})
    letter(lake, events([created], first=3))
    deleted = events([({"id": 1}, {"op": "d", "before": {"id": 1}})], partition=partition, first=5)
    [rows_] = Assembly(spec, lake).pipeline(spec.topics[0], "t").process(deleted).tables
    with lake.commit() as commit:
        commit.delete(ORDERS, rows_.batch)
    assert commit.results[0].not_found == 1
    counts = replay(lake, spec)
    assert (counts.applied, counts.superseded, rows(lake), left(lake)) == (0, 1, [], [])


def test_tables_without_an_order_are_refused_unless_told(lake: ls.Lake) -> None:
    columns = "columns: [{name: id, type: int64}, {name: v, type: int64}]"
    spec = bridge(f"table: d.orders, primary_key: [id], merge: upsert, {columns}")
    letter(lake, records([{"id": 1, "v": 10}]))
    with pytest.raises(Invalid, match=r"keeps no source positions and no versions.*--overwrite"):
        replay(lake, spec)
    assert left(lake) == [(0, "bad-json")]
    assert replay(lake, spec, overwrite=True).applied == 1


def test_only_letters_of_this_bridge_and_of_the_selection_are_replayed(lake: ls.Lake) -> None:
    letter(lake, records([{"id": 1}, {"id": 2}]))
    letter(lake, records([{"id": 3}], first=7), bridge="another")
    assert replay(lake, LOG, Selection(where="kafka_offset = 1")).applied == 1
    assert left(lake) == [(0, "bad-json"), (7, "bad-json")]
    assert replay(lake, LOG, Selection(codes=("nothing",))).letters == 0
    other = spec_file.parse("name: b\nsource: {bootstrap: 'h:1'}\ntopics: [{topic: u, table: d.u}]", "bridge.yaml")
    with pytest.raises(Invalid, match="says nothing about topic 't'"):
        replay(lake, other)


def test_a_letter_that_the_server_refuses_stays_alone(lake: ls.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.create_table(ORDERS, pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())]))
    letter(lake, records([{"id": each, "v": each} for each in range(8)]))
    write_rows = Replay._write

    def refusing(self: Replay, commit: Any, found: Any, stored: Any) -> None:
        if 5 in found.batch.column("id").to_pylist():
            raise Invalid("the server refuses 5")
        write_rows(self, commit, found, stored)

    monkeypatch.setattr(Replay, "_write", refusing)
    counts = replay(lake, LOG)
    assert (counts.applied, counts.failed) == (7, 1)
    assert left(lake) == [(5, "refused")]


def test_values_that_were_cut_come_from_the_topic_again_or_stay(lake: ls.Lake) -> None:
    found = records([{"id": 1, "v": 10}, {"id": 2, "v": 20}, {"id": 3, "v": 30}])
    letter(lake, found, most=5)
    asked: list[Any] = []

    def whole(topic: TopicSpec, name: str, identity: str, offsets: Mapping[int, Sequence[int]]) -> Any:
        asked.append((topic.topic, name, identity, dict(offsets)))
        return {(0, 0): found.values[0].as_py(), (0, 2): found.values[2].as_py()}

    counts = replay(lake, KEYED, whole=whole)
    assert asked == [("t", "t", "/I/D+==", {0: [0, 1, 2]})]
    assert rows(lake) == [(1, 10), (3, 30)]
    assert (counts.applied, counts.failed) == (2, 1)
    assert left(lake) == [(1, "value-gone")]


class Killed(Exception):
    """The process is gone."""


@given(st.data())
@settings(max_examples=5, deadline=None)
def test_kills_and_rivals_leave_each_letter_applied_once(data: st.DataObject) -> None:
    """Into a log table, where a row that comes twice is seen: killed behind a chunk or a commit, or fenced."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder, ls.open(folder) as lake:
        patch.setattr(dead_letters, "CHUNK_ROWS", data.draw(st.integers(1, 7)))
        letter(lake, records([{"id": each, "v": each} if each % 5 else b"{" for each in range(20)]))
        for _ in range(data.draw(st.integers(0, 4))):
            _killed(lake, data.draw(st.integers(0, 4)), data.draw(st.sampled_from(["sent", "between", "fenced"])))
        counts = replay(lake, LOG)
        assert counts.failed == 4
        assert rows(lake) == [(each, each) for each in range(20) if each % 5]
        assert len(left(lake)) == 4


def _killed(lake: ls.Lake, commits: int, how: str) -> None:
    """A replay that is killed behind a chunk or as soon as a commit is made, or that a rival fences."""
    made = 0

    def progress(_: ReplayCounts) -> None:
        nonlocal made
        made += 1
        if made > commits and how == "between":
            raise Killed

    class Stopping(Replay):
        def _write(self, commit: Any, found: Any, stored: Any) -> None:
            if made >= commits and how == "fenced":
                lake.registers([dead_letters.register_of(dead_letters.table_of(ORDERS))])
            super()._write(commit, found, stored)

    send = Commit.send

    def sent(self: Commit, *arguments: Any) -> None:
        send(self, *arguments)
        if made >= commits and how == "sent":
            raise Killed

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed, Fenced):
        patch.setattr(Commit, "send", sent)
        Stopping(lake, LOG, ORDERS, Assembly(LOG, lake).pipeline, Now(nothing), progress=progress).run(Selection())
