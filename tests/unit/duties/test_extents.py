"""Rows of a log are written once: large parts stay where the journal wrote them, and are read as ever."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from lakestore.cli.main import cli
from lakestore.errors import Corrupt
from lakestore.evolution import AddColumn
from lakestore.limits import Limits
from lakestore.rows.ipc import crc32c
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.files import segment
from lakestore_server.files import segment as segment_file
from lakestore_server.files.data_folder import EXTENTS, SEGMENTS
from lakestore_server.files.journal_file import names
from lakestore_server.files.segment import BLOCK, BlockChecks, Segment, block_crcs, extended, joined
from lakestore_server.host import uncached_file
from lakestore_server.host.crash_points import CrashPoint
from lakestore_server.host.disk import RealDisk
from lakestore_server.operate.restore import restore, without_base
from lakestore_server.operate.status import kept_bytes
from lakestore_server.state.state import State
from lakestore_server.state.view import View
from tests.support.journal_end import rows_end
from tests.support.served import Served
from tests.support.world.disk import SimDisk

SCHEMA = pa.schema([("v", pa.binary())])
LIMITS = Limits(extent_bytes=2_000, extent_file_percent=50, compressed_percent=80)
FILLED = uncached_file.BLOCK
"""Zeros that may fill the last block of a journal file up."""
CHANCE = random.Random(15)


def random_rows(count: int = 20) -> list[bytes]:
    return [CHANCE.randbytes(500) for _ in range(count)]


def kept(folder: Path) -> list[Path]:
    return sorted((folder / SEGMENTS / EXTENTS).glob("*")) if (folder / SEGMENTS / EXTENTS).exists() else []


def append(served: Served, rows: list[bytes], name: str = "a.log") -> list[bytes]:
    served.lake.table(name).append(pa.table({"v": rows}, schema=SCHEMA))
    return rows


def read(served: Served, name: str = "a.log") -> list[bytes]:
    found: list[bytes] = served.lake.table(name).scan().to_arrow()["v"].to_pylist()
    return found


def segments(served: Served) -> list[Segment]:
    logs = (log for state in served.engine.view.tables.values() for log in state.logs)
    return [chunk for log in logs for chunk in log.chunks if isinstance(chunk, Segment)]


@pytest.fixture(name="served")
def _served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data", limits=LIMITS) as served:
        served.lake.create_table("a.log", SCHEMA, buckets=1)
        yield served


def test_rows_that_do_not_compress_are_written_once(served: Served, tmp_path: Path) -> None:
    rows = [row for _ in range(5) for row in append(served, random_rows())]
    served.checkpoint()
    (file,) = kept(tmp_path / "data")
    (segment,) = segments(served)
    assert [extent is not None for _, extent in segment.pieces()] == [True] * 5
    assert segment.own_size < 1_500, "no row is in the segment itself"
    assert file.stat().st_size < 1.1 * sum(map(len, rows)) + FILLED
    assert file.stat().st_size < segment.size + 3_000 + FILLED
    assert read(served) == rows
    assert kept_bytes(served.engine.view) == file.stat().st_size
    served.server.close(checkpoint=False)
    served.start()
    assert read(served) == rows, "nothing of a kept file is replayed"
    assert names(RealDisk(), tmp_path / "data") != [], "the journal goes on beside"
    more = append(served, random_rows())
    served.checkpoint()
    (only,) = segments(served) if len(segments(served)) == 1 else [segments(served)[-1]]
    assert len(kept(tmp_path / "data")) == 2
    assert only.own_size < 1_500
    assert read(served) == rows + more


def test_extents_that_are_read_in_their_order_are_asked_for_before(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by whoever reads all columns again: they may have left the page cache since."""
    rows = [append(served, random_rows()) for _ in range(8)]
    served.checkpoint()
    (held,) = segments(served)
    size = len(rows[0]) * 500
    monkeypatch.setattr(segment, "AHEAD_BYTES", 3 * size)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(segment_file, "will_need", lambda data: asked.append((data.address, data.size)))
    for columns, count in (None, 7), (None, 14), (["v"], 14):
        for batch, expected in zip(held.batches(), rows, strict=True):
            assert batch.load(columns).column(0).to_pylist() == expected
        assert len(asked) == count, "each but the first, once"
    assert asked[:7] == asked[7:] == sorted(set(asked))
    extents = {extent.size for _, extent in held.pieces() if extent}
    assert {nbytes for _, nbytes in asked} == extents


