"""A backup and its lake: restored with it, set back to it, or begun anew; then all reads and tiering are right."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from lakestore.cli.main import run_command
from lakestore.errors import Conflict, Invalid
from lakestore.model.file_uri import to_path, to_uri
from lakestore.rows.ipc import crc32c
from lakestore.rows.live_sum import live_sum, moved
from lakestore.union.cut import Cut
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog.contents import Name
from lakestore_server.files.backup_manifest import BackupManifest, LakePlace
from lakestore_server.operate import backup
from lakestore_server.operate.restore import Ways, restore, without_base
from lakestore_server.state.bucket_log import BucketLog
from lakestore_server.state.chunk import CommitIndex, MemoryChunk
from tests.support.log_tierer import LogTierer
from tests.support.served import DAY, Served
from tests.support.sql_views import view_request

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
LOG, KEYED, FREE = "a.log", "a.k", "f.t"


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"v{i}" for i in ids]}, schema=SCHEMA)


class World(Served):
    """A server with its ports, and engines beside it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, ports=True, **settings)

    def tier(self, *names: str) -> None:  # type: ignore[override]  # a real round, not a note of one
        tierer = LogTierer(self.server, self.lake.transport)
        for name in names:
            tierer.flush(name)

    @property
    def catalog(self) -> RestCatalog:
        return RestCatalog("lake", uri=f"http://{self.server.about['http']}/iceberg")

    def in_lake(self, name: str) -> list[int]:
        """The lake's rows, as another engine reads them."""
        return sorted(self.catalog.load_table(name).scan().to_arrow()["id"].to_pylist())

    def read(self, name: str) -> list[int]:
        """The union read."""
        return sorted(self.lake.table(name).scan().to_arrow()["id"].to_pylist())

    def back_up(self, folder: Path, **asked: Any) -> pb.BackupAnswer:
        return self.lake.transport.backup(pb.BackupRequest(folder=str(folder), **asked))

    def check(self, log: list[int], keyed: list[int], lake: list[int] | None = None) -> None:
        """All reads are right, the log is in the lake as far as it is to be, and tiering goes on."""
        self.until_indexed()
        assert self.read(LOG) == log
        assert self.read(KEYED) == keyed
        if lake is not None:
            assert self.in_lake(LOG) == lake
        for name in (LOG, KEYED):
            assert verify(self.lake.transport, name).same
        self.lake.table(LOG).append(rows(900))
        self.tier(LOG)
        assert self.in_lake(LOG) == [*log, 900] == self.read(LOG)
        assert verify(self.lake.transport, LOG).same

    def notes(self) -> dict[str, str]:
        status = json.loads(self.lake.transport.status(pb.StatusRequest()).status)
        return {part["name"]: part["lake_ahead"] for part in status["tables"]}


@contextmanager
def world(folder: Path, **settings: Any) -> Iterator[World]:
    with World(folder, **settings) as made:
        made.lake.create_table(LOG, SCHEMA, buckets=1)
        made.lake.create_table(KEYED, SCHEMA, primary_key=["id"], buckets=2)
        made.lake.table(LOG).append(rows(1, 2, 3))
        made.lake.table(KEYED).upsert(rows(1, 2, 3))
        made.tier(LOG, KEYED)
        made.checkpoint()
        made.lake.table(LOG).append(rows(4))
        made.lake.table(KEYED).upsert(rows(3, 4))
        yield made


@pytest.mark.parametrize("to", ["elsewhere", "data"])
def test_a_backup_in_the_default_configuration_restores(tmp_path: Path, to: str) -> None:
    with world(tmp_path / "data") as before:
        before.catalog.create_namespace("f")
        before.catalog.create_table(FREE, SCHEMA).append(rows(7, 8))
        view = before.server.catalog.views.create("f", view_request("v", spark="SELECT 1"))
        done = before.back_up(tmp_path / "backup")
        assert (done.lake, done.warehouse) == ("inside", before.server.about["warehouse"])
        assert not (tmp_path / "data" / "lake-held").exists()
        before.lake.table(LOG).append(rows(5))
        before.tier(LOG)
    (tmp_path / "data").rename(tmp_path / "gone")
    made = restore(tmp_path / "backup", tmp_path / to)
    assert made.warehouse == to_uri(tmp_path / to / "warehouse")
    assert made.lake.problems == []
    assert sorted(made.lake.moved) == ([] if to == "data" else [KEYED, LOG, FREE])
    with World(tmp_path / to) as after:
        assert after.notes() == {LOG: "", KEYED: ""}
        assert after.in_lake(FREE) == [7, 8]
        restored = after.server.catalog.views.load(Name("f", "v"))
        doc, place = json.loads(restored.document), json.loads(view.document)["location"]
        assert doc["versions"] == json.loads(view.document)["versions"]
        assert doc["location"] == place.replace(done.warehouse, made.warehouse)
        assert to == "data" or Path(to_path(restored.location) or "").read_text() == restored.document
        after.check([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3])
        after.restart()
        assert after.read(LOG) == [1, 2, 3, 4, 900]
    assert not [path for path in (tmp_path / to).rglob("*") if b"gone" in path.name.encode()]


