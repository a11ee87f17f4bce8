"""Manifests and their lists: PyIceberg and fastavro read what is written here, and what others wrote is kept whole."""

from __future__ import annotations

import io
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile, read_manifest_list

from lakestore.errors import Corrupt, Invalid
from lakestore.iceberg import manifest_entries
from lakestore.iceberg.avro import AvroFile, Container, encoded
from lakestore.iceberg.delete_index import only_path
from lakestore.iceberg.manifest_entries import ABSENT, LOWER, NULLS, UPPER, Entries, path_hash
from lakestore.iceberg.manifest_lists import DELETES, Manifest, Summary, read_list, write_list
from lakestore.iceberg.manifest_schemas import ENTRY_NAMES
from lakestore.iceberg.manifests import (
    ADDED,
    DATA,
    DELETED,
    EXISTING,
    POSITION_DELETES,
    Entry,
    File,
    described,
    heading,
    write_manifest,
)
from lakestore.iceberg.values import Metrics
from lakestore.model.columns import LAKE_FIELD_IDS
from tests.support.manifests import read_manifest
from tests.support.seeds import examples, seeded

SCHEMA: dict[str, Any] = {
    "type": "struct",
    "schema-id": 4,
    "fields": [
        {"id": 1, "name": "n", "type": "long", "required": True},
        {"id": 2, "name": "price", "type": "decimal(9, 2)", "required": False},
        {"id": 3, "name": "cost", "type": "decimal(9, 2)", "required": False},
        {"id": 4, "name": "at", "type": "timestamptz", "required": False},
        {"id": 5, "name": "name", "type": "string", "required": False},
        {"id": 6, "name": "f", "type": "double", "required": False},
    ],
}
_FIELDS = [
    (1, "bucket[8]", "n_bucket"),
    (2, "identity", "price"),
    (3, "identity", "der Preis, 1. Teil"),
    (4, "day", "1st day"),
    (5, "truncate[3]", "ñame"),
    (6, "identity", "f"),
]
SPEC: dict[str, Any] = {
    "spec-id": 3,
    "fields": [
        {"source-id": source, "transform": transform, "name": name, "field-id": 1000 + place}
        for place, (source, transform, name) in enumerate(_FIELDS)
    ],
}
FLAT: dict[str, Any] = {"spec-id": 0, "fields": []}
NUMBERS, COUNTS = st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 1 << 40)
IDS = st.integers(1, 1_000_003)
VALUES = (
    st.none() | st.integers(0, 7),
    st.none() | st.binary(min_size=4, max_size=4),
    st.none() | st.binary(min_size=4, max_size=4),
    st.none() | st.integers(-719_162, 800_000),  # from the year 1 on, where Python's dates begin
    st.none() | st.text(max_size=3),
    st.none() | st.floats(allow_nan=False),
)
"""Values of the fields of SPEC."""


def maps(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[int, Any]]:
    return st.dictionaries(IDS, values, max_size=6)


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


BOUNDS, FIGURES = maps(st.binary(max_size=40)), maps(COUNTS)


@st.composite
def files(draw: st.DrawFn, content: int, spec: dict[str, Any], version: int) -> File:
    vector = version == 3 and content == POSITION_DELETES and draw(st.booleans())
    names = [part["name"] for part in spec["fields"]]
    return File(
        content=content,
        path=draw(st.text(min_size=1)),
        format="PUFFIN" if vector else draw(st.sampled_from(["PARQUET", "ORC", "AVRO"])),
        spec_id=spec["spec-id"],
        partition={name: draw(values) for name, values in zip(names, VALUES, strict=False)},
        rows=draw(COUNTS),
        bytes=draw(COUNTS),
        metrics=Metrics(*(draw(BOUNDS) for _ in range(2)), *(draw(FIGURES) for _ in range(4))),
        distinct=draw(st.just({}) | FIGURES),
        key_metadata=draw(optional(st.binary())),
        split_offsets=draw(optional(st.lists(COUNTS).map(tuple))),
        equality_ids=draw(optional(st.lists(IDS).map(tuple))),
        sort_order_id=draw(optional(st.integers(0, 9))),
        first_row_id=draw(COUNTS) if version == 3 and content == DATA else None,
        referenced_data_file=draw(optional(st.text())),
        content_offset=draw(COUNTS) if vector else None,
        content_size=draw(COUNTS) if vector else None,
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, dict[str, Any], list[Entry]]:
    """Format version, content, spec and entries of a manifest."""
    version, content, spec = (
        draw(st.sampled_from([2, 3])),
        draw(st.sampled_from([0, 1])),
        draw(st.sampled_from([SPEC, FLAT])),
    )
    file = files(content, spec, version)
    entry = st.builds(Entry, st.sampled_from([EXISTING, ADDED, DELETED]), NUMBERS, COUNTS, COUNTS, file)
    return version, content, spec, draw(st.lists(entry, max_size=4))


