"""Files that a read opens, chosen from many: the very ones that each file's own statistics leave, of few manifests."""

from __future__ import annotations

import random
import struct
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakestore.errors import Invalid
from lakestore.evolution import WidenColumn
from lakestore.iceberg import places
from lakestore.iceberg.delete_index import only_path
from lakestore.iceberg.manifest_entries import Entries
from lakestore.iceberg.manifests import (
    ADDED,
    DATA,
    EQUALITY_DELETES,
    POSITION_DELETES,
    Entry,
    File,
    described,
    write_manifest,
)
from lakestore.iceberg.position_deletes import PATH_ID
from lakestore.iceberg.transforms import groups
from lakestore.iceberg.values import Metrics, metrics
from lakestore.model.alteration import apply_steps
from lakestore.model.columns import LAKE_BUCKET, LAKE_FIELD_IDS, LAKE_OFFSET
from lakestore.model.table import Table, define
from lakestore.rows import condition_text
from lakestore.rows.ranges import OffsetSet, OffsetsFrom, all_meet, may_meet
from lakestore.union import lake_files, lake_snapshot
from lakestore.union.explanation import Figures
from lakestore.union.lake_files import LakeRead
from lakestore.union.lake_pruning import Partitions
from lakestore.union.lake_ranges import Fields, Hidden, RowNumbers
from lakestore.union.plan import ScanPart, TableScan
from lakestore_server.catalog.our_tables import first_metadata
from lakestore_server.snapshots.shape import Shape
from tests.support.many_files import LAKE, SCHEMA, ManyFiles
from tests.support.seeds import seeded

KINDS = pa.schema(
    [
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("s", pa.string()),
        ("m", pa.decimal128(9, 2)),
        ("f", pa.float64()),
    ]
)
OLDER_KINDS = pa.schema(
    [KINDS.field(name) for name in ("i", "d", "t", "s")]
    + [("l", pa.int32()), ("m", pa.decimal128(6, 2)), ("f", pa.float32())]
)
"""The types of the first version of a table, some of whose columns were widened to `KINDS`."""
WIDENED = [WidenColumn("l", "int64"), WidenColumn("m", "decimal(9,2)"), WidenColumn("f", "float64")]
LAYOUTS = [
    *([], ["i"], ["day(t)", "truncate(2, s)"], ["bucket(4, l)"], ["s", "month(d)"]),
    *(["m"], ["truncate(500, m)", "l"], ["bucket(3, m)"]),
]
CONDITIONS = (
    *("m = {i}", "m IN ({i}, {j}, 7.00)", "m = {i} OR l = {j}"),
    *("i = {i}", "i IN ({i}, {j}, 7)", "l > {i} AND l <= {j}", "l <> {i}", "NOT (i < {i})", "m < {i}", "f > {i}"),
    *("d >= DATE '{d}'", "d = DATE '{d}'", "t < TIMESTAMPTZ '{d} 12:00:00+00:00'", "s IS NULL", "i IS NOT NULL"),
    *("s = '{s}'", "s LIKE '{s}%'", "i = {i} OR s = '{s}'", "(i = {i} OR l = {j}) AND d < DATE '{d}'"),
    "i BETWEEN {i} AND {j} OR t IS NULL",
)


