"""The upkeep of lake tables: its debts are told, it keeps to a budget, and too much of it slows rounds down."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lakestore as ls
from lakestore.evolution import SetContract
from lakestore.model.contract.contract import Contract
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.main import Server
from lakestore_server.operate.metrics import text as metrics_text
from lakestore_tiering import Tierer, compact, manifest_rewrite, orphans
from lakestore_tiering.budgets import SLOWED_MAX, Budgets, slowed_by
from lakestore_tiering.compact import SMALL_FILES_MIN, CompactionResult
from lakestore_tiering.debts import COMPACTION, Debt, TableDebts
from lakestore_tiering.epoch import ALL_UPKEEP_EVERY, HeldEpoch
from tests.lake.tiering_tables import NAME, SCHEMA, create, in_lake, in_table, items


def upkeep_of(lake: ls.Lake) -> tuple[dict[str, tuple[int, str]], str]:
    """The debts of the table in `status`, and why its rounds are slowed down."""
    found = json.loads(lake.transport.status(pb.StatusRequest(tables=[NAME])).status)["tables"][0]
    return {each["duty"]: (each["count"], each["note"]) for each in found["upkeep"]}, found["upkeep_slowed"]


@pytest.mark.spark
def test_the_debts_of_a_table_are_told_and_paid(lake: ls.Lake, server: Server, spark: SparkSession) -> None:
    table = create(lake)
    with Tierer(lake, spark) as tierer:
        for number in range(SMALL_FILES_MIN):
            if number == SMALL_FILES_MIN - 1:
                assert compact.fork(tierer.tools, NAME, may_start=False) is None
                assert tierer.tools.debts.of(table.definition.uuid)[COMPACTION] == Debt(
                    COMPACTION, 0, f"{number} more are small, with fewer than {SMALL_FILES_MIN} in their partition"
                )
            table.upsert(items(range(10 * number, 10 * number + 10) if number else range(100), f"{number}-"))
            tierer.run_once(compaction=False)
        assert compact.fork(tierer.tools, NAME, may_start=False) is None
        tierer._held.report_upkeep(tierer.tools.debts.messages())
    debts, slowed = upkeep_of(lake)
    assert debts["compaction"] == (SMALL_FILES_MIN, ""), "also after the tierer has ended"
    assert debts["manifests"][0] > 0
    assert debts["delete_files"][0] > 0
    assert debts["snapshots"] == (0, "")
    assert slowed == ""
    said = metrics_text(server.sources).decode()
    assert f'lakestore_table_upkeep_debt{{duty="compaction",table="{NAME}"}} {SMALL_FILES_MIN}' in said
    with Tierer(lake, spark) as tierer:
        tierer.run_once()
        tierer.run_once()
    debts, _ = upkeep_of(lake)
    assert debts["compaction"][0] == debts["delete_files"][0] == 0
    assert in_lake(spark) == in_table(table)


@pytest.mark.spark
@pytest.mark.parametrize("version", [2, 3])
def test_manifests_are_rewritten_and_rounds_go_on(
    lake: ls.Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    options = {"format_version": version, "committers": "ours_only"}
    table = lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2, lake=options)
    with Tierer(lake, spark) as tierer:
        for number in range(4):
            table.upsert(items(range(number, number + 30), f"{number}-"))
            tierer.run_once(compaction=False)
        compact.fork(tierer.tools, NAME, may_start=False)
        assert manifest_rewrite.rewrite(tierer.tools, table.definition) == 0, "a few are not worth a Spark job"
        monkeypatch.setattr(manifest_rewrite, "EXCESS_MIN", 3)
        epoch = tierer.tools.epoch
        tierer.tools.epoch = lambda: epoch() - 1
        with pytest.raises(ls.Invalid, match="was replaced"):
            manifest_rewrite.rewrite(tierer.tools, table.definition)
        tierer.tools.epoch = epoch
        assert manifest_rewrite.rewrite(tierer.tools, table.definition) >= 3
        debt = tierer.tools.debts.of(table.definition.uuid)["manifests"]
        assert debt.count == 0
        assert "manifests of" in debt.note
        assert manifest_rewrite.rewrite(tierer.tools, table.definition) == 0
        assert in_lake(spark) == in_table(table)
        table.upsert(items(range(10), "z-"))
        (outcome,) = tierer.run_once()
        assert outcome.flushed is not None
        assert outcome.flushed.deaths == 10
        assert in_lake(spark) == in_table(table)


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def table_of(**lake: Any) -> Any:
    from lakestore.model.table import define

    return define(NAME, SCHEMA, primary_key=["id"], lake={"freshness": "10s", **lake})


def test_a_compaction_is_followed_by_a_rest_that_the_budget_asks_for() -> None:
    clock, debts, table = Clock(), TableDebts(), table_of(upkeep_percent=25)
    budgets = Budgets(debts, clock)
    assert budgets.may_start(table)
    budgets.spent(table, 30.0)
    budgets.landed(table, CompactionResult(NAME, 8, 2, 0, 1))
    debts.put(table.uuid, Debt(COMPACTION, 9))
    clock.now = 89.0
    budgets.note(table, is_running=False)
    assert not budgets.may_start(table)
    assert debts.of(table.uuid)[COMPACTION].note == (
        "the next rewrite begins in 1 s, upkeep_percent is 25; the last rewrite made 2 files of 8"
    )
    clock.now = 90.0
    assert budgets.may_start(table)
    whole = table_of()
    budgets.spent(whole, 30.0)
    assert budgets.may_start(whole), "the default budget is all of the time"


def test_rounds_are_slowed_down_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    debts, table = TableDebts(), table_of(upkeep_files=1_000)
    budgets = Budgets(debts, Clock())
    assert budgets.pause(table) == 10.0
    debts.put(table.uuid, Debt(COMPACTION, 2_500))
    assert budgets.pause(table) == 40.0
    (told,) = debts.messages()
    assert told.slowed == (
        f"Rounds of {NAME} come every 40 s instead of 10s: 2,500 files wait for compaction,"
        " more than upkeep_files (1,000)"
    )
    assert told.slowed in caplog.text
    debts.put(table.uuid, Debt(COMPACTION, 1_000))
    assert budgets.pause(table) == 10.0
    assert debts.messages()[0].slowed == ""
    assert "keep their freshness again" in caplog.text


@pytest.mark.parametrize(
    ("waiting", "factor"), [(0, 1), (10, 1), (11, 2), (20, 2), (21, 4), (40, 4), (41, 8), (10**9, SLOWED_MAX)]
)
def test_the_slower_rounds_are_powers_of_two(waiting: int, factor: int) -> None:
    assert slowed_by(waiting, 10) == factor


CONTRACT = """
apiVersion: v3.2.0
kind: DataContract
id: items
version: 1.0.0
status: active
schema:
  - name: items
    customProperties:
      - property: lakestore.budget
        value: {files: 100, deleteRatio: 0.1, snapshotAge: 1h, percent: 50}