def listed(
    data: bytes, entries: list[Entry], content: int = DATA, spec: dict[str, Any] = SPEC, **said: Any
) -> Manifest:
    made = described(
        "m.avro", len(data), entries, content=content, schema=SCHEMA, spec=spec, snapshot_id=77, sequence=5
    )
    return replace(made, **said)


@given(case=cases())
@settings(max_examples=examples(25))
def test_entries_come_back_as_they_were(case: tuple[int, int, dict[str, Any], list[Entry]]) -> None:
    version, content, spec, entries = case
    data = write_manifest(entries, content=content, schema=SCHEMA, spec=spec, format_version=version)
    first = 0 if version == 3 and content == DATA else None
    found = read_manifest(data, listed(data, entries, content, spec, first_row_id=first))
    assert found == [entry for entry in entries if entry.status != DELETED]
    again = write_manifest(found, content=content, schema=SCHEMA, spec=spec, format_version=version)
    assert read_manifest(again, listed(data, found, content, spec, first_row_id=first)) == found
    side_by_side(Entries(data, listed(data, entries, content, spec, first_row_id=first)), found)
    said = heading(data, "m.avro")
    assert (said.schema, said.spec, said.format_version, said.content) == (SCHEMA, spec, version, content)
    read_by_fastavro(data, entries, spec)


def side_by_side(figures: Entries, entries: list[Entry]) -> None:
    """The figures of all files are those of each."""
    for name in ("PARQUET", "ORC"):
        assert figures.has_format(name).tolist() == [entry.file.format == name for entry in entries]
    files = [entry.file for entry in entries]
    assert figures.rows.tolist() == [file.rows for file in files]
    assert figures.sizes.tolist() == [file.bytes for file in files]
    assert figures.contents.tolist() == [file.content for file in files]
    assert figures.sequences.tolist() == [entry.sequence for entry in entries]
    assert figures.path_hashes.tolist() == [path_hash(file.path.encode()) for file in files]
    assert figures.paths(np.arange(len(files))) == [file.path for file in files]
    assert [files[place].path for place in figures.named[1].tolist()] == [
        f.path for f in files if only_path(f) is not None
    ]
    ids = {
        *LAKE_FIELD_IDS.values(),
        *(number for file in files for number in (*file.metrics.lower, *file.metrics.nulls)),
    }
    for number in ids:
        for side, name in ((LOWER, "lower"), (UPPER, "upper")):
            value, known = figures.numbers(*figures.bounds(number, side))
            held = [getattr(file.metrics, name).get(number) for file in files]
            whole = [each if each is not None and len(each) in (4, 8) else None for each in held]
            assert known.tolist() == [each is not None for each in whole]
            wanted = [0 if each is None else int.from_bytes(each, "little", signed=True) for each in whole]
            assert value.tolist() == wanted
        for which, name in ((NULLS, "nulls"), (manifest_entries.VALUES, "values")):
            said = [getattr(file.metrics, name).get(number, ABSENT) for file in files]
            assert figures.counts(number, which).tolist() == said
    for place, part in enumerate(SPEC["fields"] if files and files[0].partition else ()):
        held = [list(file.partition.values())[place] for file in files]
        assert repr(figures.partition(part["field-id"])) == repr(held)


def read_by_fastavro(data: bytes, entries: list[Entry], spec: dict[str, Any]) -> None:
    reader = fastavro.reader(io.BytesIO(data))
    assert reader.codec == "deflate"
    assert set(reader.metadata) >= {"schema", "schema-id", "partition-spec", "partition-spec-id", "format-version"}
    for record, entry in zip(reader, entries, strict=True):
        assert isinstance(record, dict)
        file, metrics = record["data_file"], entry.file.metrics
        assert (record["status"], record["snapshot_id"]) == (entry.status, entry.snapshot_id)
        assert (record["sequence_number"], record["file_sequence_number"]) == (entry.sequence, entry.file_sequence)
        assert (file["file_path"], file["record_count"]) == (entry.file.path, entry.file.rows)
        assert {pair["key"]: pair["value"] for pair in file["lower_bounds"] or ()} == metrics.lower
        assert {pair["key"]: pair["value"] for pair in file["column_sizes"] or ()} == metrics.sizes
        assert len(file["partition"]) == len(spec["fields"])
        assert file.get("first_row_id") == entry.file.first_row_id
        assert file.get("content_offset") == entry.file.content_offset


