"""Backup and restore: a copy made under load is a whole prefix of the commits; damage and old positions are refused."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.cli.main import run_command
from lakestore.client.lake import Lake
from lakestore.errors import Conflict, Corrupt, Invalid, NewerFormat, NotFound, PositionExpired
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.files import backup_manifest
from lakestore_server.files.backup_manifest import LakePlace
from lakestore_server.operate.restore import restore
from tests.support.served import Served

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
KEYS = 50


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as running:
        running.lake.create_table("a.state", SCHEMA, primary_key=["id"], buckets=2)
        running.lake.create_table("a.log", SCHEMA)
        yield running


@pytest.fixture
def lake(served: Served) -> Lake:
    return served.lake


def commit(lake: Lake, n: int) -> str:
    """Commit number `n`: a few keys get it, one is deleted, and the log says so; all or nothing."""
    with lake.commit() as batch:
        batch.upsert("a.state", pa.table({"id": [(n * 7 + i) % KEYS for i in range(5)], "n": [n] * 5}, schema=SCHEMA))
        batch.delete("a.state", pa.table({"id": [(n * 11) % KEYS]}))
        batch.append("a.log", pa.table({"id": [n], "n": [n]}, schema=SCHEMA))
    return batch.token


def model(commits: int) -> dict[int, int]:
    """What `commits` of them leave."""
    state: dict[int, int] = {}
    for n in range(commits):
        state.update({(n * 7 + i) % KEYS: n for i in range(5)})
        state.pop((n * 11) % KEYS, None)
    return state


def take(lake: Lake, folder: Path) -> pb.BackupAnswer:
    """A backup."""
    return lake.transport.backup(pb.BackupRequest(folder=str(folder)))


def contents(lake: Lake) -> tuple[dict[int, int], list[int]]:
    """(the keyed table by key, the log)."""
    state = lake.table("a.state").scan().to_arrow()
    log = lake.table("a.log").scan().to_arrow()["n"].to_pylist()
    return dict(zip(state["id"].to_pylist(), state["n"].to_pylist(), strict=True)), log


def test_a_backup_under_load_is_a_whole_prefix_of_the_commits(lake: Lake, tmp_path: Path) -> None:
    for n in range(20):
        commit(lake, n)
    stop, done = threading.Event(), [20]

    def load() -> None:
        while not stop.is_set():
            commit(lake, done[0])
            done[0] += 1

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for i in range(4):
            before = done[0]
            answer = take(lake, tmp_path / f"backup{i}")
            after = done[0] + 1
            restore(tmp_path / f"backup{i}", tmp_path / f"restored{i}")
            with Served(tmp_path / f"restored{i}") as restored:
                restored.until_indexed()
                again = restored.lake
                state, log = contents(again)
                assert before <= len(log) <= after
                assert log == list(range(len(log)))
                assert state == model(len(log))
                for name in ("a.state", "a.log"):
                    assert verify(again.transport, name).same
                with pytest.raises(PositionExpired, match="another timeline"):
                    again.table("a.log").scan(at=answer.token).to_arrow()
                with pytest.raises(PositionExpired):
                    next(iter(again.table("a.log").changes(answer.token)))
                commit(again, len(log))
                assert contents(again)[0] == model(len(log) + 1)
    finally:
        stop.set()
        thread.join()
    assert contents(lake)[1] == list(range(done[0])), "the server was not disturbed"


def test_later_checkpoints_do_not_take_files_from_a_backup_that_is_being_written(
    served: Served, lake: Lake, tmp_path: Path
) -> None:
    """The cut is fixed first; whatever is merged and removed after that, its segments keep their bytes."""
    from lakestore_server.operate import backup

    engine = served.engine
    for n in range(10):
        commit(lake, n)
    cut = backup.BackupVerbs(engine, served.server.upkeep.checkpointer, "").cut()
    for n in range(10, 40):
        commit(lake, n)
        served.checkpoint()
    assert not all(segment.path.exists() for segment in cut.segments), "they are merged away"
    origin = backup.Origin(engine.timeline, served.server.about["warehouse"], LakePlace.LEFT_OUT)
    backup.write(engine.disk, tmp_path / "backup", cut, origin)
    restore(tmp_path / "backup", tmp_path / "restored")
    with ls.open(tmp_path / "restored") as again:
        assert contents(again) == (model(10), list(range(10)))


def test_producers_go_on_where_they_stood(lake: Lake, tmp_path: Path) -> None:
    with lake.table("a.log").writer(producer="bridge") as writer:
        writer.append(pa.table({"id": [1], "n": [1]}, schema=SCHEMA), progress="offset 17")
    take(lake, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    with ls.open(tmp_path / "restored") as again:
        assert again.table("a.log").writer(producer="bridge").progress == "offset 17"


def test_every_damaged_byte_is_noticed_before_anything_is_written(lake: Lake, tmp_path: Path) -> None:
    commit(lake, 0)
    folder = tmp_path / "backup"
    take(lake, folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) >= 4
    for path in files:
        whole = path.read_bytes()
        for place in {0, len(whole) // 2, len(whole) - 1}:
            damaged = bytearray(whole)
            damaged[place] ^= 1
            path.write_bytes(bytes(damaged))
            with pytest.raises(Corrupt):
                restore(folder, tmp_path / "restored")
        path.write_bytes(whole[:-1])
        with pytest.raises(Corrupt):
            restore(folder, tmp_path / "restored")
        path.unlink()
        with pytest.raises((Corrupt, NotFound)):
            restore(folder, tmp_path / "restored")
        path.write_bytes(whole)
        assert not (tmp_path / "restored").exists()
    restore(folder, tmp_path / "restored")


def test_a_restore_that_was_interrupted_is_no_data_folder(lake: Lake, tmp_path: Path) -> None:
    commit(lake, 0)
    take(lake, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    next((tmp_path / "restored").glob("checkpoint-*")).unlink()
    with pytest.raises(Corrupt, match="no checkpoint"):
        ls.open(tmp_path / "restored")


def test_a_place_that_is_not_empty_is_refused(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    for folder in (tmp_path / "full", tmp_path / "data" / "inside", tmp_path / "data", tmp_path, Path("relative")):
        with pytest.raises(Invalid):
            take(lake, folder)
    take(lake, tmp_path / "backup")
    for source, target in (("backup", "full"), ("backup", "backup"), ("backup", "backup/inside")):
        with pytest.raises(Invalid):
            restore(tmp_path / source, tmp_path / target)
    with pytest.raises(NotFound, match="no backup"):
        restore(tmp_path / "full", tmp_path / "restored")


def test_a_backup_of_a_newer_release_says_so(lake: Lake, tmp_path: Path) -> None:
    take(lake, tmp_path / "backup")
    manifest = tmp_path / "backup" / backup_manifest.NAME
    raw = bytearray(manifest.read_bytes())
    raw[4] = 9
    manifest.write_bytes(bytes(raw))
    with pytest.raises(NewerFormat, match="format version 9"):
        restore(tmp_path / "backup", tmp_path / "restored")


def test_a_disk_that_fails_leaves_no_backup_that_restores(served: Served, lake: Lake, tmp_path: Path) -> None:
    commit(lake, 0)
    disk = served.engine.disk
    real = type(disk).create

    def broken(self: Any, path: Path, **how: Any) -> Any:
        if path.name.startswith("checkpoint-") and "backup" in path.parts:
            raise OSError(28, "No space left on device")
        return real(self, path, **how)

    monkey = pytest.MonkeyPatch()
    with monkey.context() as patched:
        patched.setattr(type(disk), "create", broken)
        with pytest.raises(Conflict, match="No space"):
            take(lake, tmp_path / "backup")
    assert list((tmp_path / "backup").iterdir()) == []
    with pytest.raises(NotFound, match="unfinished backup"):
        restore(tmp_path / "backup", tmp_path / "restored")
    commit(lake, 1)
    take(lake, tmp_path / "second")


def test_the_command_restores_without_a_server(lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit(lake, 0)
    take(lake, tmp_path / "backup")
    target = tmp_path / "restored"
    assert run_command(["restore", str(tmp_path / "backup"), "--data", str(target)]) == 0
    assert f"lakestore serve --data {shlex.quote(str(target))}" in capsys.readouterr().out
    assert run_command(["restore", str(tmp_path / "backup"), "--data", str(target)]) == 1
    assert "not an empty folder" in capsys.readouterr().err
