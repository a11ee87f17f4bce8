"""A request that waited while its table got a contract with times: it is stored with them, or judged by them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakestore.client.writer import change_to
from lakestore.evolution import SetContract, SetOptions
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit import request as requests
from lakestore_server.commit.contract_times import PARTITIONS_MAX, Arrival
from tests.promises.test_rows_have_the_time_of_their_contract import DAY, EVENT, SCHEMA, document, now, row
from tests.support.served import Served

NAME = "shop.orders"


def waiting(served: Served, rows: Sequence[dict[str, Any]]) -> requests.Request:
    """A request for the table as it is now, before the commit loop takes it."""
    state = served.engine.view.named(NAME)
    batch = pa.RecordBatch.from_pylist(list(rows), SCHEMA)
    message = change_to(state.table, pb.UPSERT, [batch])
    arrival = Arrival(served.engine.now_us(), from_bridge=False)
    change = requests.change_of(state.versions, message, "", served.engine.limits, arrival=lambda: arrival)
    return requests.Request((change,), producer="p", epoch=1, sequence=1, owner="ann")


@pytest.mark.parametrize("policy", ["rewrite", "drop", "dead_letter"])
def test_a_request_that_waited_has_the_times_of_the_new_contract(tmp_path: Path, policy: str) -> None:
    with Served(tmp_path) as served:
        table = served.lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=1)
        moment = now(served)
        held = waiting(served, [row(1, moment), row(2, "no"), row(3, moment - 9 * DAY), row(4, moment)])
        table.alter(
            SetOptions(lake={"partition_by": ["day(_event_time)"]}),
            SetContract(document(EVENT, f"policy: {policy}, closedAfter: 6h"), "orders"),
        )
        ready = requests.renewed(held, served.engine.view)
        stored = {each["id"]: each["_event_time"] for each in ready.changes[0].batch.to_pylist()}
        late = {3: moment - 9 * DAY} if policy == "rewrite" else {}
        assert stored == {1: moment, 4: moment} | late
        assert ready.changes[0].batch.column("_ingest_time").null_count == 0
        added = {each.table.name: each.batch.to_pylist() for each in ready.changes[1:]}
        letters = {each["kafka_offset"]: each["code"] for each in added[f"{NAME}__dlq"]}
        assert letters == {1: "event_time"} | ({2: "late"} if policy == "dead_letter" else {})
        audit = added.get("lakestore.audit", [])
        assert [(each["principal"], json.loads(each["what"])["rows"]) for each in audit] == [("ann", 1)] * len(late)
        assert requests.renewed(ready, served.engine.view) is ready


def test_rows_of_very_many_closed_days_have_one_audit_row(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = served.lake.create_table(NAME, SCHEMA, primary_key=["id"], buckets=1)
        table.alter(
            SetOptions(lake={"partition_by": ["day(_event_time)"]}),
            SetContract(document(EVENT, "policy: rewrite, closedAfter: 6h"), "orders"),
        )
        count, first = PARTITIONS_MAX + 1, now(served) - timedelta(days=900)
        served.lake.table(NAME).upsert([row(number, first + number * DAY) for number in range(count)])
        found = served.lake.sql("SELECT what FROM lakestore.audit WHERE action = 'late_rewrite'").to_arrow()
        last = first + (count - 1) * DAY
        assert [json.loads(what) for what in found["what"].to_pylist()] == [
            {"partition": f"{first:%Y-%m-%d} to {last:%Y-%m-%d}", "rows": count}
        ]
