"""A real server on a disk with faults: killed at crash points, syncs that fail, a disk that is full.

LAKESTORE_CRASH_SEEDS above 1 kills it at every crash point; a few of them otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from jepsen.system.server import free_port
from lakestore.client.writer import change
from lakestore.errors import Exhausted, LakestoreError, Unavailable
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.host.crash_points import CrashPoint
from tests.promises.test_acknowledged_is_durable import LOG, SCHEMA, Load, check_quiet, when_connected
from tests.support.one_try import one_try
from tests.support.process import DidNotStart, ServerProcess
from tests.support.waiting import until

AT_START = [point for point in CrashPoint if point.startswith(("recovery.", "rebuild."))]
FEW = [
    CrashPoint.JOURNAL_WRITTEN,
    CrashPoint.INDEX_MERGED,
    CrashPoint.CHECKPOINT_RENAMED,
    CrashPoint.RECOVERY_RENAMED,
    CrashPoint.CATALOG_COMMITTED,
]
"""One of each kind of file; `make crash` takes all points, and `tests/model/test_crash_points.py` cuts power at all."""
POINTS = list(CrashPoint) if int(os.environ.get("LAKESTORE_CRASH_SEEDS", "1")) > 1 else FEW
pytestmark = pytest.mark.slow


class Home:
    """A data folder with two tables, and servers on it, one after the other, behind the same ports."""

    def __init__(self, folder: Path, template: Path) -> None:
        self.folder, self.port, self.http_port = folder, free_port(), free_port()
        shutil.copytree(template, folder)

    @staticmethod
    def make(folder: Path) -> None:
        """What every home begins with."""
        with ServerProcess(folder) as server:
            with ls.connect(server.address) as lake:
                lake.create_table("t.state", SCHEMA, primary_key=["id"], buckets=3)
                lake.create_table("t.log", LOG, buckets=2)
                more = lake.create_table("t.keys", SCHEMA, primary_key=["id"])
                more.upsert([{"id": 1, "version": 1}])
            server.kill()

    def damage_index(self) -> None:
        """Cut the runs short that a checkpoint names."""
        with self.plain():
            pass
        for run in (self.folder / "index").glob("*.run"):
            run.write_bytes(b"damaged")

    @contextmanager
    def plain(self) -> Iterator[ServerProcess]:
        """A server without faults."""
        with ServerProcess(self.folder, port=self.port, http_port=self.http_port) as server:
            yield server

    def faulty(self, **faults: Any) -> ServerProcess:
        """A server with faults."""
        planted = {"LAKESTORE_FAULTS": json.dumps(faults)}
        program = ["-m", "tests.support.faulty_server", str(self.folder), str(self.port), str(self.http_port)]
        return ServerProcess(
            self.folder, port=self.port, http_port=self.http_port, program=program, environment=planted
        )


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a killed server with the tables: each test has a copy."""
    folder = tmp_path_factory.mktemp("template") / "data"
    Home.make(folder)
    return folder


