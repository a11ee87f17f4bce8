"""Vectors and position deletes: as the specification draws them, read by PyIceberg, and damage is named."""

from __future__ import annotations

import tempfile

import duckdb
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile

from lakestore.errors import Corrupt
from lakestore.iceberg import position_deletes, puffin
from tests.support.seeds import examples, seeded

SETS = st.sets(st.integers(0, 1 << 40) | st.integers(0, 70_000), max_size=60)
NEAR = st.sets(st.integers(0, (1 << 32) - 1) | st.integers(0, 70_000), max_size=60)
"""As far as PyIceberg reads: it fails where the first 2³² positions have none."""
PATHS = st.dictionaries(st.text(min_size=1), NEAR, max_size=4)


def positions(values: set[int]) -> puffin.Positions:
    return np.array(sorted(values), dtype=np.int64)


@given(SETS)
def test_a_vector_comes_back(values: set[int]) -> None:
    data = puffin.vector(positions(values))
    assert int.from_bytes(data[:4], "big") == len(data) - 8
    assert puffin.positions(data, "x").tolist() == sorted(values)


@given(PATHS)
@settings(max_examples=examples(30))
def test_pyiceberg_reads_the_same_vectors(held: dict[str, set[int]]) -> None:
    data, places = puffin.puffin([(path, positions(values)) for path, values in held.items()])
    for (begin, size), values in zip(places, held.values(), strict=True):
        assert puffin.positions(data[begin : begin + size], "x").tolist() == sorted(values)
    assert {path: found.tolist() for path, found in puffin.vectors(data, "x").items()} == {
        path: sorted(values) for path, values in held.items()
    }
    read = PuffinFile(data)
    assert [blob.properties["cardinality"] for blob in read.footer.blobs] == [str(len(v)) for v in held.values()]
    known = [vector for vector in deletion_vectors_from_puffin_file(read) if held[vector.referenced_data_file]]
    assert {vector.referenced_data_file: vector.to_vector().to_pylist() for vector in known} == {
        path: sorted(values) for path, values in held.items() if values
    }


def test_a_moved_file_names_other_data_files() -> None:
    data, places = puffin.puffin([("old/a", positions({1, 5})), ("old/b", positions({7}))])
    moved = puffin.moved(data, "x", lambda path: path.replace("old", "a/much/longer/path"))
    assert {path: found.tolist() for path, found in puffin.vectors(moved, "x").items()} == {
        "a/much/longer/path/a": [1, 5],
        "a/much/longer/path/b": [7],
    }
    begin, size = places[1]
    assert moved[begin : begin + size] == data[begin : begin + size]


def test_other_blobs_are_passed_over() -> None:
    data, _ = puffin.puffin([("a", positions({1}))])
    footer = puffin.Footer.read(data, "x")
    sketch = {"type": "apache-datasketches-theta-v1", "fields": [1], "offset": 4, "length": 3}
    text = orjson.dumps({"blobs": [sketch, *footer.blobs]})
    other = data[: footer.begin] + text + len(text).to_bytes(4, "little") + bytes(4) + b"PFA1"
    assert list(puffin.vectors(other, "x")) == ["a"]


@pytest.mark.parametrize("flags", [1, 3])
def test_a_compressed_footer_is_refused(flags: int) -> None:
    data, _ = puffin.puffin([("a", positions({1}))])
    with pytest.raises(Corrupt, match=r"v\.puffin is no Puffin file with a plain footer"):
        puffin.vectors(data[:-8] + flags.to_bytes(4, "little") + data[-4:], "v.puffin")


@given(SETS)
@settings(max_examples=examples(25))
def test_position_deletes_come_back(values: set[int]) -> None:
    data = position_deletes.encode("file:/ä b", positions(values))
    found = position_deletes.decode(data, "x")
    assert {path: held.tolist() for path, held in found.items()} == ({"file:/ä b": sorted(values)} if values else {})
    file = pq.ParquetFile(pa.BufferReader(data))
    assert file.schema_arrow.equals(position_deletes.SCHEMA, check_metadata=True)
    if len(values) > position_deletes._PLAIN_MAX:
        group = file.metadata.row_group(0)
        assert group.column(0).compression in ("SNAPPY", "ZSTD")
        assert "DELTA_BINARY_PACKED" in group.column(1).encodings