"""


def test_the_budget_of_a_contract_takes_the_place_of_the_options() -> None:
    clock, debts, plain = Clock(), TableDebts(), table_of(upkeep_files=10_000, upkeep_percent=100)
    table = replace(plain, uuid="u", contract=Contract(CONTRACT, "items"))
    budgets = Budgets(debts, clock)
    budgets.spent(table, 90.0)
    clock.now = 89.0
    assert not budgets.may_start(table)
    clock.now = 90.0
    assert budgets.may_start(table)
    debts.put(table.uuid, Debt(COMPACTION, 150))
    debts.count_deleted(table.uuid, 1_000, 150)
    budgets.note(table, is_running=False)
    assert budgets.pause(table) == 20.0
    (told,) = debts.messages()
    assert told.spent_percent == 2.5
    assert told.slowed == (
        f"Rounds of {NAME} come every 20 s instead of 10s: 150 files wait for compaction, more than the contract allows"
        " (100); 15.0% of the rows in data files are deleted, more than the contract allows (10.0%)"
    )
    debts.put(table.uuid, Debt(COMPACTION, 100))
    debts.count_deleted(table.uuid, 1_000, 100)
    assert budgets.pause(table) == 10.0
    clock.now += 3_601.0
    budgets.note(table, is_running=False)
    assert debts.messages()[0].spent_percent == 0.0
    assert budgets.pause(plain) == 10.0


@pytest.mark.spark
def test_the_lake_comes_back_into_the_budget_and_status_says_how_far_it_is(
    lake: ls.Lake, server: Server, spark: SparkSession
) -> None:
    lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=2, lake={"target_file_bytes": 1 << 20})
    table = lake.table(NAME).alter(SetContract(CONTRACT, "items"))
    with Tierer(lake, spark) as tierer:
        table.upsert(items(range(2_000)))
        tierer.run_once(compaction=False)
        table.upsert(items(range(300), "b"))
        tierer.run_once(compaction=False)
        compact.fork(tierer.tools, NAME, may_start=False)
        assert tierer.tools.debts.deleted_share(table.definition.uuid) == pytest.approx(300 / 2_300)
        tierer._held.report_upkeep(tierer.tools.debts.messages())
        server.service.status.lakes.look(server.engine.view)
        parts = budget_of(lake)
        assert set(parts) == {"files", "delete_ratio", "snapshot_age", "percent"}
        assert parts["delete_ratio"]["exceeded"]
        assert parts["delete_ratio"]["used"] == pytest.approx(300 / 2_300)
        assert not parts["files"]["exceeded"]
        said = metrics_text(server.sources).decode()
        assert f'lakestore_budget_bound{{part="delete_ratio",table="{NAME}"}} 0.1' in said
        snapshots = len(spark.sql(f"SELECT * FROM lake.{NAME}.snapshots").collect())
        assert snapshots > 1
        tierer.run_once()
        server.service.status.lakes.look(server.engine.view)
        assert not budget_of(lake)["delete_ratio"]["exceeded"], "13 percent of the rows were reason to rewrite the file"
        current = lake.table(NAME).definition
        orphans.expire(tierer.tools, current, clock=lambda: time.time() + 3_500)
        assert len(spark.sql(f"SELECT * FROM lake.{NAME}.snapshots").collect()) > 1
        orphans.expire(tierer.tools, current, clock=lambda: time.time() + 3_700)
        assert len(spark.sql(f"SELECT * FROM lake.{NAME}.snapshots").collect()) == 1
    assert in_lake(spark) == in_table(table)


def budget_of(lake: ls.Lake) -> dict[str, dict[str, Any]]:
    found = json.loads(lake.transport.status(pb.StatusRequest(tables=[NAME])).status)["tables"][0]
    return {each["part"]: each for each in found["contract"]["budget"]}


class Told:
    """A server that keeps the requests of a tierer."""

    server = SimpleNamespace(protocol=5)

    def __init__(self) -> None:
        self.requests: list[pb.TiererRequest] = []

    def acquire_tierer(self, request: pb.TiererRequest) -> pb.TiererAnswer:
        self.requests.append(request)
        return pb.TiererAnswer(epoch=1, seconds=600)

    def release_tierer(self, request: pb.TiererRequest) -> pb.TiererAnswer:
        return pb.TiererAnswer(epoch=request.epoch)


def test_changed_tables_are_told_at_once_and_all_tables_now_and_then() -> None:
    """The server keeps the reports in memory, so one that was started again has to be told all."""
    transport: Any = Told()
    held, debts = HeldEpoch(transport, "one", 600, Clock()), TableDebts()
    held.acquire(0.0)
    debts.put("a", Debt(COMPACTION, 1))
    debts.put("b", Debt(COMPACTION, 2))
    held.report_upkeep(debts.messages())
    held.confirm()
    debts.put("b", Debt(COMPACTION, 3))
    held.report_upkeep(debts.messages())
    for _ in range(ALL_UPKEEP_EVERY):
        held.confirm()
    told = [[(part.table_uuid, part.debts[0].count) for part in each.upkeep] for each in transport.requests]
    assert told[:4] == [[], [("a", 1), ("b", 2)], [("b", 3)], []]
    assert told.count([("a", 1), ("b", 3)]) == 1
    debts.put("a", Debt(COMPACTION, 0))
    held.report_upkeep(debts.messages())
    held.release()
    assert [part.table_uuid for part in transport.requests[-1].upkeep] == ["a"], "the last word of a tierer"