def new_namespace(server: ServerProcess, name: str) -> None:
    """One catalog commit."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.http_port}/iceberg/v1/namespaces",
        json.dumps({"namespace": [name], "properties": {}}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30):
        pass


def ended(server: ServerProcess) -> int:
    """The exit code of a server that is to end by itself."""
    until(lambda: not server.alive, "the end of the server")
    return server.code


def verified(address: str, loads: list[Load]) -> None:
    """Everything acknowledged is there once, and all parts agree, byte by byte."""
    check_quiet(address, loads)
    with ls.connect(address) as lake:
        for name in ("t.state", "t.log"):
            until(lambda name=name: not _rebuilding(lake, name), "the key index")  # type: ignore[misc]
            found = verify(lake.transport, name, deep=True)
            assert found.same, found.problems()


def _rebuilding(lake: ls.Lake, name: str) -> bool:
    try:
        one_try(lake).audit(pb.AuditRequest(table=name))
    except Unavailable:
        return True
    return False


@pytest.mark.parametrize("point", POINTS)
def test_a_server_that_is_killed_at_a_crash_point_loses_nothing(
    tmp_path: Path, template: Path, point: CrashPoint
) -> None:
    home = Home(tmp_path / "data", template)
    faults: dict[str, Any] = {"kill": [point, 0 if point in AT_START else 1]}
    if point == CrashPoint.JOURNAL_CUT:
        faults |= {"write": ["journal-", 6], "kill": [point, 0]}
    if point == CrashPoint.CHECKPOINT_UNDONE:
        faults |= {"rename": ["checkpoint-", 0], "kill": [point, 0]}
    if point.startswith("rebuild."):
        home.damage_index()
    if point.startswith("catalog."):
        faults["kill"] = [point, 0]
    loads: list[Load] = []
    try:
        server = home.faulty(**faults)
    except DidNotStart as error:
        assert error.code == -9
    else:
        loads = [Load(0, server.address)]
        if point.startswith("catalog."):
            until(lambda: loads[0].acknowledged > 3, "some commits")
            with pytest.raises(OSError, match=r"closed|reset|refused|Remote"):
                new_namespace(server, "asked")
        assert ended(server) == -9
    with home.plain() as server:
        loads = loads or [Load(0, server.address)]
        before = loads[0].acknowledged
        until(lambda: loads[0].acknowledged > before + 3 or loads[0].error, "more commits")
        loads[0].end()
        verified(server.address, loads)
        loads[0].lake.close()


def test_a_failed_sync_of_the_journal_ends_the_server_and_nothing_acknowledged_is_lost(
    tmp_path: Path, template: Path
) -> None:
    home = Home(tmp_path / "data", template)
    server = home.faulty(sync=["journal-", 8])
    load = Load(0, server.address)
    assert ended(server) == 70
    with home.plain() as server:
        before = load.acknowledged
        until(lambda: load.acknowledged > before + 3 or load.error, "more commits")
        load.end()
        verified(server.address, [load])
        load.lake.close()


@pytest.mark.parametrize(
    "faults",
    [
        {"sync": ["0-", 0]},
        pytest.param({"sync": ["checkpoint-", 0]}, marks=pytest.mark.long),
        {"rename": ["checkpoint-", 0]},
    ],
)
def test_a_failed_checkpoint_leaves_the_last_one_and_the_server_goes_on(
    tmp_path: Path, template: Path, faults: dict[str, Any]
) -> None:
    home = Home(tmp_path / "data", template)
    server = home.faulty(**faults)
    before = {path.name for path in home.folder.glob("checkpoint-*")}
    load = Load(0, server.address)
    until(lambda: "failed" in server.said() or load.error, "the failed checkpoint")
    assert before & {path.name for path in home.folder.glob("checkpoint-*")}
    until(lambda: not before & {path.name for path in home.folder.glob("checkpoint-*")}, "the next checkpoint")
    load.end()
    server.kill()
    with home.plain() as server:
        verified(server.address, [load])
        load.lake.close()


def test_a_full_disk_refuses_rows_serves_reads_lets_the_catalog_through_and_heals(
    tmp_path: Path, template: Path
) -> None:
    home, quota = Home(tmp_path / "data", template), tmp_path / "quota"
    allow(quota, 64 << 20)
    with home.faulty(quota=str(quota)) as server, ls.connect(server.address) as lake:
        when_connected(lake)
        rows = pa.record_batch({"producer": [1], "n": [1]}, schema=LOG)
        request = pb.CommitRequest(changes=[change("t.log", pb.APPEND, [rows])])
        lake.transport.commit(request)
        allow(quota, 1 << 20)
        until(lambda: _refused(lake, request), "the refusal")
        with pytest.raises(Exhausted, match="free space") as refused:
            one_try(lake).commit(request)
        assert refused.value.retry_after
        count = lake.table("t.log").scan().count()
        new_namespace(server, "through")
        lake.create_table("t.more", LOG)
        allow(quota, 64 << 20)
        until(lambda: not _refused(lake, request), "the healed server")
        assert lake.table("t.log").scan().count() > count
        allow(quota, 0)
        until(lambda: _refused(lake, request), "the refusal")
        with pytest.raises(urllib.error.HTTPError):
            new_namespace(server, "too-late")
        assert lake.table("t.log").scan().count() > count
        allow(quota, 64 << 20)
        until(lambda: not _refused(lake, request), "the healed server")
        new_namespace(server, "later")
        assert verify(lake.transport, "t.log", deep=True).same


def allow(quota: Path, nbytes: int) -> None:
    """The server reads the file at any moment: it is never without a number."""
    aside = quota.with_suffix(".new")
    aside.write_text(str(nbytes))
    aside.replace(quota)


def _refused(lake: ls.Lake, request: pb.CommitRequest) -> bool:
    try:
        one_try(lake).commit(request)
    except Exhausted:
        return True
    except LakestoreError as error:
        raise AssertionError(f"another error than Exhausted: {error}") from error
    return False


def test_a_server_that_cannot_start_says_why(tmp_path: Path, template: Path) -> None:
    home = Home(tmp_path / "data", template)
    with pytest.raises(DidNotStart) as refused:
        home.faulty(sync=["journal-", 0])
    assert refused.value.code not in (0, -9)
    with home.plain() as server:
        assert server.alive