def file_of(**said: Any) -> File:
    partition = {part["name"]: None for part in SPEC["fields"]} | {"n_bucket": 3, "1st day": -2, "price": b"\0\0\1\0"}
    usual = {"content": DATA, "path": "a.parquet", "format": "PARQUET", "spec_id": 3, "partition": partition}
    return File(**{**usual, "rows": 10, "bytes": 99, **said})


@pytest.mark.parametrize("version", [2, 3])
def test_pyiceberg_reads_lists_and_manifests(tmp_path: Path, version: int) -> None:
    metrics = Metrics({1: b"\1" + bytes(7)}, {1: b"\2" + bytes(7)}, {1: 0}, {1: 10}, {6: 1}, {1: 44})
    entries = [
        Entry(ADDED, None, None, None, file_of(metrics=metrics, split_offsets=(4,), sort_order_id=1)),
        Entry(EXISTING, 8, 2, 1, file_of(path="b.parquet", key_metadata=b"k")),
    ]
    data = write_manifest(entries, content=DATA, schema=SCHEMA, spec=SPEC, format_version=version)
    manifest = listed(data, entries, path=str(tmp_path / "m.avro"))
    (tmp_path / "m.avro").write_bytes(data)
    (tmp_path / "l.avro").write_bytes(
        write_list([manifest], format_version=version, snapshot_id=77, parent_id=None, sequence=5, first_row_id=9)
    )
    io_ = PyArrowFileIO()
    (found,) = read_manifest_list(io_.new_input(str(tmp_path / "l.avro")))
    assert isinstance(found, ManifestFile)
    assert (found.manifest_path, found.manifest_length, found.partition_spec_id) == (manifest.path, len(data), 3)
    assert (found.sequence_number, found.min_sequence_number, found.added_snapshot_id) == (5, 2, 77)
    assert (found.added_files_count, found.existing_files_count, found.existing_rows_count) == (1, 1, 10)
    assert found.partitions is not None
    assert [part.contains_null for part in found.partitions] == [False, False, True, False, True, True]
    assert [part.lower_bound for part in found.partitions][:4] == [b"\3\0\0\0", b"\1\0", None, b"\xfe\xff\xff\xff"]
    added, existing = found.fetch_manifest_entry(io_)
    assert (added.snapshot_id, added.sequence_number, existing.snapshot_id, existing.sequence_number) == (77, 5, 8, 2)
    assert added.data_file.lower_bounds == metrics.lower
    assert added.data_file.nan_value_counts == metrics.nans
    assert (added.data_file.split_offsets, existing.data_file.key_metadata) == ([4], b"k")
    assert (added.data_file.partition[0], added.data_file.partition[3]) == (3, -2)


def test_what_an_entry_leaves_out_is_its_manifests() -> None:
    entries = [
        Entry(ADDED, None, None, None, file_of(rows=10)),
        Entry(EXISTING, 3, 1, 1, file_of(rows=5, first_row_id=500)),
        Entry(DELETED, 3, 1, 1, file_of(rows=7)),
        Entry(EXISTING, 3, 2, 2, file_of(rows=6)),
    ]
    data = write_manifest(entries, content=DATA, schema=SCHEMA, spec=SPEC, format_version=3)
    found = read_manifest(data, listed(data, entries, first_row_id=100))
    assert [(entry.snapshot_id, entry.sequence, entry.file_sequence) for entry in found] == [
        (77, 5, 5),
        (3, 1, 1),
        (3, 2, 2),
    ]
    assert [entry.file.first_row_id for entry in found] == [100, 500, 110]
    unknown = read_manifest(data, listed(data, entries))
    assert [entry.file.first_row_id for entry in unknown] == [None] * 3, "ids count only where the list says so"


def test_an_old_file_has_a_sequence_number_of_its_own() -> None:
    with pytest.raises(Invalid, match="needs a sequence number"):
        write_manifest(
            [Entry(EXISTING, 1, None, None, file_of())], content=DATA, schema=SCHEMA, spec=SPEC, format_version=2
        )
    data = write_manifest(
        [Entry(ADDED, 1, None, None, file_of())], content=DATA, schema=SCHEMA, spec=SPEC, format_version=2
    )
    manifest = listed(data, [])
    records = Container.opened(data, "m").records()
    records[0]["status"] = EXISTING
    schema = Container.opened(data, "m").meta["avro.schema"]
    bad = encoded(schema, {"partition-spec": orjson.dumps(SPEC["fields"])}, records)
    with pytest.raises(Corrupt, match=r"m\.avro has an old file without a sequence number"):
        read_manifest(bad, manifest)
    assert read_manifest(bad, replace(manifest, sequence=0))[0].sequence == 0, "as of format version 1"


