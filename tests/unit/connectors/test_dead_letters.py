"""Dead letters that are there: counted, selected, shown, dropped; from the command line as well."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.cli import dlq
from lakestore.cli.main import run_command
from lakestore.errors import Fenced, Invalid, NotFound
from lakestore.kafka.bridge import dead_letters
from lakestore.kafka.bridge.dead_letters import RemovalLease, Selection
from lakestore.model.dead_letter_table import definition as dead_letter_table

WHEN = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)


def letter(offset: int, code: str = "bad-json", **said: Any) -> dict[str, Any]:
    row = {
        "kafka_source": "orders/id/0",
        "kafka_offset": offset,
        "topic": "orders",
        "partition": 0,
        "timestamp": WHEN,
        "key": b"k",
        "value": b"{",
        "headers": [{"name": "h", "value": b"v"}],
        "value_bytes": 1,
        "bridge": "shop",
        "stage": "decode",
        "code": code,
        "sentence": f"no JSON at offset {offset}",
        "path": None,
    }
    return row | said


def put(lake: ls.Lake, rows: list[dict[str, Any]], table: str = "shop.orders") -> None:
    lake.create(dead_letter_table(table))
    lake.table(f"{table}__dlq").upsert(pa.Table.from_pylist(rows, dead_letters.SCHEMA))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ls.Lake]:
    with ls.open(tmp_path) as opened:
        yield opened


def offsets(lake: ls.Lake) -> list[int]:
    return sorted(lake.table("shop.orders__dlq").scan(["kafka_offset"]).to_arrow()[0].to_pylist())


def test_letters_are_counted_by_table_stage_and_code(lake: ls.Lake) -> None:
    put(lake, [letter(0), letter(1), letter(2, "it's", stage="convert")])
    put(lake, [letter(0)], "shop.refunds")
    lake.create_table("shop.other__dlq", pa.schema([("a", pa.int64())]))
    found = [(each.table, each.stage, each.code, each.letters) for each in dead_letters.count_by_code(lake)]
    assert found == [
        ("shop.orders", "decode", "bad-json", 2),
        ("shop.orders", "convert", "it's", 1),
        ("shop.refunds", "decode", "bad-json", 1),
    ]
    assert [each.letters for each in dead_letters.count_by_code(lake, "shop.refunds__dlq")] == [1]
    with pytest.raises(NotFound, match="has no dead letters"):
        dead_letters.count_by_code(lake, "shop.nothing")
    with pytest.raises(Invalid, match="holds no dead letters"):
        dead_letters.count_by_code(lake, "shop.other")


def test_a_selection_shows_and_drops_what_it_says(lake: ls.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "CHUNK_ROWS", 3)
    put(lake, [letter(each, "it's" if each % 2 else "bad-json") for each in range(20)])
    some = Selection(codes=("it's",), where="kafka_offset >= 5 -- and no more")
    assert dead_letters.sample_rows(lake, "shop.orders", some, 3)["kafka_offset"].to_pylist() == [5, 7, 9]
    assert dead_letters.drop(lake, "shop.orders", some) == 8
    assert offsets(lake) == [0, 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 18]
    with pytest.raises(Invalid, match="no column 'nosuch'"):
        dead_letters.drop(lake, "shop.orders", Selection(where="nosuch = 1"))
    assert dead_letters.drop(lake, "shop.orders", Selection()) == 12
    assert offsets(lake) == []


def test_who_takes_letters_away_fences_whoever_did_before(lake: ls.Lake) -> None:
    put(lake, [letter(0), letter(1)])
    with RemovalLease(lake, "shop.orders") as first:
        assert dead_letters.drop(lake, "shop.orders", Selection(where="kafka_offset = 0")) == 1
        with pytest.raises(Fenced), first.registers.commit(first.next()) as commit:
            commit.delete(first.letters, pa.table({"kafka_source": ["orders/id/0"], "kafka_offset": [1]}))
    assert offsets(lake) == [1]


def test_the_commands_tell_the_same(
    lake: ls.Lake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dlq, "open_lake", lambda server: lake)
    monkeypatch.setattr(lake, "close", lambda: None)

    def said(*words: str, code: int = 0) -> str:
        assert run_command(["dlq", *words]) == code
        out = capsys.readouterr()
        return out.err if code else out.out

    assert said("list") == "no dead letters\n"
    put(lake, [letter(0), letter(1, value=b"\xff" * 500, value_bytes=9_000, path="value.a"), letter(2, value=None)])
    [row] = json.loads(said("list", "--json"))
    assert (row["table"], row["code"], row["letters"]) == ("shop.orders", "bad-json", 3)
    text = said("show", "shop.orders")
    assert "orders, partition 0, offset 1: decode bad-json at value.a" in text
    assert "… (9,000 bytes)" in text
    assert "value  null" in text
    rows = json.loads(said("show", "shop.orders", "--json"))
    assert rows[0]["value"] == "{"
    assert rows[1]["value"] == {"hex": "ff" * 500}
    assert rows[0]["headers"] == [{"name": "h", "value": "v"}]
    assert "or say --all" in said("drop", "shop.orders", code=1)
    assert "1 dead letters dropped" in said("drop", "shop.orders", "--where", "kafka_offset = 2")
    assert json.loads(said("drop", "shop.orders", "--all", "--json")) == {"dropped": 2}