class Reads:
    """The files that are opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.opened: list[str] = []
        read = places.read

        def counted(location: str) -> bytes:
            self.opened.append(location)
            return read(location)

        patch.setattr(places, "read", counted)

    def since(self) -> int:
        """The number since the last question."""
        count, self.opened = len(self.opened), []
        return count


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    lake_snapshot.forget()


def planned(many: ManyFiles, scan: TableScan, text: str = "") -> list[str]:
    condition = condition_text.parse(text, many.table) if text else None
    return [path for path, _ in lake_files.planned(scan, condition)]


def test_a_plan_opens_what_is_new_and_what_can_hold_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = define("a.big", SCHEMA, lake=LAKE)
    many = ManyFiles.of(table, f"file://{tmp_path}", 2_000, 200, files_per_manifest=100)
    listed = many.snapshot(7)
    scan, reads = many.scan(listed, 7), Reads(monkeypatch)
    assert len(planned(many, scan, "part = 77")) == 10
    assert reads.since() == 3, "metadata, list and the one manifest with that partition"
    assert len(planned(many, scan, "part IN (77, 78, 150)")) == 30
    assert reads.since() == 1
    assert len(planned(many, scan, "sorted = 700")) == 2
    assert reads.since() == 18
    assert len(planned(many, scan)) == 2_000
    assert reads.since() == 0
    more = many.next_snapshot(listed, 8, [replace(many.file(770), path=f"{many.folder}/data/new.parquet")])
    later = many.scan(more, 8)
    reads.since()
    assert len(planned(many, later)) == 2_001
    assert reads.since() == 3, "metadata, list and the new manifest"
    assert len(planned(many, later, "part = 77 AND sorted = 770")) == 2
    assert reads.since() == 0


def test_few_files_of_many_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = define("a.big", SCHEMA, lake=LAKE)
    many = ManyFiles.of(table, f"file://{tmp_path}", 1_000, 10, files_per_manifest=500)
    scan = many.scan(many.snapshot(7, deletes=range(0, 1_000, 2)), 7)
    decoded: list[int] = []
    entry = Entries.read

    def counted(self: Entries, place: int) -> Entry:
        decoded.append(place)
        return entry(self, place)

    monkeypatch.setattr(Entries, "read", counted)
    condition = condition_text.parse("part = 3 AND sorted BETWEEN 320 AND 329", table)
    read = LakeRead.of(scan, condition, Figures())
    assert (len(read.files), len(decoded)) == (11, 0), "files are chosen by their figures"
    assert [len(each.deletes) for each in read.files] == [0, *[1, 0] * 5]
    decoded.clear()
    assert all(each.deletes[0].referenced_data_file == each.file.path for each in read.files if each.deletes)
    assert len(decoded) == 11, "deletes stay"
    decoded.clear()
    assert read.figures.files_pruned == 1_000 - 11
    assert len(planned(many, scan)) == 1_000
    assert not decoded, "path and size are figures"
    paths = [many.file(number).path for number in (5, 6)]
    part = replace(scan, part=ScanPart(frozenset(paths), ()))
    assert [each.file.path for each in LakeRead.of(part, None, Figures()).files] == paths
    assert len(decoded) == 2 + 1


def test_equality_deletes_are_refused_by_name(tmp_path: Path) -> None:
    table = define("a.big", SCHEMA, lake=LAKE)
    many = ManyFiles.of(table, f"file://{tmp_path}", 10, 2)
    bad = replace(many.delete_of(3), content=EQUALITY_DELETES, path="eq.parquet", equality_ids=(1,))
    manifests = [*many.manifests(map(many.file, range(10)), 7, 1), *many.manifests([many.delete_of(1), bad], 7, 2)]
    with pytest.raises(Invalid, match=r"lake table a\.big cannot be read: eq\.parquet, of another engine"):
        planned(many, many.scan(many.listed(manifests, 7, 2), 7), "part = 0")


def _rows(chance: random.Random, count: int) -> pa.Table:
    day, begin = date(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)
    base = chance.randrange(40)

    def some(value: Any) -> Any:
        return None if chance.random() < 0.15 else value

    near = [base + chance.randrange(6) for _ in range(count)]
    columns = {
        "i": [some(n - 10) for n in near],
        "l": [some(n * 3) for n in near],
        "d": [some(day + timedelta(days=n)) for n in near],
        "t": [some(begin + timedelta(hours=n * 7)) for n in near],
        "s": [some(f"{chr(97 + n // 4)}{n}" * chance.choice([1, 9])) for n in near],
        "m": [some(n) for n in near],
        "f": [some(float("nan") if chance.random() < 0.1 else n / 2) for n in near],
    }
    return pa.table({name: pa.array(held, KINDS.field(name).type) for name, held in columns.items()})


def _versions(layout: list[str]) -> tuple[Table, Table]:
    """The first version of a table, and the one whose columns were widened."""
    first = define("a.t", OLDER_KINDS, lake={"partition_by": layout})
    return first, apply_steps(first, WIDENED)


def _lake(chance: random.Random, versions: tuple[Table, Table], folder: Path) -> tuple[TableScan, dict[str, pa.Table]]:
    """A snapshot of some files with real statistics, in some manifests of either version; and the rows of each file."""
    documents = [first_metadata(version, f"file://{folder}", 1) for version in versions]
    many = ManyFiles(versions[-1], f"file://{folder}/{chance.random()}", 0, 1, document=documents[-1])
    manifests, held = [], {}
    for number in range(chance.randint(1, 4)):
        version = chance.randrange(2)
        schema, spec = documents[version]["schemas"][0], documents[version]["partition-specs"][0]
        shape = Shape(versions[version], schema, spec, {"spec-id": 1, "fields": []})
        wanted = [field for field in shape.arrow if not field.name.startswith("__")]
        entries: list[Entry] = []
        for place in range(chance.randint(1, 6)):
            rows = _rows(chance, chance.randint(1, 5)).select([field.name for field in wanted]).cast(pa.schema(wanted))
            for partition, own in groups(rows, spec, schema):
                part = rows if own is None else rows.take(pa.array(own))
                path = f"{many.folder}/{number}-{place}-{len(entries)}.parquet"
                said = metrics(part) if chance.random() < 0.9 else metrics(part.select([]))
                held[path] = part.cast(pa.schema([KINDS.field(field.name) for field in wanted]))
                file = File(content=DATA, path=path, format="PARQUET", spec_id=0, partition=partition,
                            rows=part.num_rows, bytes=9, metrics=_numbered(chance, said))  # fmt: skip
                entries.append(Entry(ADDED, 7, chance.randint(1, 3), 1, file))
        asked: dict[str, Any] = {"content": DATA, "schema": schema, "spec": spec}
        data = write_manifest(entries, **asked, format_version=2)
        place_ = f"{many.folder}/m{number}.avro"
        places.write(place_, data)
        manifests.append(described(place_, len(data), entries, **asked, snapshot_id=7, sequence=1))
        deletes = [_delete_of(chance, each.file) for each in entries if chance.random() < 0.4]
        asked["content"] = 1
        data, place_ = write_manifest(deletes, **asked, format_version=2), f"{many.folder}/d{number}.avro"
        places.write(place_, data)
        manifests.append(described(place_, len(data), deletes, **asked, snapshot_id=7, sequence=1))
    return many.scan(many.listed(manifests, 7, 1), 7), held


def _numbered(chance: random.Random, said: Metrics) -> Metrics:
    """Statistics with those of bucket and offset, as most files have them."""
    bucket, offset = LAKE_FIELD_IDS[LAKE_BUCKET], LAKE_FIELD_IDS[LAKE_OFFSET]
    low, high = dict(said.lower), dict(said.upper)
    least, begin = chance.randrange(3), chance.randrange(50)
    if chance.random() < 0.9:
        low[bucket], high[bucket] = struct.pack("<i", least), struct.pack("<i", least + chance.choice([0, 0, 1, 2]))
    if chance.random() < 0.9:
        low[offset], high[offset] = struct.pack("<q", begin), struct.pack("<q", begin + chance.randrange(9))
    return replace(said, lower=low, upper=high)


def _delete_of(chance: random.Random, data: File) -> Entry:
    """Position deletes of a data file, by reference or by bounds, or of its partition, with or without bounds."""
    path = data.path.encode()
    near = Metrics(lower={PATH_ID: path[:-9]}, upper={PATH_ID: path + b"x"})
    kinds: list[dict[str, Any]] = [
        {"referenced_data_file": data.path},
        {"metrics": Metrics(lower={PATH_ID: path}, upper={PATH_ID: path})},
        {"metrics": near},
        {},
    ]
    file = File(content=POSITION_DELETES, path=f"{data.path}-gone", format="PARQUET", spec_id=0, rows=1, bytes=1,
                partition=data.partition, **chance.choice(kinds))  # fmt: skip
    return Entry(ADDED, 7, chance.randint(1, 3), 1, file)


def _hidden(chance: random.Random) -> Hidden:
    buckets = [bucket for bucket in range(5) if chance.random() < 0.4]
    if chance.random() < 0.5:
        return {bucket: OffsetsFrom(chance.randrange(80)) for bucket in buckets}
    return {bucket: OffsetSet(np.array([chance.randrange(70)], np.int64)) for bucket in buckets}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_files_are_counted_unread_where_each_file_alone_says_so(tmp_path: Path, layout: list[str]) -> None:
    """Rows of a file are counted by its statistics if all meet the condition and none is deleted or hidden."""
    chance = seeded(f"counting {layout}")
    versions = _versions(layout)
    table = versions[-1]
    counted = deleted = 0
    for _ in range(3):
        scan, _ = _lake(chance, versions, tmp_path)
        every = lake_snapshot.planned(scan)
        for text in (*CONDITIONS, ""):
            said = {"i": chance.randint(-12, 50), "j": chance.randint(0, 160), "s": f"{chr(97 + chance.randrange(12))}"}
            day = date(2024, 1, 1) + timedelta(days=chance.randint(-3, 50))
            condition = condition_text.parse(text.format(d=day, **said), table) if text else None
            hidden = _hidden(chance)
            read = replace(LakeRead.of(scan, condition, Figures()), hidden=hidden)
            assert {each.file.path: each.deletes for each in read.files}.items() <= {
                each.file.path: each.deletes for each in every
            }.items()
            shared = Counter(each.file.path for each in read.files.shared_deletes())
            asked = (file for each in read.files for file in each.deletes if only_path(file) is None)
            assert shared == Counter(file.path for file in asked)
            ranges = Fields.of(table, condition.columns) if condition else None
            whole = [
                each
                for each in read.files
                if not each.deletes
                and not RowNumbers.of(each.file).near(hidden)
                and (not condition or not ranges or all_meet(condition.skip, partial(ranges.of_file, each.file)))
            ]
            left, rows = read.counted()
            assert rows == sum(each.file.rows for each in whole), text
            kept = {each.file.path for each in read.files} - {each.file.path for each in whole}
            assert {each.file.path for each in left.files} == kept, text
            counted, deleted = counted + len(whole), deleted + len(list(filter(None, (e.deletes for e in every))))
    assert counted > 40
    assert deleted > 40


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_files_chosen_are_those_that_their_statistics_leave(tmp_path: Path, layout: list[str]) -> None:
    """None with a row that meets the condition is left out, whatever version of the table wrote it."""
    chance = seeded(f"pruning {layout}")
    versions = _versions(layout)
    table = versions[-1]
    spared = 0
    for _ in range(4):
        scan, rows = _lake(chance, versions, tmp_path)
        files = [each.file for each in lake_snapshot.planned(scan)]
        for text in CONDITIONS:
            i = chance.randint(-12, 50)
            said = {"i": i, "j": i + chance.randint(0, 60), "s": f"{chr(97 + chance.randrange(12))}"}
            day = date(2024, 1, 1) + timedelta(days=chance.randint(-3, 50))
            condition = condition_text.parse(text.format(d=day, **said), table)
            fields = Fields.of(table, condition.columns)
            specs = lake_snapshot.metadata(scan.metadata_location).specs
            partitions = Partitions.of(specs, table, condition.skip)
            wanted = [
                file.path
                for file in files
                if may_meet(condition.skip, partial(fields.of_file, file), partial(partitions.may_hold, file))
            ]
            figures = Figures()
            assert [each.file.path for each in LakeRead.of(scan, condition, figures).files] == wanted, text
            met = {path for path, own in rows.items() for batch in own.to_batches() if condition.mask(batch).any()}
            assert met <= set(wanted), text
            assert figures.files_pruned == len(files) - len(wanted)
            spared += figures.files_pruned
    assert spared > 40