def test_lake_files_that_expire_while_a_backup_is_made_are_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are linked before anything is copied."""
    from lakestore_server.operate import backup

    with world(tmp_path / "data") as before:
        write = backup.write

        def late(*args: Any) -> BackupManifest:
            for path in (tmp_path / "data" / "warehouse").rglob("*"):
                if path.is_file():
                    path.unlink()
            return write(*args)

        monkeypatch.setattr(backup, "write", late)
        before.back_up(tmp_path / "backup")
        shutil.rmtree(tmp_path / "data" / "warehouse")
        with pytest.raises(Conflict, match=r"the lake of table a\..* is not whole, .* \(--without-lake\)"):
            before.back_up(tmp_path / "second")
        assert list((tmp_path / "second").glob("*")) == []
        assert before.back_up(tmp_path / "second", without_lake=True).lake == "left out"
    restore(tmp_path / "backup", tmp_path / "restored")
    with World(tmp_path / "restored") as after:
        after.check([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3])


def test_a_lake_that_was_only_tiered_after_the_backup_is_used_as_it_is(tmp_path: Path) -> None:
    """Its metadata number is ahead, and every row of it is in the backup's log: nobody is asked to set it back."""
    with world(tmp_path / "data", warehouse=str(tmp_path / "lake")) as before:
        before.back_up(tmp_path / "backup", without_lake=True)
        before.tier(LOG)
    made = restore(tmp_path / "backup", tmp_path / "restored")
    assert (made.lake.problems, made.lake.followed) == ([], [LOG])
    with World(tmp_path / "restored", warehouse=str(tmp_path / "lake")) as after:
        assert after.notes() == {LOG: "", KEYED: ""}
        after.check([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4])


def test_a_lake_with_a_row_beyond_the_backup_is_ahead(tmp_path: Path) -> None:
    with world(tmp_path / "data", warehouse=str(tmp_path / "lake")) as before:
        before.back_up(tmp_path / "backup", without_lake=True)
        before.lake.table(LOG).append(rows(5))
        before.tier(LOG)
    made = restore(tmp_path / "backup", tmp_path / "restored")
    assert made.lake.followed == []
    (problem,) = made.lake.problems
    assert "the lake of table a.log is ahead of this server" in problem
    with World(tmp_path / "restored", warehouse=str(tmp_path / "lake")) as after:
        assert [name for name, note in after.notes().items() if note] == [LOG]
        assert after.read(LOG) == [1, 2, 3, 4]


def test_a_lake_that_is_gone_is_said_by_name_with_the_way_back(tmp_path: Path) -> None:
    with world(tmp_path / "data") as before:
        before.back_up(tmp_path / "backup", without_lake=True)
    shutil.rmtree(tmp_path / "data" / "warehouse")
    made = restore(tmp_path / "backup", tmp_path / "restored")
    assert sorted(problem.split(" is gone: ")[0] for problem in made.lake.problems) == [
        "the lake of table a.k",
        "the lake of table a.log",
    ]
    with World(tmp_path / "restored") as after:
        assert all("is gone" in note and "--without-lake" in note for note in after.notes().values())
        assert after.read(KEYED) == [1, 2, 3, 4], "the log has all of it"
        assert after.read(LOG) == [1, 2, 3, 4]
        after.lake.table(LOG).alter(retention={"bytes": 1})
        after.checkpoint()
        after.run()
        assert after.state(LOG).starts() == (0,), "nothing is let go that the lake does not have"
    with World(tmp_path / "data") as same:
        assert "is gone" in same.notes()[LOG], "a start says it too"