def test_summaries_say_what_lies_in_a_manifest() -> None:
    nan = file_of(partition={**file_of().partition, "f": float("nan"), "price": b"\xff\xff\xff\x00"})
    entries = [Entry(ADDED, 1, 1, 1, file_of()), Entry(ADDED, 1, 1, 1, nan)]
    made = listed(b"", entries)
    assert made.partitions is not None
    bucket, price, cost, *_, real = made.partitions
    assert bucket == Summary(contains_null=False, contains_nan=None, lower=b"\3\0\0\0", upper=b"\3\0\0\0")
    assert (price.lower, price.upper) == (b"\xff\0", b"\1\0"), "by number, not by bytes"
    assert cost == Summary(contains_null=True, contains_nan=None, lower=None, upper=None)
    assert real == Summary(contains_null=True, contains_nan=True, lower=None, upper=None)


@pytest.mark.parametrize("zeros", [[0.0, -0.0], [-0.0, 0.0], [-0.0], [0.0]], ids=str)
def test_a_summary_holds_zeros_of_both_signs(zeros: list[float]) -> None:
    """Python takes them for one value; a reader that orders -0.0 below 0.0 skips no manifest with either."""
    entries = [Entry(ADDED, 1, 1, 1, file_of(partition={**file_of().partition, "f": zero})) for zero in zeros]
    made = listed(b"", entries)
    assert made.partitions is not None
    *_, real = made.partitions
    assert (real.lower, real.upper) == (struct.pack("<d", -0.0), struct.pack("<d", 0.0))


V1: dict[str, Any] = {
    "type": "record",
    "name": "manifest_entry",
    "fields": [
        {"name": "status", "type": "int", "field-id": 0},
        {"name": "snapshot_id", "type": ["null", "long"], "field-id": 1},
        {
            "name": "data_file",
            "field-id": 2,
            "type": {
                "type": "record",
                "name": "r2",
                "fields": [
                    {"name": "file_path", "type": "string", "field-id": 100},
                    {"name": "file_format", "type": "string", "field-id": 101},
                    {
                        "name": "partition",
                        "field-id": 102,
                        "type": {
                            "type": "record",
                            "name": "r102",
                            "fields": [{"name": "x_bucket", "type": ["int", "null"], "field-id": 1000}],
                        },
                    },
                    {"name": "records", "type": "long", "field-id": 103},
                    {"name": "file_size_in_bytes", "type": "long", "field-id": 104},
                    {"name": "block_size_in_bytes", "type": "long", "field-id": 105},
                    {"name": "sort_columns", "type": ["null", {"type": "array", "items": "int"}], "field-id": 112},
                ],
            },
        },
    ],
}


def test_manifests_of_version_1_are_read() -> None:
    file = {"file_path": "a", "file_format": "orc", "partition": {"x_bucket": 2}, "records": 6}
    file |= {"file_size_in_bytes": 9, "block_size_in_bytes": 1, "sort_columns": [1, 2]}
    out = io.BytesIO()
    spec = b'[{"source-id":1,"transform":"bucket[4]","name":"n_bucket"}]'
    meta = {"schema": orjson.dumps(SCHEMA).decode(), "partition-spec": spec.decode()}
    fastavro.writer(out, V1, [{"status": 1, "snapshot_id": 12, "data_file": file}], metadata=meta)
    manifest = replace(listed(b"", []), sequence=0, min_sequence=0)
    (found,) = read_manifest(out.getvalue(), manifest)
    assert (found.sequence, found.file_sequence, found.snapshot_id) == (0, 0, 12)
    assert (found.file.content, found.file.format, found.file.rows) == (DATA, "ORC", 6)
    assert found.file.partition == {"n_bucket": 2}
    assert heading(out.getvalue(), "m").spec["fields"][0]["field-id"] == 1000


