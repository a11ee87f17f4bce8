"""Folders of earlier releases open, read and go on; what a newer one wrote is refused with the release to run."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

import lakestore as ls
from lakestore.errors import NewerFormat
from lakestore.rows.ipc import crc32c
from lakestore.union.verify import verify
from tests.support import golden

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


def _newer(file: Path) -> None:
    """Give a file a version that nobody knows yet, as the release that knows it would."""
    raw = bytearray(file.read_bytes())
    struct.pack_into("<H", raw, 4, 9)
    if file.name.startswith("journal-"):
        struct.pack_into("<I", raw, 16, crc32c(bytes(raw[:16])))
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
