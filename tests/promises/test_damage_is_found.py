"""Flipped bits in every kind of file: found by name, never served, never deleted; shown by `lakestore inspect`."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lakestore as ls
from lakestore.cli.main import cli
from lakestore.errors import Corrupt, LakestoreError, NewerFormat
from lakestore.limits import Limits
from lakestore.union.verify import verify
from lakestore_server.duties import scrub
from lakestore_server.files import checkpoint
from lakestore_server.files.segment import Segment
from lakestore_server.files.shared_file import SharedFile
from lakestore_server.host.disk import RealDisk
from lakestore_server.index.entry import ALL_TABLES
from lakestore_server.index.key_index import Index
from lakestore_server.index.overlay import Overlay
from tests.support.journal_end import rows_end
from tests.support.seeds import seeded
from tests.support.segment_places import damage_segment, places
from tests.support.served import Served
from tests.support.waiting import until

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
FLIPS = int(os.environ.get("LAKESTORE_FLIPS", "4"))
KEYED = [{"id": i, "name": f"row {i}"} for i in range(40)]


def written(folder: Path) -> None:
    """Two checkpointed tables, and a journal behind the checkpoint."""
    with Served(folder) as served:
        lake = served.lake
        lake.create_table("a.keyed", SCHEMA, primary_key=["id"], buckets=1).upsert(KEYED)
        lake.create_table("a.log", SCHEMA, buckets=1).append([{"id": 1, "name": "x" * 5000}])
        served.checkpoint()
        lake.table("a.keyed").upsert([{"id": 0, "name": "newer"}])
        lake.table("a.log").append([{"id": 2, "name": "y" * 5000}])
        served.server.close(checkpoint=False)


def read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """All rows, as a server on this folder serves them."""
    with Served(folder) as served:
        lake = served.lake
        found = {
            table.name: sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])
            for table in lake.tables()
        }
        served.server.close(checkpoint=False)
    return found


@pytest.fixture(scope="module", name="whole")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "data"
    written(folder)
    return folder


@pytest.fixture(name="right")
def _right(whole: Path, tmp_path: Path) -> dict[str, list[dict[str, Any]]]:
    shutil.copytree(whole, tmp_path / "right")
    return read(tmp_path / "right")


def files(folder: Path) -> dict[str, bytes]:
    """Journal, checkpoints and segments."""
    kinds = ("journal-*", "checkpoint-*", "segments/*/*.seg")
    return {str(path.relative_to(folder)): path.read_bytes() for kind in kinds for path in folder.glob(kind)}


def flips(data: bytes, chance: random.Random, count: int = FLIPS) -> Iterator[bytes]:
    """The data with one bit changed, again and again."""
    for _ in range(count):
        raw = bytearray(data)
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        yield bytes(raw)


@pytest.mark.parametrize("kind", ["journal-", "checkpoint-", "segments/"])
def test_a_flipped_bit_is_never_served_and_nothing_is_deleted(
    whole: Path, tmp_path: Path, right: dict[str, list[dict[str, Any]]], kind: str
) -> None:
    chance = seeded(kind)
    refused = 0
    (name, *_) = sorted((name for name in files(whole) if name.startswith(kind)), key=lambda n: -len(files(whole)[n]))
    for n, damaged in enumerate(flips(files(whole)[name], chance)):
        folder = tmp_path / str(n)
        shutil.copytree(whole, folder)
        (folder / name).write_bytes(damaged)
        try:
            found = read(folder)
        except NewerFormat:
            refused += 1
        except LakestoreError as error:
            refused += 1
            assert isinstance(error, Corrupt)
            assert Path(name).name in error.message, error.message
            assert "restore it from a copy" in error.message, error.message
        else:
            whole_prefix = kind == "journal-" and all(
                row in right[table] or row in KEYED for table in found for row in found[table]
            )
            assert found == right or whole_prefix, "a wrong value was served"
        assert (folder / name).exists(), "nothing is deleted"
        shutil.rmtree(folder)
    assert refused or FLIPS < 25


def test_no_flipped_bit_of_a_format_goes_unseen(whole: Path, tmp_path: Path) -> None:
    """By the formats alone, so that many are tried: it is found, or what is read has not changed."""
    chance = seeded(3)
    (name,) = (name for name in files(whole) if name.startswith("checkpoint-"))
    right = checkpoint.decode(files(whole)[name], name)
    for damaged in flips(files(whole)[name], chance, 300):
        try:
            assert checkpoint.decode(damaged, name) == right
        except (Corrupt, NewerFormat):
            continue
    (uuid,) = (entry.table.uuid for entry in right.tables if entry.table.name == "a.log")
    ((path, at, size),) = places(whole, uuid)
    rows = [piece.load() for piece in log_segment(path, at, size).batches()]
    copy = tmp_path / path.name
    for damaged in flips(path.read_bytes(), chance, 300):
        copy.write_bytes(damaged)
        try:
            segment = log_segment(copy, at, size)
            assert [piece.load() for piece in segment.batches()] == rows
        except (Corrupt, NewerFormat):
            continue
        assert not [damage for _, damage in segment.scrub() if damage], "the scrub cries wolf"


@pytest.mark.parametrize("release", ["0.3", "this"])
def test_each_flipped_bit_of_a_checkpoints_header_is_damage(whole: Path, release: str) -> None:
    """No other version, which would be refused by name: then an older checkpoint would not be tried."""
    (name,) = (name for name in files(whole) if name.startswith("checkpoint-"))
    raw = bytearray(files(whole)[name])
    if release == "0.3":
        raw[6:8] = bytes(2)  # no check of the header
        assert checkpoint.decode(bytes(raw), name) == checkpoint.decode(files(whole)[name], name)
    for bit in range(20 * 8):
        raw[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt, match=f"{name} is damaged"):
            checkpoint.decode(bytes(raw), name)
        raw[bit // 8] ^= 1 << bit % 8


def log_segment(path: Path, at: int, size: int) -> Segment:
    """A segment of a shared file."""
    return Segment(RealDisk(), path, lambda _: SCHEMA, keyed=False, part=SharedFile(RealDisk(), path).part(at, size))


def test_a_damaged_last_frame_alone_is_a_torn_tail_and_one_before_it_is_damage(whole: Path, tmp_path: Path) -> None:
    (name,) = (name for name in files(whole) if name.startswith("journal-"))
    data = files(whole)[name]
    for n, at in enumerate((rows_end(data) - 100, 200)):
        shutil.copytree(whole, tmp_path / str(n))
        raw = bytearray(data)
        raw[at] ^= 4
        (tmp_path / str(n) / name).write_bytes(raw)
    assert len(read(tmp_path / "0")["a.log"]) == 1
    with pytest.raises(Corrupt, match=f"{name} is damaged at byte 64"):
        read(tmp_path / "1")
    assert len((tmp_path / "1" / name).read_bytes()) == len(data), "nothing was changed"


def test_an_older_damaged_checkpoint_does_no_harm_and_the_only_one_is_refused(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "data")
    (newest,) = (tmp_path / "data").glob("checkpoint-*")
    older = newest.with_name("checkpoint-00000000000000000001")
    older.write_bytes(b"damaged")
    assert read(tmp_path / "data")
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(Corrupt, match="checkpoint"):
        read(tmp_path / "data")


def test_the_deep_check_reads_every_byte_and_names_what_is_damaged(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "data")
    with ls.open(tmp_path / "data") as lake:
        for name in ("a.keyed", "a.log"):
            found = verify(lake.transport, name, deep=True)
            assert found.same
            assert found.bytes_checked > sum(len(data) for n, data in files(whole).items() if n.startswith("journal"))
        path = damage_segment(tmp_path / "data", lake.table("a.log").definition.uuid)
        found = verify(lake.transport, "a.log", deep=True)
        assert not found.same
        assert any(path.name in sentence for sentence in found.problems())
        with pytest.raises(Corrupt, match=path.name):
            lake.table("a.log").scan().to_arrow()
        assert verify(lake.transport, "a.keyed", deep=True).same
        (newest,) = (tmp_path / "data").glob("checkpoint-*")
        newest.write_bytes(newest.read_bytes()[:-1] + b"?")
        assert any(newest.name in each for each in verify(lake.transport, "a.keyed", deep=True).damage)


def test_the_scrub_finds_what_nobody_reads(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "data")
    with Served(tmp_path / "data") as served:
        lake = served.lake
        scrubber = served.server.upkeep.scrubber
        assert lake.table("a.log").scan().count() == 2
        rate: list[int] = []
        assert not scrubber.run_once(rate.append)
        assert sum(rate) > 5000, "every byte goes through the rate"
        path = damage_segment(tmp_path / "data", lake.table("a.log").definition.uuid)
        assert [path.name in sentence for sentence in scrubber.run_once()] == [True]
        assert scrubber.damage
        with pytest.raises(Corrupt, match=path.name):
            lake.table("a.log").scan().to_arrow()


def test_the_scrub_runs_by_itself_at_its_rate_unless_switched_off(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "FIRST_SECONDS", 0.0)
    shutil.copytree(whole, tmp_path / "data")
    with Served(tmp_path / "data", limits=Limits(scrub_bytes=1 << 20)) as served:
        scrubber = served.server.upkeep.scrubber
        until(lambda: scrubber.rounds, "a round of the scrub")
        assert scrubber.bytes > 5000
    with Served(tmp_path / "data", limits=Limits(scrub_bytes=1)) as served:
        assert served.server.upkeep.scrubber.rounds == 0, (
            "one byte a second takes longer, and closing does not wait for it"
        )
    with Served(tmp_path / "data", limits=Limits(scrub_bytes=0)) as served:
        assert not served.server.upkeep.scrubber.is_on


def test_the_scrub_ends_in_the_middle_of_a_table(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "FIRST_SECONDS", 0.0)
    shutil.copytree(whole, tmp_path / "data")
    with Served(tmp_path / "data", limits=Limits(scrub_bytes=1)) as served:
        scrubber = served.server.upkeep.scrubber
        until(lambda: scrubber.bytes, "the first bytes")
        scrubber.close()
        assert (scrubber.bytes, scrubber.rounds) < (5000, 1), "a table may be as large as the disk"


@pytest.mark.parametrize("offset", [-1, 7], ids=["lost", "wrong"])
def test_the_scrub_finds_an_index_that_differs_from_the_log_and_it_is_rebuilt(
    whole: Path, tmp_path: Path, offset: int
) -> None:
    """Entries with good checks, so that only the sums tell."""
    shutil.copytree(whole, tmp_path / "data")
    with Served(tmp_path / "data") as served:
        lake = served.lake
        engine, table = served.engine, lake.table("a.keyed")
        index: Index = engine.index
        keys, _ = next(index._overlay.parts())
        served.checkpoint()
        wrong = Overlay()
        wrong.put(keys.ascending().part(slice(1)), np.array([offset]))
        index._merged.merge(lambda: wrong, engine.view.lsn, ALL_TABLES)
        with index.lock:
            index._merged.adopt()
        (sentence,) = served.server.upkeep.scrubber.run_once()
        assert "a.keyed" in sentence
        until(lambda: index.ready, "the rebuilt index")
        assert not served.server.upkeep.scrubber.run_once()
        assert table.lookup(pa.table({"id": [0]}))["name"].to_pylist() == ["newer"]


def test_inspect_describes_a_data_folder_and_what_is_damaged_in_it(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "data")
    run = CliRunner()
    shown = run.invoke(cli, ["inspect", str(tmp_path / "data"), "--json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.output)
    kinds = ["checkpoint", "shared segment file", "segment", "segment", "journal", "index run"]
    assert [each["kind"] for each in found] == kinds
    (journal,) = (each for each in found if each["kind"] == "journal")
    assert [(frame["rows"], frame["crc"]) for frame in journal["parts"]] == [(1, "ok"), (1, "ok")]
    assert {each["table"] for each in found if each["kind"] == "segment"} == {"a.keyed", "a.log"}
    assert found[-1]["entries"] == 40
    assert all(each["whole"] for each in found)
    before = files(tmp_path / "data")
    rows = run.invoke(cli, ["inspect", str(tmp_path / "data"), "--rows"])
    assert '"newer"' in rows.output
    assert '"row 39"' in rows.output
    assert before == files(tmp_path / "data"), "a look changes nothing"
    path = tmp_path / "data" / next(name for name in before if name.startswith("journal"))
    path.write_bytes(path.read_bytes()[:64] + b"?" + path.read_bytes()[65:])
    damaged = run.invoke(cli, ["inspect", str(path)])
    assert damaged.exit_code == 1
    assert "damaged at byte 64" in damaged.output
    assert "frames" in damaged.output
    assert run.invoke(cli, ["inspect", str(tmp_path)]).exit_code == 1
