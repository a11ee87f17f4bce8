"""Each row has the time that its contract chooses. No row gets the present time instead of a time that cannot be read,
and late rows do what the contract says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Invalid
from lakestore.evolution import SetContract, SetOptions
from tests.support.served import Served

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.string()), ("v", pa.string())])
DAY = timedelta(days=1)


def document(event: str, late: str = "") -> str:
    properties = [f"{{property: lakestore.eventTime, value: {{{event}}}}}"]
    properties += [f"{{property: lakestore.lateData, value: {{{late}}}}}"] if late else []
    return (
        "apiVersion: v3.2.0\nkind: DataContract\nid: orders\nversion: 1.0.0\nschema:\n  - name: orders\n"
        f"    properties: [{', '.join(f'{{name: {name}}}' for name in SCHEMA.names)}]\n"
        f"    customProperties: [{', '.join(properties)}]\n"
    )


EVENT = "from: event, column: at, unit: iso, keep: true"


def create(
    lake: ls.Lake, event: str = EVENT, late: str = "", *, by: str = "_event_time", key: bool = False, merge: str = ""
) -> ls.Table:
    options: dict[str, Any] = {"primary_key": ["id"], "merge": merge or "upsert"} if key else {}
    table = lake.create_table("shop.orders", SCHEMA, buckets=2, **options)
    lay = SetOptions(lake={"partition_by": [f"day({by})"]})
    table.alter(lay, SetContract(document(event, late), "orders"))
    return lake.table("shop.orders")


def row(number: int, at: datetime | str | None, v: str = "x") -> dict[str, Any]:
    return {"id": number, "at": at.isoformat() if isinstance(at, datetime) else at, "v": v}


def write(table: ls.Table, rows: Sequence[dict[str, Any]]) -> Any:
    return (table.upsert if table.definition.keyed else table.append)(pa.Table.from_pylist(list(rows), SCHEMA))


def ids(lake: ls.Lake, name: str = "shop.orders") -> list[int]:
    return sorted(lake.table(name).scan(["id"]).to_arrow()["id"].to_pylist())


def letters(lake: ls.Lake) -> list[dict[str, Any]]:
    if not any(table.name == "shop.orders__dlq" for table in lake.tables()):
        return []
    return sorted(lake.table("shop.orders__dlq").scan().to_arrow().to_pylist(), key=lambda each: each["kafka_offset"])


def now(served: Served) -> datetime:
    return datetime.fromtimestamp(served.engine.now_us() // 1_000_000, UTC)


def audit(lake: ls.Lake) -> list[tuple[str, int]]:
    rows = lake.sql("SELECT what FROM lakestore.audit WHERE action = 'late_rewrite' ORDER BY \"at\"").to_arrow()
    found = [json.loads(what) for what in rows["what"].to_pylist()]
    return sorted((each["partition"], each["rows"]) for each in found)


def test_all_times_stand_beside_the_row_whatever_a_program_sends(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table, moment = create(served.lake), now(served)
        old = moment - 3 * DAY
        sent = [row(1, old) | dict.fromkeys(("_event_time", "_broker_time", "_ingest_time"), moment - 9 * DAY)]
        table.append(pa.Table.from_pylist(sent))
        [stored] = table.scan().to_arrow().to_pylist()
        assert (stored["_event_time"], stored["_broker_time"]) == (old, None)
        assert moment <= stored["_ingest_time"] < moment + timedelta(seconds=1)
        with (
            served.lake.registers(["bridge/b/-/t/0"]) as registers,
            registers.commit({"bridge/b/-/t/0": "1"}) as commit,
        ):
            commit.append("shop.orders", pa.Table.from_pylist([row(2, old) | {"_broker_time": moment - DAY}]))
        [stored] = table.scan(where="id = 2").to_arrow().to_pylist()
        assert stored["_broker_time"] == moment - DAY
        served.checkpoint()
        served.restart()
        assert served.lake.table("shop.orders").scan(where="id = 2").to_arrow().to_pylist() == [stored]


def test_a_row_without_a_time_is_a_dead_letter_and_the_others_are_stored(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = create(served.lake)
        assert "shop.orders__dlq" in {each.name for each in served.lake.tables()}  # before the first bad row comes
        result = write(table, [row(1, now(served)), row(2, "gestern"), row(3, None), row(4, "2026-02-30T00:00:00Z")])
        assert (result.result.inserted, result.result.dead_letters) == (1, 3)
        assert ids(served.lake) == [1]
        found = letters(served.lake)
        assert [(each["kafka_offset"], each["code"], each["stage"]) for each in found] == [
            (1, "event_time", "contract"), (2, "event_time", "contract"), (3, "event_time", "contract")
        ]  # fmt: skip
        assert found[0]["sentence"] == "column 'at' holds 'gestern', which is no event time in iso"
        assert json.loads(found[0]["value"])["id"] == 2
        assert now(served).isoformat()[:10] not in json.dumps(json.loads(found[0]["value"])["at"])


def test_rows_of_a_closed_day_are_stored_and_the_commit_says_so(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = create(served.lake, late="policy: rewrite, closedAfter: 6h")
        moment = now(served)
        old = moment - 5 * DAY
        with served.lake.commit() as commit:
            commit.append("shop.orders", pa.Table.from_pylist([row(n, old) for n in range(500)], SCHEMA))
            commit.append("shop.orders", pa.Table.from_pylist([row(900, moment), row(901, old - DAY)], SCHEMA))
        assert len(ids(served.lake)) == 502
        assert audit(served.lake) == [(f"{old - DAY:%Y-%m-%d}", 1), (f"{old:%Y-%m-%d}", 500)]
        [at] = served.lake.sql(
            "SELECT DISTINCT \"at\" FROM lakestore.audit WHERE action = 'late_rewrite'"
        ).to_arrow()["at"].to_pylist()  # fmt: skip
        assert at >= moment
        write(table, [row(1000, moment)])
        assert len(audit(served.lake)) == 2


def test_late_rows_land_today_with_their_true_time(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = create(served.lake, late="policy: land_today, closedAfter: 6h", by="_landing_time")
        moment = now(served)
        write(table, [row(1, moment - 5 * DAY), row(2, moment)])
        found = {each["id"]: each for each in table.scan().to_arrow().to_pylist()}
        assert found[1]["_event_time"] == moment - 5 * DAY
        assert found[1]["_landing_time"].date() == found[2]["_landing_time"].date() == moment.date()
        assert found[2]["_landing_time"] == found[2]["_event_time"] == moment
        assert audit(served.lake) == []


@pytest.mark.parametrize("policy", ["drop", "dead_letter"])
def test_late_rows_are_dropped_or_dead_letters(tmp_path: Path, policy: str) -> None:
    with Served(tmp_path) as served:
        table = create(served.lake, late=f"policy: {policy}, closedAfter: 6h")
        moment = now(served)
        rows = [row(n, moment - 5 * DAY) for n in range(500)]
        result = write(table, [row(900, moment), *rows, row(901, moment)])
        assert ids(served.lake) == [900, 901]
        assert result.result.inserted == 2
        counts = dict(served.engine.totals.violations.by_rule())
        assert counts == {("shop.orders", "late", policy): 500}
        found = letters(served.lake)
        assert [each["kafka_offset"] for each in found] == ([] if policy == "drop" else list(range(1, 501)))
        assert {each["code"] for each in found} <= {"late"}


def test_a_day_closes_while_the_server_runs(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = create(served.lake, late="policy: drop, closedAfter: 6h")
        moment = now(served)
        write(table, [row(1, moment)])
        served.clock.advance(24 * 3600 - moment.hour * 3600 + 5 * 3600)
        write(table, [row(2, moment)])
        served.clock.advance(2 * 3600)
        write(table, [row(3, moment)])
        assert ids(served.lake) == [1, 2]


def test_a_key_of_a_closed_day_is_updated_by_a_row_of_today_and_deleted(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = create(served.lake, late="policy: drop, closedAfter: 6h", key=True)
        moment = now(served)
        write(table, [row(1, moment), row(2, moment)])
        served.clock.advance(3 * 24 * 3600)
        write(table, [row(1, moment, "late"), row(2, moment + 3 * DAY, "y")])
        assert {each["id"]: each["v"] for each in table.scan().to_arrow().to_pylist()} == {1: "x", 2: "y"}
        table.delete([{"id": 1}])
        assert ids(served.lake) == [2]


@pytest.mark.parametrize("merge", ["upsert", "partial"])
def test_a_row_that_keeps_its_event_time_is_not_late(tmp_path: Path, merge: str) -> None:
    with Served(tmp_path) as served:
        table = create(served.lake, late="policy: drop, closedAfter: 6h", key=True, merge=merge)
        moment = now(served)
        write(table, [row(1, moment)])
        [before] = table.scan().to_arrow().to_pylist()
        served.clock.advance(3 * 24 * 3600)
        if merge == "partial":
            table.upsert(pa.table({"id": [1], "v": ["y"]}))
        else:
            table.upsert([{"id": 1, "v": "y", "at": None}], keep=["at"])
        [after] = table.scan().to_arrow().to_pylist()
        assert (after["v"], after["_event_time"], after["at"]) == ("y", moment, before["at"])
        assert after["_ingest_time"] - before["_ingest_time"] >= 3 * DAY


def test_rows_that_wait_get_the_times_of_a_new_contract(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = served.lake.create_table("shop.orders", SCHEMA, buckets=1)
        moment = now(served)
        stale = table.definition
        other = ls.Lake(served.lake.transport, "other")
        other.table("shop.orders").alter(
            SetOptions(lake={"partition_by": ["day(_event_time)"]}),
            SetContract(document(EVENT, "policy: drop, closedAfter: 6h"), "orders"),
        )
        assert "_event_time" not in stale.schema.names
        write(table, [row(1, moment), row(2, "no"), row(3, moment - 5 * DAY)])
        assert served.lake.table("shop.orders").scan(["id", "_event_time"]).to_arrow().to_pylist() == [
            {"id": 1, "_event_time": moment}
        ]
        assert [each["code"] for each in letters(served.lake)] == ["event_time"]


def test_a_retry_makes_no_second_row_letter_or_audit_row(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        create(served.lake, late="policy: rewrite, closedAfter: 6h")
        moment = now(served)
        rows = pa.Table.from_pylist([row(1, moment - 5 * DAY), row(2, "no")], SCHEMA)
        for _ in range(2):
            with served.lake.producer("etl") as producer:
                if producer.progress:
                    continue
                with producer.commit(progress="1") as commit:
                    commit.append("shop.orders", rows)
        assert (ids(served.lake), len(letters(served.lake)), len(audit(served.lake))) == ([1], 1, 1)


def test_a_column_of_times_is_not_dropped_while_the_contract_needs_it(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = create(served.lake, "from: ingest, keep: true", by="_ingest_time")
        with pytest.raises(Invalid, match="_broker_time"):
            table.alter(drop=["_broker_time"])
        table.alter(SetContract(""), drop=["_broker_time"])
        assert replace(table.definition, contract=None) == table.definition