@given(
    manifests=st.lists(
        st.builds(
            Manifest,
            path=st.text(),
            length=COUNTS,
            spec_id=st.integers(0, 9),
            content=st.sampled_from([DATA, DELETES]),
            sequence=COUNTS,
            min_sequence=COUNTS,
            added_snapshot_id=NUMBERS,
            **{
                f"{kind}_{what}": st.integers(0, 1 << 31 - 1)
                for kind in ("added", "existing", "deleted")
                for what in ("files", "rows")
            },
            partitions=optional(
                st.lists(
                    st.builds(
                        Summary, st.booleans(), optional(st.booleans()), optional(st.binary()), optional(st.binary())
                    )
                ).map(tuple)
            ),
            key_metadata=optional(st.binary()),
            first_row_id=optional(COUNTS),
        ),
        max_size=3,
    ),
    version=st.sampled_from([2, 3]),
)
@settings(max_examples=examples(15))
def test_lists_come_back_as_they_were(manifests: list[Manifest], version: int) -> None:
    data = write_list(manifests, format_version=version, snapshot_id=1, parent_id=5, sequence=9)
    wanted = manifests if version == 3 else [replace(each, first_row_id=None) for each in manifests]
    assert read_list(data, "l.avro") == wanted
    assert write_list(read_list(data, "l.avro"), format_version=version, snapshot_id=1, parent_id=5, sequence=9) == data


def test_damaged_bytes_are_corrupt_and_named() -> None:
    """Bytes without a checksum may be damaged into others that can be read; nothing but `Corrupt` comes out."""
    random = seeded("damage")
    entries = [Entry(ADDED, None, None, None, file_of(metrics=Metrics({1: b"x" * n}))) for n in range(40)]
    data = write_manifest(entries, content=DATA, schema=SCHEMA, spec=SPEC, format_version=3)
    manifest = listed(data, entries)
    table = write_list([manifest] * 5, format_version=3, snapshot_id=1, parent_id=5, sequence=9)
    plain = Container.opened(data, "m")
    loose = AvroFile({**plain.meta, "avro.codec": b"null"}, plain.sync, plain.records()).encode()
    damaged = 0
    for source, read in (
        (data, read_manifest),
        (loose, read_manifest),
        (table, lambda held, _: read_list(held, "l.avro")),
    ):
        for _ in range(400):
            held = bytearray(source)
            for _ in range(random.choice([1, 3])):
                held[random.randrange(len(held))] = random.randrange(256)
            cut = held[: random.randrange(len(held))] if random.random() < 0.2 else held
            try:
                for entry in read(bytes(cut), manifest):
                    repr(entry)
            except Corrupt as error:
                damaged += 1
                assert error.message.startswith(("m.avro", "l.avro"))
    assert damaged > 300


def test_files_whose_format_cannot_be_looked_for_are_read_all_the_same() -> None:
    """A path or a value that spells a format, and a writer that spells formats otherwise."""
    odd = [
        file_of(path="\x0ePARQUET", metrics=Metrics({1: b"\x0ePARQUET"})),
        file_of(path="b" * 70, metrics=Metrics({1: b"\x06ORC"})),
        file_of(format="ORC"),
    ]
    entries = [Entry(ADDED, 1, 5, 5, file) for file in odd]
    data = write_manifest(entries, content=DATA, schema=SCHEMA, spec=SPEC, format_version=2)
    assert read_manifest(data, listed(data, entries)) == entries
    plain = Container.opened(data, "m")
    records = plain.records()
    for record in records:
        record["data_file"]["file_format"] = record["data_file"]["file_format"].lower()
    lower = AvroFile(plain.meta, plain.sync, records).encode()
    assert read_manifest(lower, listed(lower, entries)) == entries
    for each in (data, lower):
        assert Entries(each, listed(each, entries)).has_format("PARQUET").tolist() == [True, True, False]


def test_records_of_several_blocks_are_laid_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Java writes them, of many files; none is read one by one."""
    entries = [Entry(ADDED, 1, 5, 5, file_of(path=f"{n:0{1 + n % 90}d}", rows=n)) for n in range(300)]
    data = write_manifest(entries, content=DATA, schema=SCHEMA, spec=SPEC, format_version=2)
    plain, out = Container.opened(data, "m"), io.BytesIO()
    schema = orjson.loads(plain.meta["avro.schema"])
    meta = {key: value.decode() for key, value in plain.meta.items() if not key.startswith("avro.")}
    records = list(fastavro.reader(io.BytesIO(data)))
    fastavro.writer(out, schema, records, codec="deflate", sync_interval=2_000, metadata=meta)
    assert len(Container.opened(out.getvalue(), "m").joined()[1]) > 10
    monkeypatch.setattr(manifest_entries._Records, "_read_through", None)
    found = Entries(out.getvalue(), listed(data, entries))
    assert found.rows.tolist() == list(range(300))
    assert list(found) == entries


def test_names_are_by_id() -> None:
    assert dict(ENTRY_NAMES)[103] == "record_count"
    assert len(dict(ENTRY_NAMES)) == len(ENTRY_NAMES)