def test_segments_that_are_merged_name_the_same_extents(served: Served, tmp_path: Path) -> None:
    rows = append(served, random_rows(10))
    served.checkpoint()
    before = kept(tmp_path / "data")[0].read_bytes()
    rows += append(served, random_rows(30))
    served.checkpoint()
    (merged,) = segments(served)
    assert [extent.file.name for _, extent in merged.pieces() if extent] == [
        path.name for path in kept(tmp_path / "data")
    ]
    assert kept(tmp_path / "data")[0].read_bytes() == before
    assert read(served) == rows
    served.restart()
    assert read(served) == rows
    assert not served.server.upkeep.scrubber.run_once()


def test_segments_that_move_to_another_shared_file_have_no_extent_read(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_again: list[int] = []
    for number in range(3):
        served.lake.create_table(f"a.other{number}", SCHEMA, buckets=1)
    rows = append(served, random_rows(40))
    append(served, random_rows(40), "a.other0")
    served.checkpoint()
    again = BlockChecks._again

    def told(checks: BlockChecks, piece: int) -> int:
        read_again.append(piece)
        return again(checks, piece)

    monkeypatch.setattr(BlockChecks, "_again", told)
    before = {segment.path for segment in segments(served)}
    append(served, random_rows(40), "a.other1")
    append(served, random_rows(40), "a.other2")
    served.checkpoint()
    assert before.isdisjoint({segment.path for segment in segments(served)}), "they lie in a new file"
    assert read_again == []
    assert read(served) == rows


def test_small_and_compressible_rows_are_gathered_among_the_others(served: Served, tmp_path: Path) -> None:
    rows: list[bytes] = []
    for step in range(8):  # sixteen commits, which are joined in memory
        rows += append(served, random_rows())
        rows += append(served, random_rows(1)) if step % 2 else append(served, [b"same" * 50] * 30)
    (log,) = (log for state in served.engine.view.tables.values() for log in state.logs)
    assert len(log.chunks) == 1
    served.checkpoint()
    (segment,) = segments(served)
    pieces = [extent is not None for _, extent in segment.pieces()]
    assert (pieces.count(True), pieces.count(False)) == (8, 8)
    assert read(served) == rows
    served.restart()
    assert read(served) == rows
    table = served.lake.table("a.log")
    assert [len(batch.to_arrow()) for batch in table.changes("earliest", until="now")] != []
    assert [
        row for batch in table.changes("earliest", until="now") for row in batch.to_arrow()["v"].to_pylist()
    ] == rows


def test_a_file_of_which_little_would_stay_is_not_kept(served: Served, tmp_path: Path) -> None:
    rows = append(served, random_rows())
    rows += append(served, [b"same" * 100] * 60)
    served.checkpoint()
    assert not kept(tmp_path / "data")
    assert read(served) == rows


def test_rows_of_an_earlier_version_of_the_table_stay_in_place(served: Served, tmp_path: Path) -> None:
    rows = append(served, random_rows())
    served.lake.table("a.log").alter(AddColumn("n", "int64"))
    table = served.lake.table("a.log")
    more = random_rows()
    table.append(pa.table({"v": more, "n": range(len(more))}))
    served.checkpoint()
    assert len(kept(tmp_path / "data")) == 1
    served.restart()
    found = served.lake.table("a.log").scan().to_arrow()
    assert found["v"].to_pylist() == rows + more
    assert found["n"].to_pylist() == [None] * len(rows) + list(range(len(more)))
    assert served.lake.table("a.log").scan(columns=["n"]).to_arrow()["n"].to_pylist() == found["n"].to_pylist()


def test_a_kept_file_goes_with_the_last_of_its_rows(served: Served, tmp_path: Path) -> None:
    append(served, random_rows())
    served.checkpoint()
    assert len(kept(tmp_path / "data")) == 1
    served.purge("a.log")
    served.checkpoint()
    assert kept(tmp_path / "data") == []


def test_rows_of_a_file_that_is_mostly_dead_are_gathered_so_that_it_goes(served: Served, tmp_path: Path) -> None:
    served.lake.create_table("a.gone", SCHEMA, buckets=1)
    rows: list[bytes] = []
    for _ in range(5):
        append(served, random_rows(30), "a.gone")
        rows += append(served, random_rows(10))
        served.checkpoint()
        assert read(served) == rows
    assert len(kept(tmp_path / "data")) == 5
    cut = served.engine.view
    served.purge("a.gone")
    served.checkpoint()
    assert kept(tmp_path / "data") == [], "a quarter of each file was named"
    assert read(served) == rows
    (log,) = (state for state in cut.tables.values() if state.table.name == "a.log")
    held = pa.concat_batches([batch for _, batch, _ in log.logs[0].rows(0, log.logs[0].head)])
    assert held["v"].to_pylist() == rows, "a reader of before keeps what it has mapped"
    served.restart()
    assert read(served) == rows


def test_a_checkpoint_gathers_no_more_than_it_may_read(tmp_path: Path) -> None:
    limits = Limits(extent_bytes=2_000, compaction_bytes=6_000)
    with Served(tmp_path / "data", limits=limits) as served:
        served.lake.create_table("a.log", SCHEMA, buckets=1)
        served.lake.create_table("a.gone", SCHEMA, buckets=1)
        rows: list[bytes] = []
        for _ in range(3):
            append(served, random_rows(30), "a.gone")
            rows += append(served, random_rows(10))
            served.checkpoint()
        served.purge("a.gone")
        left = []
        for _ in range(3):
            served.checkpoint()
            left.append(len(kept(tmp_path / "data")))
        assert left == [2, 1, 0]
        assert read(served) == rows


def inspected(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(CliRunner().invoke(cli, ["inspect", str(path), "--json"]).output)
    return found


def damaged(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def test_a_damaged_extent_is_named_and_never_served(served: Served, tmp_path: Path) -> None:
    append(served, random_rows())
    rows = append(served, random_rows(200))
    served.checkpoint()
    (file,) = kept(tmp_path / "data")
    second = [extent for _, extent in segments(served)[0].pieces() if extent][1]
    damaged(file, second.at + 70_000)
    (said,) = served.server.upkeep.scrubber.run_once()
    assert said == f"kept journal file {file.name} is damaged in block 1: restore it from a copy or a backup"
    with pytest.raises(Corrupt, match=f"kept journal file {file.name} is damaged in block 1"):
        read(served)
    served.server.close(checkpoint=False)
    served.start()
    with pytest.raises(Corrupt, match=f"kept journal file {file.name} is damaged in block 1"):
        read(served)
    shown = inspected(tmp_path / "data")
    assert [each["whole"] for each in shown if each["kind"] == "segment"] == [False]
    damaged(file, second.at + 70_000)
    damaged(file, 70)
    assert read(served)[20:] == rows, "frames around extents are of no use"
    assert not served.server.upkeep.scrubber.run_once()


def test_a_missing_or_shorter_file_is_refused_at_the_start(served: Served, tmp_path: Path) -> None:
    append(served, random_rows())
    served.checkpoint()
    (file,) = kept(tmp_path / "data")
    data = file.read_bytes()
    served.server.close(checkpoint=False)
    for rest in (data[:-1], b""):
        file.write_bytes(rest)
        with pytest.raises(Corrupt, match=f"kept journal file {file.name} is missing or cut short"):
            served.start()
    file.write_bytes(data)
    served.start()
    assert len(read(served)) == 20


def test_a_frame_of_before_the_start_that_is_damaged_is_not_relied_upon(served: Served, tmp_path: Path) -> None:
    """The rows are in memory, and go into a segment."""
    rows = append(served, random_rows(40))
    served.server.close(checkpoint=False)
    served.start()
    (journal, _) = names(RealDisk(), tmp_path / "data")
    path = tmp_path / "data" / journal
    damaged(path, rows_end(path.read_bytes()) - 100)
    served.checkpoint()
    assert kept(tmp_path / "data") == []
    assert read(served) == rows


def test_a_frame_that_is_damaged_before_its_checkpoint_is_found_by_its_own_checksums(
    served: Served, tmp_path: Path
) -> None:
    append(served, random_rows(400))
    (journal,) = names(RealDisk(), tmp_path / "data")
    damaged(tmp_path / "data" / journal, 150_000)
    served.checkpoint()
    with pytest.raises(Corrupt, match=f"kept journal file {kept(tmp_path / 'data')[0].name} is damaged in block 2"):
        read(served)


def test_a_frame_that_was_written_here_is_not_read_to_find_its_extents(served: Served, tmp_path: Path) -> None:
    """Its file went past the page cache; what it says of its rows is still in memory."""
    rows = append(served, random_rows(400))
    (journal,) = names(RealDisk(), tmp_path / "data")
    path = tmp_path / "data" / journal
    damaged(path, path.read_bytes().index(b'"rows":') + 60)
    served.checkpoint()
    assert len(kept(tmp_path / "data")) == 1
    assert read(served) == rows


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 3 * BLOCK + 17])
def test_checksums_of_blocks_and_of_all_bytes_are_made_in_one_pass(size: int) -> None:
    before, data = CHANCE.randbytes(99), CHANCE.randbytes(size)
    crc, found = extended(pa.py_buffer(data), crc32c(before))
    assert crc == crc32c(before + data)
    assert found.tolist() == block_crcs(pa.py_buffer(data)).tolist()
    assert found.tolist() == [crc32c(data[at : at + BLOCK]) for at in range(0, size, BLOCK)]
    assert joined(crc32c(before), pa.py_buffer(data), found) == crc


def test_a_log_that_a_restore_cut_shorter_is_written_anew(served: Served, tmp_path: Path) -> None:
    """Its chunks are neither in memory nor segments until then."""
    append(served, random_rows(40))
    served.checkpoint()
    rows = append(served, random_rows(30))
    served.checkpoint()
    (uuid,) = served.engine.view.tables

    def cut(state: State) -> View:
        tables = dict(state.view.tables)
        held = tables[uuid]
        tables[uuid] = replace(held, logs=tuple(without_base(log.from_lsn(2)) for log in held.logs))
        state.view = replace(state.view, tables=tables)
        return state.view

    served.engine.loop.exchange(cut)
    assert read(served) == rows
    more = append(served, random_rows())
    served.checkpoint()
    served.restart()
    assert read(served) == rows + more


class NoLinks(RealDisk):
    """A file system without hard links."""

    def link(self, source: Path, target: Path) -> bool:
        return False


def test_without_links_all_rows_are_gathered(tmp_path: Path) -> None:
    with Served(tmp_path / "data", limits=LIMITS, disk=NoLinks()) as served:
        served.lake.create_table("a.log", SCHEMA, buckets=1)
        rows = append(served, random_rows())
        served.checkpoint()
        assert kept(tmp_path / "data") == []
        assert read(served) == rows
        served.restart()
        assert read(served) == rows


def test_a_failed_checkpoint_keeps_no_file_and_the_next_one_does(tmp_path: Path) -> None:
    disk = SimDisk(tmp_path / "data")
    with Served(disk.root, limits=LIMITS, disk=disk) as served:
        served.lake.create_table("a.log", SCHEMA, buckets=1)
        rows = append(served, random_rows())
        disk.fail("create checkpoint")
        with pytest.raises(OSError, match="planted"):
            served.checkpoint()
        assert disk.reached[CrashPoint.EXTENTS_LINKED] == 1
        assert kept(disk.root) == []
        rows += append(served, random_rows())
        served.checkpoint()
        assert len(kept(disk.root)) == 2, "the rows lie in two files of the journal"
        assert read(served) == rows
        served.restart()
        assert read(served) == rows
    disk.close()


def test_keyed_rows_are_written_twice(served: Served, tmp_path: Path) -> None:
    """They are looked up one by one, and compacted."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.binary())])
    table = served.lake.create_table("a.keyed", schema, primary_key=["id"], buckets=1)
    table.upsert(pa.table({"id": range(20), "v": random_rows()}, schema=schema))
    served.checkpoint()
    assert kept(tmp_path / "data") == []


def test_a_backup_has_the_kept_files(served: Served, tmp_path: Path) -> None:
    rows = append(served, random_rows())
    served.checkpoint()
    rows += append(served, random_rows())
    backup = tmp_path / "backup"
    served.verbs("Backup").backup(pb.BackupRequest(folder=str(backup)))
    assert len(kept(backup)) == len(kept(tmp_path / "data")) > 0
    restore(backup, tmp_path / "restored")
    with Served(tmp_path / "restored", limits=LIMITS) as again:
        assert read(again) == rows
    path = kept(backup)[0]
    damaged(path, 5_000)
    with pytest.raises(Corrupt, match=path.name):
        restore(backup, tmp_path / "other")


def test_inspect_shows_kept_files_and_what_names_them(served: Served, tmp_path: Path) -> None:
    append(served, random_rows())
    served.checkpoint()
    (file,) = kept(tmp_path / "data")
    shown: list[dict[str, Any]] = json.loads(
        CliRunner().invoke(cli, ["inspect", str(tmp_path / "data"), "--json"]).output
    )
    (segment,) = (each for each in shown if each["kind"] == "segment")
    assert list(segment["bytes in kept journals"]) == [file.name]
    (journal,) = (each for each in shown if each["kind"] == "kept journal")
    assert journal["frames"] == 2
    (alone,) = inspected(file)
    assert alone["kind"] == "kept journal"
    (held,) = (each for each in shown if each["kind"] == "checkpoint")
    assert held["kept journals"] == {file.name: file.stat().st_size}
    file.unlink()
    shown = inspected(tmp_path / "data")
    assert any("is missing" in said for each in shown for said in each["damage"])
