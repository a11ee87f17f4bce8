"""A long read at a follower, in processes of their own on a real topic: the leader tiers, expires, and is killed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lakestore as ls
from jepsen.system.kafka import KafkaProcess
from lakestore.cli.main import cli
from lakestore_server.main import Server
from tests.support.kafka_servers import KafkaServers
from tests.support.log_tierer import LogTierer
from tests.support.process import ServerProcess
from tests.support.waiting import until

get, post = partial(httpx.get, timeout=60.0), partial(httpx.post, timeout=60.0)
pytestmark = pytest.mark.kafka
NAME = "t.log"
SCHEMA = pa.schema([("v", pa.int64())])
GRACE_SECONDS = 8
"""As long as a hold, and longer than a busy machine lets a renewal wait."""


@pytest.fixture
def three(kafka: KafkaProcess, tmp_path: Path) -> Iterator[KafkaServers]:
    journal = f"kafka://{kafka.address}/{tmp_path.name}"
    made = CliRunner().invoke(cli, ["init-journal", "--journal", journal, "--replicas", "1"], catch_exceptions=False)
    assert made.exit_code == 0
    with KafkaServers(
        journal, tmp_path, "abc", environment={"LAKESTORE_LEASE_GRACE_SECONDS": str(GRACE_SECONDS)}
    ) as servers:
        yield servers


def append_and_tier(servers: KafkaServers, *values: int) -> None:
    leader = servers.the("leader")
    with ls.connect(servers.addresses) as lake:
        lake.table(NAME).append(pa.table({"v": pa.array(values, pa.int64())}))
        about = SimpleNamespace(about={"http": f"{leader.host}:{leader.http_port}"})
        LogTierer(cast("Server", about), lake.transport).flush(NAME)


def snapshots(leader: ServerProcess) -> list[int]:
    """The ids of the snapshots in the lake, the oldest first."""
    loaded = get(f"http://{leader.host}:{leader.http_port}/iceberg/v1/namespaces/t/tables/log").json()
    return [each["snapshot-id"] for each in loaded["metadata"]["snapshots"]]


def expire(servers: KafkaServers, snapshot: int) -> int:
    """The status of the leader's answer: 403 while a read holds the snapshot."""
    leader = servers.the("leader")
    return post(
        f"http://{leader.host}:{leader.http_port}/iceberg/v1/namespaces/t/tables/log",
        json={"requirements": [], "updates": [{"action": "remove-snapshots", "snapshot-ids": [snapshot]}]},
    ).status_code


def test_a_read_at_a_follower_outlives_its_leader(three: KafkaServers) -> None:
    first_leader = three.the("leader")
    with ls.connect(three.addresses) as lake:
        lake.create_table(NAME, SCHEMA, buckets=1)
    append_and_tier(three, 1, 2)
    with ls.connect(three.addresses) as lake:
        token = lake.table(NAME).append(pa.table({"v": pa.array([3], pa.int64())}))
    (first,) = snapshots(first_leader)
    follower = three.the("follower")
    with ls.connect(follower.address) as lake:
        reader = lake.table(NAME).scan(at=token).to_reader()
        cut = lake.snapshot()
        append_and_tier(three, 4)
        append_and_tier(three, 5)
        _, unread, _ = snapshots(first_leader)
        assert expire(three, first) == 403, "the follower reads it"
        first_leader.kill()
        until(lambda: expire(three, unread) == 200, "the end of the new leader's grace")
        assert expire(three, first) == 403, "the follower reads it still"
        assert sorted(reader.read_all()["v"].to_pylist()) == [1, 2, 3]
        assert sorted(cut.scan(NAME).to_arrow()["v"].to_pylist()) == [1, 2, 3]
        cut.close()
    until(lambda: expire(three, first) == 200, "the end of the hold")
    with ls.connect(three.addresses) as lake:
        assert lake.table(NAME).scan().count() == 5
