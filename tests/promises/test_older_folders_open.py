"""Folders of this release and the one before open, read and go on; others are refused with the release to run."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

import lakestore as ls
from lakestore.errors import Invalid, NewerFormat
from lakestore.rows.ipc import crc32c
from lakestore.union.verify import verify
from lakestore_server.files import checkpoint
from lakestore_server.index.run_file import EMPTY_LSN
from tests.support import golden, golden_replica
from tests.support.waiting import until

HEADER = struct.Struct("<IHHQI")
"""Of a checkpoint."""
REPLICAS = sorted(golden.FOLDER.glob("replica-*.tar.xz"))
ARCHIVES = sorted(golden.FOLDER.glob("data-*.tar.xz"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name)
def test_a_folder_of_an_earlier_release_opens_and_goes_on(archive: Path, tmp_path: Path) -> None:
    data = golden.unpacked(archive, tmp_path)
    said = json.loads(archive.with_name(archive.name.replace(".tar.xz", ".json")).read_text())
    with ls.open(data) as lake:
        assert golden.contents(lake) == said
        orders = lake.table("shop.orders")
        key = orders.definition.primary_key[0]
        first = orders.scan().to_arrow().slice(0, 1)
        orders.upsert(first)
        orders.delete(first.select([key]))
        lake.table("shop.events").append(lake.table("shop.events").scan().to_arrow().slice(0, 5))
    with ls.open(data) as lake:
        assert lake.table("shop.orders").scan().count() == said["shop.orders"]["rows"] - 1
        assert lake.table("shop.events").scan().count() == said["shop.events"]["rows"] + 5
        for name in golden.TABLES:
            assert verify(lake.transport, name).same


@pytest.mark.parametrize("archive", REPLICAS, ids=lambda archive: archive.name)
def test_a_replica_of_an_earlier_release_follows_leads_and_is_copied(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    data = golden.unpacked(archive, tmp_path / "old")
    said = json.loads(archive.with_name(archive.name.replace(".tar.xz", ".json")).read_text())
    with golden_replica.opened(data, tmp_path) as replicas:
        replicas.start_on(data)
        until(lambda: replicas.leader() is not None, "a leader")
        with ls.connect(replicas.address(0)) as lake:
            assert golden.contents(lake) == said
            lake.table("shop.events").append(lake.table("shop.events").scan().to_arrow().slice(0, 5))
        replicas.start_on(tmp_path / "new")
        first, second = (server.engine for server in replicas.servers)
        until(lambda: second.view.lsn == first.view.lsn, "the new server has every commit")
        with ls.connect(replicas.address(1)) as lake:
            assert lake.table("shop.events").scan().count() == said["shop.events"]["rows"] + 5
            for name in golden.TABLES:
                assert verify(lake.transport, name).same


def _newer(file: Path) -> None:
    """Give a file a version that nobody knows yet, as the release that knows it would."""
    raw = bytearray(file.read_bytes())
    struct.pack_into("<H", raw, 4, 9)
    if file.name.startswith("journal-"):
        struct.pack_into("<I", raw, 16, crc32c(bytes(raw[:16])))
    if file.name.startswith("checkpoint-"):
        struct.pack_into("<H", raw, 6, 0)
        struct.pack_into("<H", raw, 6, crc32c(bytes(raw[: HEADER.size])) & 0xFFFF or 1)
    file.write_bytes(bytes(raw))


@pytest.mark.parametrize("kind", ["checkpoint-*", "journal-*", "segments/*/*.seg"])
def test_a_format_from_the_future_names_the_release_to_run(kind: str, tmp_path: Path) -> None:
    data = golden.unpacked(ARCHIVES[0], tmp_path)
    ls.open(data).close()
    (data / "release").write_text("7.1.0\n")
    file = next(data.glob(kind))
    _newer(file)
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    with pytest.raises(NewerFormat, match=r"has format version 9 .*\(release 7\.1\.0 opened") as error:
        ls.open(data)
    assert file.name in error.value.message
    after = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    locks = {"lock", "lock.mdb"}
    assert {path: text for path, text in after.items() if path.name not in locks} == {
        path: text for path, text in before.items() if path.name not in locks
    }


def test_a_newer_checkpoint_is_not_passed_over_for_an_older_one(tmp_path: Path) -> None:
    data = golden.unpacked(ARCHIVES[0], tmp_path)
    old = next(data.glob("checkpoint-*"))
    new = data / "checkpoint-00000000000000000099"
    new.write_bytes(old.read_bytes())
    _newer(new)
    with pytest.raises(NewerFormat, match="checkpoint-00000000000000000099"):
        ls.open(data)


def _as_first_release(file: Path, *, with_tables: bool) -> None:
    """Leave out of a checkpoint what release 0.1 did not write: subscriptions, and versions of tables."""
    raw = file.read_bytes()
    magic, version, flags, _, _ = HEADER.unpack_from(raw)
    data = json.loads(raw[HEADER.size :])
    if with_tables:
        for table in data["tables"]:
            del table["versions"]
    else:
        data["tables"] = []
        del data["subscriptions"]
    body = json.dumps(data).encode()
    file.write_bytes(HEADER.pack(magic, version, flags, len(body), crc32c(body)) + body)


@pytest.mark.parametrize("kind", ["checkpoint", "checkpoint without tables", "journal"])
def test_a_folder_of_the_first_release_is_refused_with_the_release_to_run(kind: str, tmp_path: Path) -> None:
    """Its checkpoint has no versions of tables, and its journal no header; nothing is changed."""
    data = golden.unpacked(ARCHIVES[0], tmp_path)
    if kind != "journal":
        _as_first_release(next(data.glob("checkpoint-*")), with_tables=kind == "checkpoint")
    else:
        journal = next(data.glob("journal-*"))
        journal.write_bytes(journal.read_bytes()[64:])
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    why = r"was written by release 0\.1: open its folder once with release 0\.2"
    with pytest.raises(Invalid, match=f"{kind.split()[0]}.* {why}"):
        ls.open(data)
    assert before == {path: path.read_bytes() for path in data.rglob("*") if path.is_file() and path.name != "lock"}


def test_runs_of_the_release_before_are_no_index_without_its_lmdb(tmp_path: Path) -> None:
    """Release 0.3.0 kept keys in runs and in LMDB: without the LMDB file its runs are a part of an index."""
    (archive,) = (archive for archive in ARCHIVES if "0.3.0" in archive.name)
    data = golden.unpacked(archive, tmp_path)
    newest = max(data.glob("checkpoint-*"))
    assert b'"index":' in newest.read_bytes()
    assert checkpoint.decode(newest.read_bytes(), newest.name).index_lsn == EMPTY_LSN