@given(st.sets(st.integers(0, (1 << 62) - 1), min_size=1, max_size=position_deletes._PLAIN_MAX), st.text(min_size=1))
@settings(max_examples=50)
def test_few_position_deletes_are_what_arrow_writes(values: set[int], path: str) -> None:
    path = path.encode(errors="ignore").decode() + "é" * len(values) * 20
    data = position_deletes.encode(path, positions(values))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(position_deletes, "_PLAIN_MAX", 0)
        arrows = position_deletes.encode(path, positions(values))
    ours, theirs = (pq.ParquetFile(pa.BufferReader(each)) for each in (data, arrows))
    assert ours.schema.equals(theirs.schema)
    assert ours.read().equals(theirs.read())
    assert (ours.metadata.num_rows, ours.metadata.num_row_groups) == (len(values), 1)
    for number in range(2):
        mine, arrow = (file.metadata.row_group(0).column(number) for file in (ours, theirs))
        assert mine.path_in_schema == arrow.path_in_schema
        said = ("min", "max", "null_count", "num_values", "physical_type", "converted_type")
        assert [getattr(mine.statistics, each) for each in said] == [getattr(arrow.statistics, each) for each in said]
        assert (mine.num_values, mine.compression) == (len(values), "UNCOMPRESSED")
    with duckdb.connect() as connection, tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        file.write(data)
        file.flush()
        found = connection.execute(f"SELECT file_path, pos FROM '{file.name}' ORDER BY pos").fetchall()
    assert found == [(path, value) for value in sorted(values)]


def test_position_deletes_of_many_files_are_told_apart() -> None:
    rows = pa.table({"pos": [4, 1, 2, 9], "file_path": ["a", "b", "a", "c"], "row": ["x"] * 4})
    found = position_deletes.decode(pa.concat_tables([rows, rows.slice(1, 1)]), "x")
    assert {path: sorted(held.tolist()) for path, held in found.items()} == {"a": [2, 4], "b": [1, 1], "c": [9]}
    assert position_deletes.decode(rows.slice(0, 0), "x") == {}
    with pytest.raises(Corrupt, match=r"d\.parquet holds no readable position deletes"):
        position_deletes.decode(rows.drop_columns(["pos"]), "d.parquet")
    for bad in (
        {"pos": [None], "file_path": ["a"]},
        {"pos": [1], "file_path": [None]},
        {"pos": [-1], "file_path": ["a"]},
    ):
        typed = pa.table(bad, schema=pa.schema([("pos", pa.int64()), ("file_path", pa.string())]))
        with pytest.raises(Corrupt, match=r"d\.parquet holds no readable position deletes: a row names no"):
            position_deletes.decode(typed, "d.parquet")


def test_damage_is_found_in_every_byte_of_a_vector() -> None:
    data = puffin.vector(positions({1, 2, 70_000, 1 << 33}))
    for at in range(len(data)):
        with pytest.raises(Corrupt, match=r"v\.puffin"):
            puffin.positions(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :], "v.puffin")
        with pytest.raises(Corrupt, match=r"v\.puffin"):
            puffin.positions(data[:at], "v.puffin")


def test_damaged_files_are_corrupt_and_named() -> None:
    random = seeded("damage")
    vectors, _ = puffin.puffin([("old/a", positions({1, 5})), ("old/b", positions(set(range(500))))])
    deletes = position_deletes.encode("old/a", positions(set(range(0, 3000, 7))))
    damaged = 0
    for source, read in ((vectors, puffin.vectors), (deletes, position_deletes.decode)):
        for _ in range(300):
            held = bytearray(source)
            held[random.randrange(len(held))] = random.randrange(256)
            cut = held[: random.randrange(len(held))] if random.random() < 0.2 else held
            try:
                read(bytes(cut), "d.bin")
            except Corrupt as error:
                damaged += 1
                assert error.message.startswith("d.bin ")
    assert damaged > 300


def test_many_position_deletes_take_little_room() -> None:
    """Of lz4, pyarrow writes a form that Trino does not read."""
    many = np.arange(0, 1_000_000, 10, dtype=np.int64)
    data = position_deletes.encode("a", many)
    assert len(data) < 4_000
    assert pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(1).compression == "ZSTD"
    assert np.array_equal(position_deletes.decode(data, "x")["a"], many)