def test_tables_are_tiered_anew_from_what_the_log_holds(tmp_path: Path) -> None:
    with world(tmp_path / "data") as before:
        before.back_up(tmp_path / "backup", without_lake=True)
    made = restore(tmp_path / "backup", tmp_path / "restored", ways=Ways(anew=True))
    assert sorted(made.lake.anew) == [KEYED, LOG]
    assert (made.lake.lost, made.lake.problems) == ([], [])
    with World(tmp_path / "restored") as after:
        assert after.notes() == {LOG: "", KEYED: ""}
        after.check([1, 2, 3, 4], [1, 2, 3, 4], [])
        after.tier(KEYED)
        assert after.in_lake(KEYED) == [1, 2, 3, 4] == after.read(KEYED)
        assert verify(after.lake.transport, KEYED).same


def test_rows_that_only_the_lake_had_are_named_and_lost_when_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with world(tmp_path / "data") as before:
        before.lake.table(LOG).alter(retention="1h")
        before.checkpoint()
        before.clock.advance(DAY)
        before.lake.table(LOG).append(rows(5, 6))
        before.run()
        assert before.state(LOG).starts() == (3,)
        before.checkpoint()
        before.lake.table(LOG).append(rows(7))
        before.catalog.create_namespace("f")
        before.catalog.create_table(FREE, SCHEMA)
        before.back_up(tmp_path / "backup", without_lake=True)
    asked = ["restore", str(tmp_path / "backup"), "--data", str(tmp_path / "restored"), "--without-lake"]
    assert run_command(asked) == 1
    said = capsys.readouterr().err
    assert "rows [0, 3) of bucket 0 of table a.log; table f.t, which is not Lakestore's: all of it" in said
    assert "--accept-loss" in said
    assert not (tmp_path / "restored").exists()
    assert run_command([*asked, "--accept-loss"]) == 0
    assert "lost: rows [0, 3) of bucket 0 of table a.log" in capsys.readouterr().out
    with World(tmp_path / "restored") as after:
        after.check([4, 5, 6, 7], [1, 2, 3, 4], [])
        after.restart()
        assert after.read(LOG) == [4, 5, 6, 7, 900]
        for start in ("earliest", "snapshot"):
            stream = after.lake.table(LOG).changes(start, until="now")
            assert sorted(row["id"] for part in stream for row in part.to_pylist()) == [4, 5, 6, 7, 900]
        assert verify(after.lake.transport, LOG).same


def test_a_lake_that_went_on_is_set_back_to_what_the_backup_covers(tmp_path: Path) -> None:
    warehouse = {"warehouse": str(tmp_path / "lake")}
    with world(tmp_path / "data", **warehouse) as before:
        done = before.back_up(tmp_path / "backup")
        assert done.lake == "outside"
        before.tier(LOG)  # of rows that the backup has
        covered = before.catalog.load_table(LOG).current_snapshot().snapshot_id
        for n in (5, 6):
            before.lake.table(LOG).append(rows(n))
            before.tier(LOG)
    made = restore(tmp_path / "backup", tmp_path / "as-it-was")
    assert made.warehouse == to_uri(tmp_path / "lake")
    assert ["a.log is ahead of this server" in problem for problem in made.lake.problems] == [True]
    assert "--rewind-lake" in made.lake.problems[0]
    made = restore(tmp_path / "backup", tmp_path / "restored", ways=Ways(rewind=True))
    assert (made.lake.rewound, made.lake.problems) == ([LOG], [])
    with World(tmp_path / "restored", **warehouse) as after:
        assert after.notes() == {LOG: "", KEYED: ""}
        table = after.catalog.load_table(LOG)
        assert table.current_snapshot().snapshot_id == covered
        assert len(table.metadata.snapshots) == 2
        after.check([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4])
        after.restart()
        assert after.notes() == {LOG: "", KEYED: ""}


def test_a_lake_that_keeps_nothing_of_the_backup_begins_anew(tmp_path: Path) -> None:
    warehouse = {"warehouse": str(tmp_path / "lake")}
    with world(tmp_path / "data", **warehouse) as before:
        before.back_up(tmp_path / "backup")
        for n in (5, 6):
            before.lake.table(LOG).append(rows(n))
            before.tier(LOG)
        table = before.catalog.load_table(LOG)
        old = [s.snapshot_id for s in table.metadata.snapshots[:-1]]
        expiry = table.maintenance.expire_snapshots()
        for each in old:
            expiry = expiry.by_id(each)
        expiry.commit()
    with pytest.raises(Conflict, match=r"no snapshot any more that the backup covers: .* --without-lake"):
        restore(tmp_path / "backup", tmp_path / "restored", ways=Ways(rewind=True))
    made = restore(tmp_path / "backup", tmp_path / "restored", ways=Ways(rewind=True, anew=True))
    assert (made.lake.rewound, made.lake.anew) == ([], [LOG])
    with World(tmp_path / "restored", **warehouse) as after:
        after.check([1, 2, 3, 4], [1, 2, 3, 4], [])
        assert after.in_lake(KEYED) == [1, 2, 3]


