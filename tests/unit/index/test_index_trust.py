"""A start uses an index only if the checkpoint says where it stands, and each live row can have an entry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore_server.files import checkpoint
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import RealDisk
from lakestore_server.index.run_file import EMPTY_LSN
from tests.support.served import Served
from tests.support.world.disk import SimDisk

KEYS = 500


def rows(count: int = KEYS) -> pa.Table:
    return pa.table({"id": pa.array(range(count), pa.int64()), "v": pa.array(range(count), pa.int64())})


def filled(folder: Path, disk: SimDisk | None = None) -> Served:
    """A server with a checkpointed table and a log table."""
    served = Served(folder, disk=disk)
    served.lake.create_table("a.b", {"id": "int64", "v": "int64"}, primary_key=["id"], buckets=2).upsert(rows())
    served.lake.create_table("a.log", {"v": "int64"})
    served.checkpoint()
    return served


def check(served: Served) -> None:
    """Every key is found, and an upsert of all of them makes no second row."""
    served.until_indexed()
    table = served.lake.table("a.b")
    assert table.lookup(rows().select(["id"])).num_rows == KEYS
    table.upsert(rows())
    assert table.last_result is not None
    assert (table.last_result.inserted, table.last_result.updated) == (0, KEYS)
    assert table.scan().count() == KEYS


@pytest.mark.parametrize("point", [CrashPoint.INDEX_MERGED, CrashPoint.CHECKPOINT_FROZEN])
def test_a_checkpoint_made_while_the_index_has_a_problem_says_that_there_is_none(
    tmp_path: Path, point: CrashPoint, caplog: pytest.LogCaptureFixture
) -> None:
    """The process ends before a rebuild begins, as when it is closed beside a look-up that meets a damaged block."""
    disk = SimDisk(tmp_path)
    served = filled(tmp_path, disk)
    index = served.engine.index
    served.lake.table("a.log").append([{"v": 1}])

    def passing(passed: CrashPoint) -> None:
        if passed is point:
            disk.passing = lambda _: None
            index.found_problem("planted", damaged=True)

    disk.passing = passing
    index.call_on_problem(lambda: None)  # no rebuild in this process
    served.checkpoint()
    served.kill()
    held = checkpoint.newest(RealDisk(), tmp_path)
    assert held is not None
    assert held.index_lsn == EMPTY_LSN
    with Served(tmp_path) as again:
        assert "rebuilt: the checkpoint names none" in caplog.text
        check(again)
    held = checkpoint.newest(RealDisk(), tmp_path)
    assert held is not None
    assert held.index_lsn == held.lsn


def test_an_index_with_fewer_entries_than_live_rows_is_rebuilt(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint whose runs are lost from its list, however that came."""
    filled(tmp_path).close()
    held = checkpoint.newest(RealDisk(), tmp_path)
    assert held is not None
    assert held.runs
    checkpoint.write(RealDisk(), tmp_path, replace(held, runs=()))
    with Served(tmp_path) as served:
        assert f"no entry for at least {KEYS} of {KEYS} rows" in caplog.text
        check(served)


def test_the_rows_of_a_checkpoint_are_compared_as_of_the_index(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows that only the journal has need no entry in a run, and rows deleted since may have one."""
    served = filled(tmp_path)
    served.lake.table("a.b").upsert(pa.table({"id": range(KEYS, 3 * KEYS), "v": range(2 * KEYS)}))
    served.lake.table("a.b").delete(pa.table({"id": pa.array(range(KEYS, 3 * KEYS), pa.int64())}))
    served.kill()
    with Served(tmp_path) as again:
        assert again.engine.index.ready
        assert "rebuilt" not in caplog.text
        check(again)


def test_the_rebuilder_ends_behind_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up may find a problem until the very end, and somebody has to hear of it."""
    served = filled(tmp_path)
    upkeep = served.server.upkeep
    order: list[str] = []

    def watch(part: object, method: str) -> None:
        real = getattr(part, method)

        def told() -> None:
            order.append(method)
            real()

        monkeypatch.setattr(part, method, told)

    watch(upkeep._rebuilder, "close")
    watch(upkeep.checkpointer, "run_once")
    served.close()
    assert order == ["run_once", "close"]
