"""A server alone, with journal, checkpoints and lake in a bucket, is killed by kill -9 and loses its disk. A server on
an empty disk answers each acknowledged commit once, whether the journal has it, a checkpoint or the lake alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

import lakestore as ls
from jepsen.system.http_proxy import Trouble, Weather
from jepsen.system.store import WAREHOUSE, Store
from lakestore.union.verify import verify
from tests.network.test_object_journal import JOURNAL, run
from tests.support.kafka_servers import KafkaServers
from tests.support.log_tierer import LogTierer
from tests.support.process import ServerProcess
from tests.support.waiting import until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
CHECKPOINTS = "s3://lakestore/the checkpoints"
FIRST = f"{JOURNAL.removeprefix('s3://')}/log/{0:020}"
"""The first object of the journal."""
OFTEN = {"LAKESTORE_LIMITS_JOURNAL_CHECKPOINT_BYTES": "40000", "LAKESTORE_CHECKPOINTS_KEEP_SECONDS": "0"}
OFTEN |= {"LAKESTORE_RETENTION_CHECK_SECONDS": "0.2", "LAKESTORE_LEASE_GRACE_SECONDS": "0"}
KINDS = (Trouble.LOSE, Trouble.HIDE, Trouble.RESET, Trouble.REFUSE, Trouble.REPEAT)


def tiered(server: ServerProcess, lake: ls.Lake) -> None:
    """Bring the log into the lake, whose files are in the bucket."""
    port: Any = SimpleNamespace(about={"http": f"{server.host}:{server.http_port}"})
    s3 = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"], "s3.region": os.environ["AWS_REGION"]}
    LogTierer(port, lake.transport, **s3).flush("t.log")


def test_a_server_that_lost_its_disk_starts_from_the_bucket_alone(store: Store, tmp_path: Path) -> None:
    run("init-journal", "--journal", JOURNAL)
    arguments = ["--warehouse", WAREHOUSE, "--checkpoints", CHECKPOINTS]
    with KafkaServers(JOURNAL, tmp_path, "a", arguments=arguments, environment=OFTEN) as alone:
        server, written = alone.the("leader"), 0
        with ls.connect(alone.addresses) as lake:
            table = lake.create_table("t.rows", SCHEMA, primary_key=["id"], buckets=2)
            log = lake.create_table("t.log", SCHEMA, buckets=1, retention={"bytes": 1})
            log.append([{"id": -1, "v": 0}])
            tiered(server, lake)
            until(
                lambda: [t["log_start"] for t in lake.status()["tables"] if t["name"] == "t.log"] == [[1]],
                "a row in the lake alone",
            )
            store.proxy.breaks(Weather(KINDS, 0.02, seed=1))
            while store.kept.objects.keys(FIRST):
                log.append([{"id": written, "v": written}])
                table.upsert([{"id": written % 50, "v": written}])
                written += 1
                assert written < 4_000, "the journal keeps its first object"
        assert written > 50
        server.kill()
        shutil.rmtree(server.data)
        assert sum(store.proxy.mend().values()) > 10
        alone.start_again(server)
        alone.the("leader")
        with ls.connect(alone.addresses) as lake:
            assert sorted(lake.table("t.log").scan().to_arrow().column("id").to_pylist()) == list(range(-1, written))
            rows = lake.table("t.rows").scan().to_arrow().to_pylist()
            assert {row["id"]: row["v"] for row in rows} == {key % 50: key for key in range(written)}
            lake.table("t.rows").upsert([{"id": 7, "v": -1}])
            assert lake.table("t.rows").lookup([{"id": 7}]).column("v").to_pylist() == [-1]
            assert verify(lake.transport, "t.rows").same
            until(lambda: lake.status()["store"]["lsn"] > 0, "a claim on the checkpoints")
        assert f"{'store':16}{CHECKPOINTS}: checkpoint at LSN" in run("status", "--server", alone.addresses)
