"""`lakestore tier` on a standalone cluster: rounds with an executor and a worker killed during them lose nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyspark
import pytest

import lakestore as ls
from lakestore.client.table import Table
from lakestore.union.verify import verify
from lakestore_server.main import Server
from lakestore_spark.session import RUNTIME
from tests.support.process import ServerProcess
from tests.support.spark_cluster import Cluster, Worker, kill, process, standalone
from tests.support.waiting import first_of, until

pytestmark = pytest.mark.timeout(400)
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("day", pa.string()), ("v", pa.int64()), ("text", pa.string())]
)
ROWS = 200_000
LOCAL = "127.0.0.1"
PYTHON = ": Times: total = "
"""Text of the line that an executor logs after a task. It logs the line only if the task used Python."""
SUBMIT = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
SETTINGS = "spark.executor.memory 500m\nspark.sql.shuffle.partitions 2\nspark.driver.memory 1g\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with standalone(tmp_path) as running:
        yield running


def rows(value: int, count: int = ROWS) -> pa.Table:
    """Rows with two days. Nine rows in ten have the later day."""
    ids = np.arange(count)
    day = np.where(ids % 10, "2026-11-28", "2026-11-27")
    text = [f"text {value} {number % 101}" for number in range(count)]
    return pa.table({"id": ids, "day": day, "v": np.full(count, value), "text": text}, schema=SCHEMA)


def tiered(lake: ls.Lake) -> int:
    """The sum of the table's tier points."""
    return sum(lake.status()["tables"][0]["tier_point"] or [0])


def hot_files(folder: Path) -> list[Path]:
    return list(folder.glob("**/data/hot-*/list.avro"))


def busy_worker(cluster: Cluster) -> Worker:
    """A worker that has an executor."""
    return first_of(lambda: [worker for worker in cluster.workers if worker.executors()], "an executor")


def wait_for_round(lake: ls.Lake, tierer: subprocess.Popen[bytes], point: int) -> None:
    """Wait until the sum of the tier points is this, or the tierer has ended."""
    until(lambda: tiered(lake) == point or tierer.poll() is not None, f"a round up to {point}", 180)


def check(lake: ls.Lake, table: Table, value: int, count: int) -> None:
    """Log, index and lake agree, and no row of an older value is left."""
    assert verify(lake.transport, table.name).same
    found = table.scan(columns=["v"]).to_arrow()
    assert found.num_rows == count
    assert set(found.column("v").unique().to_pylist()) == {value}


def submitted(master: str, *options: str) -> list[str]:
    """The start of a command of `lakestore` under spark-submit."""
    return [SUBMIT, "--master", master, *options, str(Path(ls.__path__[0]) / "__main__.py")]


@pytest.mark.parametrize(
    ("way", "victims"),
    [
        ("master", ["worker"]),
        pytest.param("master", ["nobody", "executor", "executor", "worker"], marks=pytest.mark.long),
        pytest.param("spark-submit", ["executor"], marks=pytest.mark.long),
    ],
)
def test_an_executor_and_a_worker_that_are_killed_during_rounds(
    cluster: Cluster, server: Server, lake: ls.Lake, tmp_path: Path, way: str, victims: list[str]
) -> None:
    """The tasks of the dead run again at the others. No task of a round is Python, and no hot file is left.

    A worker is killed together with its executor.
    """
    (tmp_path / "spark-defaults.conf").write_text(SETTINGS)
    table = lake.create_table(
        "shop.orders", SCHEMA, primary_key=["id"], buckets=3, lake={"freshness": "1s", "partition_by": ["day"]}
    )
    asked = ["tier", "--server", server.about["grpc"]]
    if way == "spark-submit":
        command = [*submitted(cluster.address, "--packages", RUNTIME), *asked]
    else:
        command = [sys.executable, "-m", "lakestore", *asked, "--master", cluster.address]
    with process(
        tmp_path / "tier.log", *command, SPARK_CONF_DIR=str(tmp_path), PYSPARK_PYTHON=sys.executable
    ) as tierer:
        for number, victim in enumerate(victims):
            table.upsert(rows(number))
            if victim != "nobody":
                until(lambda: hot_files(tmp_path) or tierer.poll() is not None, "a round", 120)
                worker = busy_worker(cluster)
                if victim == "executor":
                    os.kill(worker.executors()[0], signal.SIGKILL)
                else:
                    kill(worker.running)
            wait_for_round(lake, tierer, (number + 1) * ROWS)
            assert tierer.poll() is None, (tmp_path / "tier.log").read_text()[-4_000:]
            check(lake, table, number, ROWS)
        until(lambda: not hot_files(tmp_path), "the hot files are removed")
        tierer.send_signal(signal.SIGTERM)
        # spark-submit is a Java program, which ends by the signal and takes the tierer along.
        assert tierer.wait(60) == (128 + signal.SIGTERM if way == "spark-submit" else 0)
    said = "".join(worker.said() for worker in cluster.workers)
    assert "Finished task" in said
    assert PYTHON not in said
    log = (tmp_path / "cluster.log").read_text()
    assert log.count("Command exited with code 137") == victims.count("executor")


@pytest.mark.long
def test_the_tierer_beside_a_server_uses_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """`serve --tier` with `tier_master`: executors of the cluster write the rows, and end with the server."""
    (tmp_path / "spark-defaults.conf").write_text(SETTINGS)
    variables = {"LAKESTORE_TIER_MASTER": cluster.address, "SPARK_CONF_DIR": str(tmp_path), "SPARK_LOCAL_IP": LOCAL}
    with ServerProcess(tmp_path / "data", arguments=["--tier"], environment=variables) as server:
        with ls.connect(server.address) as lake:
            table = lake.create_table("shop.orders", SCHEMA, primary_key=["id"], buckets=3, lake={"freshness": "1s"})
            table.upsert(rows(1))
            until(lambda: tiered(lake) == ROWS, "a round", 180)
            check(lake, table, 1, ROWS)
        assert server.stop() == 0
    until(lambda: not any(worker.executors() for worker in cluster.workers), "the executors end", 60)
    assert any("Finished task" in worker.said() for worker in cluster.workers)


def test_spark_submit_without_iceberg_is_refused_with_the_option(server: Server, lake: ls.Lake, tmp_path: Path) -> None:
    """The command line of spark-submit decides about jars, so the error names the option to give there."""
    command = [*submitted("local[1]"), "tier", "--once", "--server", server.about["grpc"]]
    variables = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=variables, check=False
    )
    assert answer.returncode == 1
    # Spark writes what the program writes to either to its standard output.
    assert answer.stdout == f"lakestore: Spark lacks Iceberg: give spark-submit --packages {RUNTIME}\n"
