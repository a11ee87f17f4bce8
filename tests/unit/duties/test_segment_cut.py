"""Segments of a checkpoint: small ones share a file, which goes with the last of them."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.duties.checkpoint import Checkpointer
from lakestore_server.files.data_folder import SHARED
from lakestore_server.files.segment import Segment
from lakestore_server.host.disk import AppendFile, RealDisk
from lakestore_server.operate.restore import restore
from lakestore_server.segments import cut
from tests.support import seeds
from tests.support.log_start import move_log_start
from tests.support.served import Served

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


class CountingDisk(RealDisk):
    """Counts what is asked of it."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def create(self, path: Path, *, is_cached: bool = True) -> AppendFile:
        """As a real disk."""
        self.asked["create"] += 1
        return super().create(path, is_cached=is_cached)

    def list(self, path: Path) -> list[str]:
        """As a real disk."""
        self.asked["list"] += 1
        return super().list(path)

    def map(self, path: Path) -> pa.Buffer:
        """As a real disk."""
        self.asked["map"] += 1
        return super().map(path)

    def sync_folder(self, path: Path) -> None:
        """As a real disk."""
        self.asked["sync folder"] += 1
        super().sync_folder(path)


def rows(served: Served, name: str) -> dict[int, int]:
    found = served.lake.table(name).scan().to_arrow()
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def shared(folder: Path) -> list[Path]:
    return sorted((folder / "segments" / SHARED).glob("*.seg"))


def segments(served: Served) -> list[Segment]:
    logs = [log for state in served.engine.view.tables.values() for log in state.logs]
    return [chunk for log in logs for chunk in log.chunks if isinstance(chunk, Segment)]


def test_a_checkpoint_asks_the_disk_as_much_for_many_buckets_as_for_few(tmp_path: Path) -> None:
    asked = []
    for buckets in (2, 64):
        disk = CountingDisk()
        with Served(tmp_path / str(buckets), disk=disk) as served:
            table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"], buckets=buckets)
            table.upsert(pa.table({"id": range(500), "v": range(500)}))
            before = disk.asked.copy()
            served.checkpoint()
            asked.append(disk.asked - before)
            assert len(segments(served)) == buckets
    assert asked[0] == asked[1]
    assert asked[0]["map"] == 2, "the shared file, and the run of the index"


@pytest.mark.parametrize("shared_bytes", [400, 1 << 20])
def test_files_are_those_that_segments_lie_in_whatever_happens(
    tmp_path: Path, shared_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables come, change, lose their beginning and go; in between, restarts and checkpoints that fail."""
    monkeypatch.setattr(cut, "LONE_MAX", 6)
    monkeypatch.setattr(Checkpointer, "wake", lambda self: None)  # the next one waits until the test asks
    limits = Limits(shared_segment_bytes=shared_bytes, segment_rows=200)
    chance = random.Random(int(seeds.seed(5)))
    served = Served(tmp_path, limits=limits)
    right: dict[str, dict[int, int]] = {}
    for step in range(40):
        name = f"a.t{chance.randrange(6)}"
        if name not in right:
            served.lake.create_table(name, SCHEMA, primary_key=["id"], buckets=chance.choice([1, 3, 8]))
            right[name] = {}
        elif chance.random() < 0.1:
            served.purge(name)
            del right[name]
            continue
        changed = {chance.randrange(100): step for _ in range(chance.choice([1, 30]))}
        served.lake.table(name).upsert([{"id": i, "v": v} for i, v in changed.items()])
        right[name] |= changed
        if chance.random() < 0.2:
            move_log_start(served.engine, name)
        if chance.random() < 0.2:
            with monkeypatch.context() as patch:
                patch.setattr(served.engine.index, "merge", _full)
                with pytest.raises(OSError, match="full"):
                    served.checkpoint()
        if chance.random() < 0.5:
            served.checkpoint()
            _check_files(served, tmp_path)
        if chance.random() < 0.1:
            served.restart()
    served.checkpoint()
    _check_files(served, tmp_path)
    assert {name: rows(served, name) for name in right} == right
    served.close()


def _full(*_: object) -> None:
    raise OSError("full")


def _check_files(served: Served, folder: Path) -> None:
    there = {path for path in (folder / "segments").rglob("*.seg")}
    held = segments(served)
    assert there == {each.path for each in held}
    for path in shared(folder):
        live = sum(each.size for each in held if each.path == path)
        assert 3 * live >= path.stat().st_size, "two thirds of it may be gone, padding and directory besides"


def test_small_files_of_an_earlier_release_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "LONE_MAX", 10)
    with Served(tmp_path, limits=Limits(shared_segment_bytes=0)) as served:
        table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"], buckets=16)
        table.upsert(pa.table({"id": range(200), "v": range(200)}))
    assert len(list(tmp_path.glob("segments/*/*.seg"))) == 16
    monkeypatch.setattr("lakestore_server.files.checkpoint.LONE_MAPS_MAX", 10)
    with Served(tmp_path) as served:
        assert rows(served, "a.b") == {i: i for i in range(200)}
        served.checkpoint()
        assert list(tmp_path.glob("segments/*/*.seg")) == shared(tmp_path)
        assert rows(served, "a.b") == {i: i for i in range(200)}


def test_a_damaged_segment_is_not_copied_with_a_new_checksum(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        table = served.lake.create_table("a.b", SCHEMA, primary_key=["id"], buckets=4)
        table.upsert(pa.table({"id": range(200), "v": range(200)}))
        served.checkpoint()
        (path,) = shared(tmp_path)
        each = max(segments(served), key=lambda each: each.part.at or 0)
        assert each.part.at
        with path.open("r+b") as file:
            file.seek(each.part.at + each.size // 2)
            file.write(b"damage")
        lake = served.lake.create_table("a.c", SCHEMA, primary_key=["id"], buckets=4)
        lake.upsert(pa.table({"id": range(400), "v": range(400)}))
        served.checkpoint()
        assert path in shared(tmp_path), "it stays as it is"
        assert any(path.name in damage for damage in served.server.upkeep.scrubber.run_once())


def test_a_backup_has_shared_files_and_its_restore_reads_them(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        for name in ("a.b", "a.c"):
            table = served.lake.create_table(name, SCHEMA, primary_key=["id"], buckets=8)
            table.upsert(pa.table({"id": range(200), "v": range(200)}))
            served.checkpoint()
        served.lake.transport.backup(pb.BackupRequest(folder=str(tmp_path / "backup")))
    restore(tmp_path / "backup", tmp_path / "again")
    with Served(tmp_path / "again") as served:
        assert shared(tmp_path / "again")
        for name in ("a.b", "a.c"):
            assert rows(served, name) == {i: i for i in range(200)}
