"""The real `lakestore tier`, killed with -9 at different moments while rows are written: exactly once all the same.

Only the epoch is held for less than the usual 30 s, so that the next process need not wait for so long.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table as LakeTable

import lakestore as ls
from jepsen.system.jvm import SHORT_LIVED
from lakestore.union import plan
from lakestore.union.verify import verify
from lakestore_server.catalog.contents import Name
from lakestore_server.catalog.gate import PIN_PREFIX
from lakestore_server.main import Server
from tests.support.seeds import seeded
from tests.support.staging import PROGRAM
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ITEMS, EVENTS = "shop.items", "shop.events"
SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
MOMENT_SECONDS_MAX = 240.0

Row = tuple[Any, ...]


@dataclass
class Load:
    """Writes until told to stop, and a model of what was written."""

    lake: ls.Lake
    items: dict[int, Row] = field(default_factory=dict)
    events: list[Row] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = None
    rng: random.Random = field(default_factory=lambda: seeded(7))

    def run(self) -> None:
        """The body of the writing thread."""
        try:
            while not self.stop.wait(0.1):
                self._write()
        except BaseException as error:  # Raised again by the test's thread.
            self.failure = error

    def _write(self) -> None:
        new = {i: (i, f"t{self.rng.random():.6f}") for i in self.rng.sample(range(300), 12)}
        happened = [(len(self.events) + i, "e") for i in range(3)]
        gone = self.rng.sample(sorted(self.items), min(len(self.items), 4))
        with self.lake.commit() as commit:
            commit.delete(ITEMS, [{"id": i} for i in gone or [0]])
            commit.upsert(ITEMS, _arrow(list(new.values())))
            commit.append(EVENTS, _arrow(happened))
        for i in gone:
            self.items.pop(i)
        self.items.update(new)
        self.events.extend(happened)


def _arrow(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


@contextmanager
def _tiering(server: Server, log: Any) -> Iterator[subprocess.Popen[bytes]]:
    """`lakestore tier` in a process group of its own, Spark's JVM in it."""
    command = [
        sys.executable,
        *PROGRAM,
        "tier",
        "--epoch-seconds",
        "4",
        "--master",
        "local[1]",
        "--server",
        server.about["grpc"],
    ]
    variables = {**os.environ, "JDK_JAVA_OPTIONS": " ".join(SHORT_LIVED)}
    process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=variables)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


def _until(process: subprocess.Popen[bytes], reached: Callable[[], bool]) -> None:
    """Wait for a moment in a running tierer's life."""
    until(lambda: reached() or process.poll() is not None, "a moment in the tierer's life", MOMENT_SECONDS_MAX)
    assert process.poll() is None, "the tierer ended by itself"


def _refs(server: Server, table: str) -> dict[str, Any]:
    found: dict[str, Any] = server.catalog.load(Name(*table.split("."))).doc["refs"]
    return {name: ref for name, ref in found.items() if not name.startswith(PIN_PREFIX)}


def _main(server: Server, table: str) -> int:
    return int(_refs(server, table).get("main", {}).get("snapshot-id", 0))


def _staging(server: Server, table: str) -> set[str]:
    return {name for name in _refs(server, table) if name.startswith("lakestore_stage_")}


def _staged(server: Server, table: str, before: set[str]) -> Callable[[], bool]:
    """Rows stand in a new staging branch, main does not have them yet."""

    def reached() -> bool:
        refs = _refs(server, table)
        new = _staging(server, table) - before
        return any(refs[name]["snapshot-id"] != _main(server, table) for name in new if name in refs)

    return reached


def _landed(server: Server, table: str, times: int) -> Callable[[], bool]:
    """Main has moved so often."""
    seen = {_main(server, table)}

    def reached() -> bool:
        seen.add(_main(server, table))
        return len(seen) > times

    return reached


def _compacting(server: Server) -> Callable[[], bool]:
    """A compaction is under way."""
    before = set(_refs(server, ITEMS)) | set(_refs(server, EVENTS))

    def reached() -> bool:
        now = set(_refs(server, ITEMS)) | set(_refs(server, EVENTS))
        return any(name.startswith("lakestore_compact_") for name in now - before)

    return reached