def test_a_folder_that_is_half_restored_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world(tmp_path / "data") as before:
        before.back_up(tmp_path / "backup")
    from lakestore_server.operate import restore as restore_module

    def power_goes(*_: Any) -> Any:
        raise OSError("power")

    with monkeypatch.context() as patched:
        patched.setattr(restore_module, "finish", power_goes)
        with pytest.raises(OSError, match="power"):
            restore(tmp_path / "backup", tmp_path / "half")
    with pytest.raises(Invalid, match="unfinished restore: remove the folder"):
        World(tmp_path / "half")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(Invalid, match="is not an empty folder"):
        restore(tmp_path / "backup", tmp_path / "restored", warehouse=str(tmp_path / "full"))
    restore(tmp_path / "backup", tmp_path / "restored", warehouse=str(tmp_path / "lake"))
    with World(tmp_path / "restored", warehouse=str(tmp_path / "lake")) as after:
        after.check([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3])


def test_a_manifest_of_an_earlier_release_is_read() -> None:
    body = orjson.dumps(
        {
            "release": "0.2.0",
            "time_us": 1,
            "timeline": "t",
            "lsn": 2,
            "checkpoint": "c",
            "files": [],
            "pointers": {"a.t": "file:///x"},
        }
    )
    raw = struct.pack("<IHHQI", 0x4C534231, 1, 0, len(body), crc32c(body)) + body
    found = BackupManifest.decode(raw, "MANIFEST")
    assert (found.lake, found.warehouse, found.pointers) == (LakePlace.OUTSIDE, "", {"a.t": "file:///x"})


def test_a_chunk_that_reaches_below_the_log_start_loses_what_lies_there() -> None:
    schema = pa.schema([("id", pa.int64())])
    live, parts = 0, []
    for n, ids in enumerate([range(4), range(4, 6), range(6, 9)]):
        live = moved(live, np.arange(ids.start, ids.stop), np.empty(0, np.int64))
        parts.append(CommitIndex.one(n + 1, n + 1, ids.stop, live, ids.stop))
    rows = pa.record_batch([pa.array(range(9), pa.int64())], schema=schema)
    log = BucketLog(schema).append(MemoryChunk(0, rows, CommitIndex.joined(parts)))
    bare = without_base(log.from_lsn(1))
    assert (bare.base.end, bare.base.live_rows, bare.base.live_sum) == (4, 0, 0)
    assert (bare.head, bare.at_head.live_rows) == (9, 5)
    assert bare.at_head.live_sum == live_sum(np.arange(4, 9))
    assert bare.at_lsn(2).live_sum == live_sum(np.arange(4, 6))
    (chunk,) = bare.chunks
    assert (chunk.start, chunk.end, chunk.rows, chunk.index.lsn.tolist()) == (4, 9, 5, [2, 3])
    assert [batch.column("id").to_pylist() for _, batch, _ in bare.rows(0, 9)] == [[4, 5, 6, 7, 8]]


def test_truncated_and_dropped_tables_are_restored_as_they_were(tmp_path: Path) -> None:
    with World(tmp_path / "data") as world:
        lake = world.lake
        for name in ("a.emptied", "a.dropped", "a.gone"):
            lake.create_table(name, SCHEMA, buckets=1).append(rows(1, 2))
        world.tier("a.emptied", "a.dropped")
        lake.table("a.emptied").truncate()
        lake.table("a.emptied").append(rows(3))
        lake.drop_table("a.dropped")
        lake.drop_table("a.gone")
        lake.transport.backup(pb.BackupRequest(folder=str(tmp_path / "backup")))
    restore(tmp_path / "backup", tmp_path / "restored")
    with World(tmp_path / "restored") as world:
        assert world.in_lake("a.emptied") == []
        assert world.lake.table("a.emptied").scan().to_arrow()["id"].to_pylist() == [3]
        world.tier("a.emptied")
        assert world.in_lake("a.emptied") == [3]
        assert world.lake.undrop("a.dropped").scan().count() == 2
        assert world.in_lake("a.dropped") == [1, 2]
        assert verify(world.lake.transport, "a.dropped").same
        world.lake.drop_table("a.gone", purge=True)
        world.server.dropped.run_once()
        assert world.lake.dropped_tables() == []
    shutil.rmtree(tmp_path / "restored")
    ways = Ways(anew=True, accept_loss=True)
    restore(tmp_path / "backup", tmp_path / "restored", ways=ways)
    with World(tmp_path / "restored") as world:
        assert world.lake.dropped_tables() == []
        assert world.lake.table("a.emptied").scan().to_arrow()["id"].to_pylist() == [3]


