"""Partitions whose values have several forms: decimals of a column that was widened, and NaN."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakestore.iceberg import places, position_deletes
from lakestore.iceberg.manifest_lists import read_list, write_list
from lakestore.iceberg.manifests import ADDED, POSITION_DELETES, Entry, File, described, write_manifest
from lakestore.model import file_uri
from tests.support.manifests import read_manifest
from tests.support.presenting import Entries, Presenting
from tests.support.served import Served

VALUES: dict[str, list[Any]] = {"d": [Decimal("-1.25"), Decimal("2.50"), None], "f": [math.nan, 0.5, None]}
SCHEMA = pa.schema([("id", pa.int64()), ("d", pa.decimal128(9, 2)), ("f", pa.float32())])
WIDE = pa.schema([("id", pa.int64()), ("d", pa.decimal128(30, 2)), ("f", pa.float64())])


@pytest.fixture
def presenting(tmp_path: Path) -> Iterator[Presenting]:
    (tmp_path / "lake").mkdir()
    with Served(tmp_path / "data") as served:
        yield Presenting(served, tmp_path / "lake")


def rows(ids: range | list[int], schema: pa.Schema = SCHEMA) -> pa.Table:
    found = {name: pa.array([held[id % 3] for id in ids], SCHEMA.field(name).type) for name, held in VALUES.items()}
    return pa.table({"id": pa.array(ids, pa.int64()), **found}).cast(schema)


def shown(table: pa.Table) -> list[str]:
    return sorted(repr((row["id"], row["d"], row["f"])) for row in table.to_pylist())


@pytest.mark.parametrize("form", [2, 3])
@pytest.mark.parametrize("part", ["d", "bucket(3, d)", "f"])
def test_steps_and_files_of_the_base_are_shown_though_a_partition_column_was_widened(
    presenting: Presenting, form: int, part: str
) -> None:
    lake = {"partition_by": [part], "format_version": form}
    table = presenting.served.lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=1, lake=lake)
    table.upsert(rows(range(12)))
    presenting.tier("a.t", form)
    table.upsert(rows([*range(6), *range(30, 36)]))
    presenting.present("a.t", form=form)
    table.alter(widen={"d": pa.decimal128(30, 2), "f": pa.float64()})
    ids = [*range(12), *range(30, 36)]
    assert shown(presenting.rows("a.t", form=form)) == shown(rows(ids, WIDE))
    table.upsert(rows([7, 31, 40], WIDE))
    assert shown(presenting.rows("a.t", form=form)) == shown(rows([*ids, 40], WIDE))


@pytest.mark.parametrize("part", ["d", "f"])
def test_deletes_of_a_partition_are_in_the_vectors_of_its_files(presenting: Presenting, part: str) -> None:
    table = presenting.served.lake.create_table(
        "a.t", SCHEMA, primary_key=["id"], buckets=1, lake={"partition_by": [part]}
    )
    table.upsert(rows(range(12)))
    number = presenting.tier("a.t", rewrite=True)
    base = presenting.bases[number]
    manifests = read_list(places.read(base.manifest_list), base.manifest_list)
    files = [entry.file for each in manifests for entry in read_manifest(places.read(each.path), each)]
    file = next(each for each in files if each.partition[part] is not None and each.partition[part] != 0.5)
    ids = pq.read_table(file.path.removeprefix("file://"))["id"].to_pylist()
    table.alter(widen={"d": pa.decimal128(30, 2)})
    location = file_uri.to_uri(presenting.folder / "rewritten" / "deletes.parquet")
    columns = [pa.array([file.path, "file:///another"]), pa.array([0, 0])]
    pq.write_table(pa.table(columns, schema=position_deletes.SCHEMA), location.removeprefix("file://"))
    shared = File(
        content=POSITION_DELETES,
        path=location,
        format="PARQUET",
        spec_id=0,
        partition={**file.partition},
        rows=2,
        bytes=1,
    )
    _, _, document = presenting.request("a.t")
    said = {"content": POSITION_DELETES, "schema": document["schemas"][0], "spec": document["partition-specs"][0]}
    entries = [Entry(ADDED, 5, base.sequence, base.sequence, shared)]
    data = write_manifest(entries, **said, format_version=2)
    places.write(f"{location}.avro", data)
    manifests.append(described(f"{location}.avro", len(data), entries, **said, snapshot_id=5, sequence=base.sequence))
    places.write(
        f"{location}.list",
        write_list(manifests, format_version=2, snapshot_id=5, parent_id=None, sequence=base.sequence),
    )
    presenting.bases[number] = replace(base, manifest_list=f"{location}.list")
    table.upsert(rows([ids[1]]).cast(pa.schema([WIDE.field("id"), WIDE.field("d"), SCHEMA.field("f")])))
    answer, _ = presenting.present("a.t", form=3)
    (vector,) = [entry.file for _, entry in Entries.of(answer).deletes if entry.file.format == "PUFFIN"]
    assert (vector.referenced_data_file, vector.rows) == (file.path, 2)