def _all_tiered(lake: ls.Lake) -> bool:
    cut = plan.decode(lake.transport.plan(plan.request([ITEMS, EVENTS], no_dead=True)))
    return all(scan.hot_rows == 0 for scan in cut.tables)


def _lake(server: Server, table: str) -> LakeTable:
    found: LakeTable = RestCatalog("lake", uri=f"http://{server.about['http']}/iceberg").load_table(table)
    return found


def _rows(table: pa.Table) -> list[Row]:
    return sorted(tuple(row[name] for name in SCHEMA.names) for row in table.to_pylist())


def _added(table: LakeTable) -> Counter[str]:
    """How often each file was added by the snapshots that led to main."""
    added: Counter[str] = Counter()
    snapshot = table.current_snapshot()
    while snapshot is not None:
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                if entry.status == ManifestEntryStatus.ADDED:
                    added[entry.data_file.file_path] += 1
        parent = snapshot.parent_snapshot_id
        assert parent is None or table.snapshot_by_id(parent), "history was cut: this test needs all of it"
        snapshot = table.snapshot_by_id(parent) if parent else None
    return added


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.long)])
def test_killed_again_and_again_it_goes_on_exactly_once(
    server: Server, lake: ls.Lake, tmp_path: Path, kills: int
) -> None:
    options = {"freshness": "1s", "sort_by": ["id"]}
    lake.create_table(ITEMS, SCHEMA, primary_key=["id"], buckets=2, lake=options)
    lake.create_table(EVENTS, SCHEMA, buckets=2, lake={**options, "format_version": 3})
    load = Load(lake)
    writing = threading.Thread(target=load.run)
    writing.start()
    points: list[int] = []
    try:
        with (tmp_path / "tier.log").open("wb") as log:
            for kill in (_while_staged, _while_compacting, _once_landed)[:kills]:
                with _tiering(server, log) as process:
                    kill(server, process)
                points.append(_main(server, ITEMS))
            before = (tmp_path / "tier.log").stat().st_size
            with _tiering(server, log) as process:
                _until(process, _landed(server, ITEMS, 2))
                load.stop.set()
                writing.join()
                _until(process, lambda: _all_tiered(lake))
                process.terminate()
                assert process.wait(60) == 0
    finally:
        load.stop.set()
        writing.join()
        print((tmp_path / "tier.log").read_text()[-4000:])
    if load.failure:
        raise load.failure
    assert len(set(points)) == len(points), "it did not go on between two kills"
    assert b"\tat " not in (tmp_path / "tier.log").read_bytes()[before:], "a Java stack of a healthy run"
    _check(server, lake, load)


def _while_staged(server: Server, process: subprocess.Popen[bytes]) -> None:
    """Only the Python process dies, while rows are staged; what its JVM has begun, it may still bring to an end."""
    _until(process, _landed(server, ITEMS, 1))
    _until(process, _staged(server, ITEMS, _staging(server, ITEMS)))
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    time.sleep(2.0)


def _once_landed(server: Server, process: subprocess.Popen[bytes]) -> None:
    """All of it dies the moment a commit is in."""
    _until(process, _landed(server, ITEMS, 1))
    _until(process, _landed(server, EVENTS, 1))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def _while_compacting(server: Server, process: subprocess.Popen[bytes]) -> None:
    _until(process, _compacting(server))
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def _check(server: Server, lake: ls.Lake, load: Load) -> None:
    for name, rows in ((ITEMS, list(load.items.values())), (EVENTS, load.events)):
        found = _lake(server, name)
        assert _rows(found.scan().to_arrow()) == sorted(rows), name
        twice = {path: times for path, times in _added(found).items() if times > 1}
        assert not twice, f"files of {name} added in two snapshots: {twice}"
        assert set(_refs(server, name)) == {"main", "lakestore-tier"}, name
        verified = verify(lake.transport, name)
        assert verified.same, verified.problems()
