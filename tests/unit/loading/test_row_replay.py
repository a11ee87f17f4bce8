"""Replay of rows that broke a contract: exactly once, by the contract of today, with what the rows kept."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.cli.main import run_command
from lakestore.client.commit import Commit
from lakestore.errors import Fenced, Invalid
from lakestore.evolution import SetContract
from lakestore.kafka.bridge.dead_letters import ReplayCounts, Selection
from lakestore.loading.row_replay import RowReplay
from lakestore_server.main import Server
from tests.support.contract_texts import column, document

ORDERS, DLQ = "shop.orders", "shop.orders__dlq"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("n", pa.int64()),
        ("price", pa.decimal128(12, 2)),
        ("ratio", pa.float64()),
        ("word", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)
FULL = {
    "price": Decimal("1.20"), "ratio": 0.1, "word": 'ä "quoted" \n', "raw": b"\x00\xff", "day": dt.date(2026, 1, 2),
    "at": dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC), "tags": ["a", ""],
}  # fmt: skip


def rules(least: int, action: str = "dead_letter") -> SetContract:
    columns = (column("id", primaryKey=True, required=True), column("n", logicalTypeOptions={"minimum": least}))
    return SetContract(document(columns, action), "orders")


def orders(lake: ls.Lake, **options: Any) -> ls.Table:
    table = lake.create_table(ORDERS, SCHEMA, **{"primary_key": ["id"], "merge": "first_row", **options})
    return table.alter(rules(0))


def replay(lake: ls.Lake, selection: Selection | None = None, **said: Any) -> ReplayCounts:
    return RowReplay(lake, ORDERS, **said).run(selection or Selection())


def codes(lake: ls.Lake) -> list[str]:
    return sorted(row["code"] for row in lake.table(DLQ).scan().to_arrow().to_pylist())


def test_rows_come_back_as_they_were_and_each_letter_goes_with_its_row(lake: ls.Lake) -> None:
    table = orders(lake)
    sent: list[dict[str, Any]] = [{"id": number, "n": -number, **(FULL if number % 2 else {})} for number in range(5)]
    assert table.upsert(sent).result.dead_letters == 4
    assert replay(lake).failed == 4
    assert codes(lake) == ["n.minimum"] * 4
    table.alter(rules(-3))
    counts = replay(lake)
    assert (counts.applied, counts.failed) == (3, 1)
    assert "minimum -3 of column 'n'" in counts.examples["n.minimum"]
    blank = dict.fromkeys(SCHEMA.names)
    assert lake.table(ORDERS).scan().to_arrow().sort_by("id").to_pylist() == [
        {**blank, **row} for row in sent if row["id"] < 4
    ]
    [left] = lake.table(DLQ).scan().to_arrow().to_pylist()
    assert "minimum -3" in left["sentence"], "the reason is the one of today"
    assert replay(lake).applied == 0


def test_a_lost_answer_replays_nothing_twice(lake: ls.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = orders(lake, primary_key=[], merge="upsert")
    table.append([{"id": number, "n": -1} for number in range(10)])
    table.alter(rules(-5))
    send, calls = Commit.send, []

    def lost(self: Commit, commit: Any = None) -> None:
        send(self, commit)
        calls.append(1)
        raise Fenced("the answer is lost")

    monkeypatch.setattr(Commit, "send", lost)
    with pytest.raises(Fenced):
        replay(lake)
    monkeypatch.setattr(Commit, "send", send)
    assert replay(lake).applied == 0
    assert sorted(row["id"] for row in lake.table(ORDERS).scan().to_arrow().to_pylist()) == list(range(10))
    assert calls == [1]


def test_a_table_whose_later_rows_would_be_replaced_wants_a_word(lake: ls.Lake) -> None:
    table = orders(lake, merge="upsert")
    table.upsert([{"id": 1, "n": -1, "word": "old"}])
    table.upsert([{"id": 1, "n": 1, "word": "new"}])
    table.alter(rules(-5))
    with pytest.raises(Invalid, match="say --overwrite"):
        replay(lake)
    assert replay(lake, overwrite=True).applied == 1
    assert table.lookup([{"id": 1}]).to_pylist()[0]["word"] == "old"


def test_columns_that_a_row_did_not_bring_or_kept_stay_as_they_are(lake: ls.Lake) -> None:
    table = orders(lake, merge="partial")
    table.upsert([{"id": 1, "n": 1, "word": "kept"}])
    table.upsert([{"id": 1, "n": -1}, {"id": 2, "n": -2, "word": None}])
    table.alter(rules(-5))
    assert replay(lake, overwrite=True).applied == 2
    assert [(row["n"], row["word"]) for row in table.scan().to_arrow().sort_by("id").to_pylist()] == [
        (-1, "kept"),
        (-2, None),
    ]
    lake.drop_table(ORDERS)
    lake.drop_table(DLQ)
    table = orders(lake, merge="upsert")
    table.upsert([{"id": 1, "n": 1, "word": "kept"}, {"id": 2, "n": 1, "word": "gone"}])
    keep = {"word": [True, False]}
    assert table.upsert([{"id": 1, "n": -1}, {"id": 2, "n": -1}], keep=keep).result.dead_letters == 2
    table.alter(rules(-5))
    assert replay(lake, overwrite=True).applied == 2
    assert [row["word"] for row in table.scan().to_arrow().sort_by("id").to_pylist()] == ["kept", None]


def test_rows_of_columns_that_are_gone_stay_dead_letters(lake: ls.Lake) -> None:
    table = orders(lake)
    table.upsert([{"id": 1, "n": -1, "word": "a"}])
    table = table.alter(rules(-5)).alter(ls.evolution.DropColumn("word"))
    counts = replay(lake)
    assert (counts.applied, counts.failed) == (0, 1)
    assert "word" in counts.examples["convert"]
    assert len(codes(lake)) == 1


def test_more_letters_than_a_commit_holds_are_replayed_in_order(lake: ls.Lake) -> None:
    table = orders(lake, primary_key=[], merge="upsert")
    for start in range(0, 6_000, 1_500):
        table.append([{"id": number, "n": -1} for number in range(start, start + 1_500)])
    table.alter(rules(-5))
    seen: list[int] = []
    counts = replay(lake, progress=lambda counts: seen.append(counts.letters))
    assert (counts.applied, counts.failed, codes(lake)) == (6_000, 0, [])
    assert len(seen) > 1
    assert sorted(table.scan(["id"]).to_arrow().column("id").to_pylist()) == list(range(6_000))


def test_the_commands_list_show_replay_and_drop_them(
    lake: ls.Lake, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    table = orders(lake)
    table.upsert([{"id": number, "n": -number} for number in range(6)])
    table.alter(rules(-3))

    def said(*words: str, code: int = 0) -> str:
        assert run_command(["dlq", *words, "--server", str(server.about["grpc"])]) == code
        return capsys.readouterr().out

    assert "n.minimum" in said("list")
    assert "commit, partition 0, offset 1: contract n.minimum at n" in said("show", ORDERS)
    assert "2 applied, 0 superseded, 0 left out, 0 failed" in said("replay", ORDERS, "--where", "kafka_offset < 3")
    assert "1 applied, 0 superseded, 0 left out, 2 failed" in said("replay", ORDERS, "--stage", "contract", code=1)
    assert "2 dead letters dropped" in said("drop", ORDERS, "--code", "n.minimum")


def test_a_delete_that_became_a_letter_is_replayed_as_a_delete(lake: ls.Lake) -> None:
    table = lake.create_table(ORDERS, SCHEMA, primary_key=["id"], deletes="dead_letter")
    table.upsert([{"id": 1, "n": 1}, {"id": 2, "n": 2}])
    table.delete([{"id": 1}])
    assert sorted(table.scan(["id"]).to_arrow().column("id").to_pylist()) == [1, 2]
    assert (replay(lake, overwrite=True).failed, codes(lake)) == (1, ["tombstone"])
    table.alter(deletes="allow")
    assert replay(lake, overwrite=True).applied == 1
    assert table.scan(["id"]).to_arrow().column("id").to_pylist() == [2]
    assert codes(lake) == []


def test_a_delete_of_an_older_version_removes_no_newer_row(lake: ls.Lake) -> None:
    table = lake.create_table(ORDERS, SCHEMA, primary_key=["id"], merge="versioned(n)", deletes="dead_letter")
    table.upsert([{"id": 1, "n": 2}, {"id": 2, "n": 2}])
    table.delete([{"id": 1, "n": 3}, {"id": 2, "n": 3}])
    table.upsert([{"id": 1, "n": 5}])
    table.alter(deletes="allow")
    assert replay(lake).applied == 2
    assert table.scan(["id", "n"]).to_arrow().to_pylist() == [{"id": 1, "n": 5}]


def test_a_delete_that_empties_columns_keeps_the_row(lake: ls.Lake) -> None:
    schema = SCHEMA.append(pa.field("note", pa.string()))
    table = lake.create_table(ORDERS, schema, primary_key=["id"], merge="partial", deletes="dead_letter")
    table.upsert([{"id": 1, "n": 1, "note": "a"}, {"id": 2, "n": 2, "note": "b"}, {"id": 3, "n": 3, "note": "c"}])
    table.delete([{"id": 1, "note": None}])
    table.delete([{"id": 2}])
    table.alter(deletes="allow")
    assert replay(lake, overwrite=True).applied == 2
    rows = table.scan(["id", "n", "note"]).to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": 1, "n": 1, "note": None}, {"id": 3, "n": 3, "note": "c"}]


def test_an_insert_that_became_a_letter_replaces_no_row(lake: ls.Lake) -> None:
    table = orders(lake, merge="upsert")
    with lake.producer("p").commit() as commit:
        commit.insert_if_absent(ORDERS, [{"id": 1, "n": -1}, {"id": 2, "n": -2}])
    table.upsert([{"id": 1, "n": 7}, {"id": 3, "n": -3}])
    assert codes(lake) == ["n.minimum"] * 3
    table.alter(rules(-5))
    assert (replay(lake, overwrite=True).applied, codes(lake)) == (3, [])
    found = table.scan(["id", "n"]).to_arrow().sort_by("id").to_pylist()
    assert found == [{"id": 1, "n": 7}, {"id": 2, "n": -2}, {"id": 3, "n": -3}]


def test_letters_of_one_time_come_back_in_the_order_of_their_requests(lake: ls.Lake) -> None:
    table = orders(lake, merge="upsert")
    table.upsert([{"id": 1, "n": -1}])
    table.upsert([{"id": 1, "n": -2}])
    stored = lake.table(DLQ).scan().to_arrow().sort_by("value").to_pylist()
    lake.table(DLQ).delete([{name: row[name] for name in ("kafka_source", "kafka_offset")} for row in stored])
    for row, sequence in zip(stored, (9, 10), strict=True):
        row["kafka_source"] = f"commit/p/0/{sequence}/0"
    lake.table(DLQ).upsert(stored)
    table.alter(rules(-5))
    assert replay(lake, overwrite=True).applied == 2
    assert table.scan(["id", "n"]).to_arrow().to_pylist() == [{"id": 1, "n": -2}]


def test_a_late_row_gives_way_when_it_is_replayed_too(lake: ls.Lake) -> None:
    table = orders(lake, merge="versioned(n, within word)")
    due = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    rows = [{"id": 1, "n": -1, "word": "a"}, {"id": 2, "n": -1, "word": "a"}, {"id": 3, "n": -1, "word": "a"}]
    with lake.commit() as commit:
        commit.upsert(ORDERS, rows, as_of=[due, None, due])
    table.upsert([{"id": 1, "n": 7, "word": "b"}, {"id": 2, "n": 7, "word": "b"}])
    assert codes(lake) == ["n.minimum"] * 3
    table.alter(rules(-5))
    assert (replay(lake).applied, codes(lake)) == (3, [])
    found = table.scan(["id", "word"]).to_arrow().sort_by("id").to_pylist()
    assert [row["word"] for row in found] == ["b", "a", "a"]