def test_a_table_that_is_being_removed_keeps_nobody_from_a_backup(tmp_path: Path) -> None:
    with World(tmp_path / "data") as world:
        for name in ("a.kept", "a.going"):
            world.lake.create_table(name, SCHEMA, buckets=1).append(rows(1, 2))
        world.tier("a.kept", "a.going")
        place = world.engine.folder / "warehouse" / "a"
        before = set(place.iterdir())
        with Cut(world.lake.transport, ["a.going"], lease_seconds=60):
            world.lake.drop_table("a.going")
            going = next(each for each in before if each.name.startswith("going"))
            going.rename(tmp_path / "aside")
            with pytest.raises(Conflict, match=r"the lake of table a\.going \(dropped\) is not whole.*--purge"):
                world.back_up(tmp_path / "refused")
            world.lake.drop_table("a.going", purge=True)
            world.back_up(tmp_path / "backup")
    made = restore(tmp_path / "backup", tmp_path / "restored")
    assert made.lake.moved == ["a.kept"]
    with World(tmp_path / "restored") as world:
        world.server.dropped.run_once()
        assert world.lake.dropped_tables() == []
        assert world.read("a.kept") == world.in_lake("a.kept") == [1, 2]


def test_a_dropped_table_whose_lake_another_history_uses_is_left_to_it(tmp_path: Path) -> None:
    """A restored server neither takes such a lake for its own nor removes its files."""
    with World(tmp_path / "data", warehouse=str(tmp_path / "warehouse")) as world:
        world.lake.create_table(LOG, SCHEMA, buckets=1).append(rows(1, 2))
        world.tier(LOG)
        world.lake.table(LOG).append(rows(3))
        world.lake.drop_table(LOG)
        world.back_up(tmp_path / "backup")
        world.lake.undrop(LOG)
        world.tier(LOG)
    for purge in (False, True):
        place = tmp_path / f"restored-{purge}"
        restore(tmp_path / "backup", place, warehouse=str(tmp_path / "warehouse"))
        with World(place, warehouse=str(tmp_path / "warehouse")) as world:
            if purge:
                world.lake.drop_table(LOG, purge=True)
                world.server.dropped.run_once()
                assert world.lake.dropped_tables() == []
            else:
                assert world.lake.undrop(LOG).scan().count() == 3
                assert "is ahead of this server" in world.notes()[LOG]
    with World(tmp_path / "data", warehouse=str(tmp_path / "warehouse")) as world:
        assert world.read(LOG) == world.in_lake(LOG) == [1, 2, 3]


def test_a_folder_of_the_lake_is_made_once_and_a_file_is_not_looked_at_before_it_is_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(tmp_path / "data") as world:
        world.lake.create_table(LOG, SCHEMA)
        for number in range(6):
            world.lake.table(LOG).append(rows(number))
            world.tier(LOG)
        made: list[Path] = []
        mkdir = Path.mkdir

        def counted(self: Path, *said: Any, **named: Any) -> None:
            made.append(self)
            mkdir(self, *said, **named)

        monkeypatch.setattr(Path, "mkdir", counted)
        looked: list[Path] = []
        exists = Path.exists
        monkeypatch.setattr(Path, "exists", lambda self: (looked.append(self), exists(self))[1])  # type: ignore[func-returns-value]
        stage = backup.hold(world.engine.view, world.server.about["warehouse"], world.engine.folder)
        monkeypatch.undo()
        assert looked == []
        held = {path for path in stage.rglob("*") if path.is_file()}
        assert len(held) > 15
        assert all(path.stat().st_nlink == 2 for path in held if path.suffix != ".json")
        assert len(made) <= len({path.parent for path in held}) + len(stage.relative_to(tmp_path).parts) + 4
        backup.release(world.engine.folder)
