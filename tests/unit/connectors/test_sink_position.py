"""The subscription that follows a Kafka sink: it holds the log for the sink without a gap."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

import lakestore as ls
from lakestore.kafka.sink import KafkaSink
from lakestore.model.token import position_of

SCHEMA = pa.schema([("v", pa.int64())])


def test_a_subscription_that_lies_behind_is_moved_and_never_dropped(tmp_path: Path) -> None:
    with ls.open(tmp_path) as lake:
        quiet, busy = lake.create_table("t.quiet", SCHEMA), lake.create_table("t.busy", SCHEMA)
        quiet.append([{"v": 1}])
        sink = KafkaSink(lake, ["t.quiet"], bootstrap="127.0.0.1:1", topic="x")
        stream = lake.changes(["t.quiet"], "earliest", until="now", subscription="lakestore-sink-x")
        for batch in stream:
            batch.ack()
        stream.close()
        busy.append([{"v": 2}])
        now = replace(position_of(lake.snapshot().token), tables=(quiet.definition.uuid,))
        sink.written.token = str(now)
        sink._hold()
        assert [(held.name, held.token) for held in lake.subscriptions()] == [("lakestore-sink-x", str(now))]
        sink._kafka.close()
