"""Presenting a table of very many files: the cost of a cut follows what is new, counted in files that are opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.iceberg import offset_cache, places
from lakestore.iceberg.manifest_entries import Entries
from lakestore.iceberg.manifest_lists import read_list
from lakestore.iceberg.manifests import File
from lakestore.iceberg.offset_cache import DataFile, FileOffsets, read_offsets
from lakestore_server.snapshots.builder import SnapshotBuilder
from lakestore_server.snapshots.messages import Base
from tests.support.many_files import LAKE, SCHEMA, ManyFiles
from tests.support.presenting import Presenting
from tests.support.served import Served

FILES, ROWS, PER_MANIFEST = 2_000, 5, 100


class Opened:
    """The files that are opened, by kind."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.manifests: list[str] = []
        self.data: list[str] = []
        self.decoded = 0
        read, entry = places.read, Entries.read

        def counted(location: str) -> bytes:
            if location.endswith(".avro"):  # small data files are read whole too
                self.manifests.append(location)
            return read(location)

        def indexed(file: DataFile, group: str) -> FileOffsets:
            self.data.append(file.path)
            return read_offsets(file, group)

        def decoded(self_: Entries, place: int) -> object:
            self.decoded += 1
            return entry(self_, place)

        patch.setattr(places, "read", counted)
        patch.setattr(offset_cache, "read_offsets", indexed)
        patch.setattr(Entries, "read", decoded)

    def since(self) -> tuple[int, int, int]:
        """Numbers of manifests and lists, of data files, and of decoded entries, since the last question."""
        found = len(self.manifests), len(self.data), self.decoded
        self.manifests, self.data, self.decoded = [], [], 0
        return found


def rows(ids: list[int] | range) -> pa.Table:
    count = len(ids)
    columns = [pa.array(ids, pa.int64()), pa.array([0] * count, pa.int32()), pa.array(ids, pa.int64())]
    return pa.table([*columns, pa.array([0.5] * count)], schema=SCHEMA)


@pytest.mark.parametrize("form", [2, 3])
def test_a_cut_opens_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: int) -> None:
    with Served(tmp_path / "data") as served:
        (tmp_path / "lake").mkdir()
        presenting = Presenting(served, tmp_path / "lake")
        table = served.lake.create_table("a.big", SCHEMA, primary_key=["id"], buckets=1, lake=LAKE)
        table.upsert(rows(range(FILES * ROWS)))
        folder = f"file://{tmp_path}/lake"
        many = ManyFiles.of(served.state("a.big").table, folder, FILES, 200, rows=ROWS, files_per_manifest=PER_MANIFEST)
        for number in (3, 700, 1_999, 42, 43):
            many.write(number)
        listed = many.snapshot(7)
        number = served.tier("a.big")
        presenting.bases[number] = Base(listed, number, 2, 1)
        presenting.presenter = SnapshotBuilder("run-0")
        opened = Opened(monkeypatch)

        presenting.present("a.big", form=form)
        assert opened.since() == (1, 0, 0), "nothing died: the list is all"
        table.upsert(rows([3 * ROWS, 700 * ROWS + 1, FILES * ROWS - 1]))
        answer, _ = presenting.present("a.big", form=form)
        assert (answer.rows, answer.deleted_rows) == (3, 3)
        assert opened.since() == (FILES // PER_MANIFEST, 3, 3)
        table.upsert(rows([42 * ROWS]))
        answer, _ = presenting.present("a.big", form=form)
        assert answer.deleted_rows == 4
        manifests, data, decoded = opened.since()
        assert (data, decoded) == (1, 1)
        assert manifests == 0
        presenting.present("a.big", form=form)
        assert opened.since() == (0, 0, 0)

        # A round's commit: a new manifest with the hot rows, and deletes of what they supersede.
        gone = many.manifests(map(many.delete_of, (3, 42, 700, 1_999)), 8, 2)
        more = many.next_snapshot(listed, 8, [_hot(many)], also=gone)
        number = served.tier("a.big")
        presenting.bases[number] = Base(more, number, 2, 2)
        opened.since()
        table.upsert(rows([43 * ROWS + 2]))
        answer, _ = presenting.present("a.big", form=form)
        assert answer.deleted_rows == 1
        manifests, data, decoded = opened.since()
        assert manifests == 3, "the list and the two new manifests"
        assert (data, decoded <= 2) == (1, True)
        presenting.presenter.tidy()
        presenting.presenter.close()


def _hot(many: ManyFiles) -> File:
    """The file of the four hot rows, behind all others."""
    return replace(many.file(FILES), rows=4)


def test_vectors_that_stay_are_not_decoded_for_those_that_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 300
    with Served(tmp_path / "data") as served:
        (tmp_path / "lake").mkdir()
        presenting = Presenting(served, tmp_path / "lake")
        table = served.lake.create_table("a.big", SCHEMA, primary_key=["id"], buckets=1, lake=LAKE)
        table.upsert(rows(range(count * ROWS)))
        table.delete(pa.table({"id": [number * ROWS + ROWS - 1 for number in range(count)]}))
        folder, definition = f"file://{tmp_path}/lake", served.state("a.big").table
        many = ManyFiles.of(definition, folder, count, 30, rows=ROWS, files_per_manifest=PER_MANIFEST, format=3)
        data = many.manifests(map(many.file, range(count)), 7, 1)
        runs = [range(begin, begin + PER_MANIFEST) for begin in range(0, count, PER_MANIFEST)]
        gone = many.manifests((each for run in runs for each in many.vectors(run, f"gone-{run.start}")), 7, 1)
        number = served.tier("a.big")
        presenting.bases[number] = Base(many.listed([*data, *gone], 7, 1), number, 3, 1, count * ROWS)
        for dead in (3, 142):
            many.write(dead)
        table.upsert(rows([3 * ROWS, 142 * ROWS]))
        opened = Opened(monkeypatch)
        answer, _ = presenting.present("a.big", form=3)
        _, files, decoded = opened.since()
        assert (answer.deleted_rows, files) == (2, 2)
        assert decoded <= 2 * 3
        deletes = [each for each in read_list(places.read(answer.manifest_list), "list") if each.content]
        found = [entry.file for each in deletes for entry in Entries(places.read(each.path), each)]
        assert len({each.referenced_data_file for each in found}) == len(found) == count
        assert sum(each.rows for each in found) == count + 2
        assert sum((each.added_rows or 0) + (each.existing_rows or 0) for each in deletes) == count + 2
        presenting.presenter.close()
