"""Lake snapshots of very many data files, made of manifests alone: a data file is written where a test reads it.

File number `i` holds the rows of one bucket with `rows` offsets from `i // buckets * rows` on, so that a table with as
many rows in each bucket has every row in one file. Its partition is a number, and its values of a sorted column lie
between its own number and the next.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from lakestore.iceberg import places, puffin
from lakestore.iceberg.manifest_lists import DELETES, Manifest, read_list, write_list
from lakestore.iceberg.manifests import ADDED, DATA, EXISTING, POSITION_DELETES, Entry, File, described, write_manifest
from lakestore.iceberg.position_deletes import PATH_ID
from lakestore.iceberg.values import Metrics
from lakestore.model.columns import LAKE_BUCKET, LAKE_FIELD_IDS, LAKE_OFFSET
from lakestore.model.table import Table
from lakestore.union.plan import TableScan
from lakestore_server.catalog.our_tables import first_metadata

Json = Mapping[str, Any]
CREATED_MS = 1_700_000_000_000
SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.int32()), ("sorted", pa.int64()), ("v", pa.float64())])
PART, SORTED = "part", "sorted"
LAKE = {"partition_by": [PART], "sort_by": [SORTED]}
_INT, _LONG = struct.Struct("<i").pack, struct.Struct("<q").pack


@dataclass(frozen=True)
class ManyFiles:
    """A lake of data files that are mostly said, not written."""

    table: Table
    folder: str
    """URI of the folder of its files."""
    count: int
    partitions: int
    rows: int = 10
    """Rows of a file."""
    files_per_manifest: int = 1_000
    format: int = 2
    document: Json = field(default_factory=dict)

    @staticmethod
    def of(table: Table, folder: str, count: int, partitions: int, **said: Any) -> ManyFiles:
        """The lake of a table of `SCHEMA` that is made with `LAKE`."""
        document = first_metadata(table, folder, CREATED_MS)
        return ManyFiles(table, f"{folder}/{table.short_name}", count, partitions, document=document, **said)

    def scan(self, listed: str, snapshot_id: int) -> TableScan:
        """A plan of a snapshot's files, with nothing hot; its metadata is written."""
        place = f"{self.folder}/metadata/{snapshot_id}.metadata.json"
        snapshot = {"snapshot-id": snapshot_id, "sequence-number": 1, "manifest-list": listed}
        places.write(place, orjson.dumps({**self.document, "snapshots": [snapshot]}))
        return TableScan(self.table, place, snapshot_id, (), self.table)

    def file(self, number: int) -> File:
        """A data file by its number."""
        bucket, begin = number % self.table.buckets, number // self.table.buckets * self.rows
        part = number * self.partitions // self.count
        ends = {
            self._id("id"): (_LONG(begin), _LONG(begin + self.rows - 1)),
            self._id(PART): (_INT(part), _INT(part)),
            self._id(SORTED): (_LONG(number), _LONG(number + 1)),
            self._id("v"): (struct.pack("<d", 0.5), struct.pack("<d", number + 0.5)),
            LAKE_FIELD_IDS[LAKE_BUCKET]: (_INT(bucket), _INT(bucket)),
            LAKE_FIELD_IDS[LAKE_OFFSET]: (_LONG(begin), _LONG(begin + self.rows - 1)),
        }
        counted = dict.fromkeys(ends, self.rows)
        return File(
            content=DATA,
            path=f"{self.folder}/data/part={part}/{number:05d}-0-0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0-{number:05d}.parquet",
            format="PARQUET",
            spec_id=0,
            partition={PART: part},
            rows=self.rows,
            bytes=4_000 + number % 1_000,
            metrics=Metrics(
                {number: low for number, (low, _) in ends.items()},
                {number: high for number, (_, high) in ends.items()},
                dict.fromkeys(ends, 0),
                counted,
                {self._id("v"): 0},
                dict.fromkeys(ends, 300 + number % 50),
            ),
            split_offsets=(4,),
            sort_order_id=1,
        )

    def _id(self, name: str) -> int:
        return self.table.column(name).id

    def delete_of(self, number: int) -> File:
        """A file of position deletes of one data file."""
        data = self.file(number)
        said = {PATH_ID: data.path.encode()}
        return File(
            content=POSITION_DELETES,
            path=data.path.replace(".parquet", "-deletes.parquet"),
            format="PARQUET",
            spec_id=0,
            partition=data.partition,
            rows=1,
            bytes=1_200,
            metrics=Metrics(lower=said, upper=said),
            referenced_data_file=data.path,
        )

    def vectors(self, numbers: Sequence[int], place: str) -> list[File]:
        """Vectors of data files in one Puffin file, which is written; each hides the last row."""
        paths = [self.file(number).path for number in numbers]
        last = np.array([self.rows - 1], np.int64)
        data, spots = puffin.puffin([(path, last) for path in paths])
        location = f"{self.folder}/data/{place}.puffin"
        places.write(location, data)
        return [
            replace(
                self.delete_of(number),
                path=location,
                format="PUFFIN",
                bytes=len(data),
                metrics=Metrics(),
                content_offset=offset,
                content_size=size,
            )
            for number, (offset, size) in zip(numbers, spots, strict=True)
        ]

    def write(self, number: int) -> None:
        """Write one data file for real, with the columns that offset indexes are read from."""
        file = self.file(number)
        bucket, begin = number % self.table.buckets, number // self.table.buckets * self.rows
        columns = [np.full(self.rows, bucket, np.int32), np.arange(begin, begin + self.rows)]
        rows = pa.table(dict(zip((LAKE_BUCKET, LAKE_OFFSET), columns, strict=True)))
        filesystem, path = places.place(file.path)
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        pq.write_table(rows, path, filesystem=filesystem)

    def manifests(self, files: Iterable[File], snapshot_id: int, sequence: int, *, new: bool = True) -> list[Manifest]:
        """Write the manifests of files, in their order."""
        held = list(files)
        content = DATA if not held or held[0].content == DATA else DELETES
        said: Json = {"content": content, "schema": self.document["schemas"][0], "spec": self._spec}
        made = []
        for begin in range(0, len(held), self.files_per_manifest):
            entries = [
                Entry(ADDED if new else EXISTING, snapshot_id, sequence, sequence, each)
                for each in held[begin : begin + self.files_per_manifest]
            ]
            data = write_manifest(entries, **said, format_version=self.format)
            location = f"{self.folder}/metadata/{snapshot_id}-{content}-m{begin}.avro"
            places.write(location, data)
            made.append(described(location, len(data), entries, **said, snapshot_id=snapshot_id, sequence=sequence))
        return made

    @property
    def _spec(self) -> Json:
        spec: Json = self.document["partition-specs"][0]
        return spec

    def listed(self, manifests: Sequence[Manifest], snapshot_id: int, sequence: int) -> str:
        """Write the list of a snapshot's manifests; its place."""
        location = f"{self.folder}/metadata/snap-{snapshot_id}.avro"
        data = write_list(
            manifests, format_version=self.format, snapshot_id=snapshot_id, parent_id=None, sequence=sequence
        )
        places.write(location, data)
        return location

    def snapshot(self, snapshot_id: int, deletes: Iterable[int] = ()) -> str:
        """Write a snapshot of all files, some with a delete file; the place of its list."""
        data = self.manifests(map(self.file, range(self.count)), snapshot_id, 1)
        gone = self.manifests(map(self.delete_of, deletes), snapshot_id, 1)
        return self.listed([*data, *gone], snapshot_id, 1)

    def next_snapshot(
        self, before: str, snapshot_id: int, more: Iterable[File], *, also: Sequence[Manifest] = ()
    ) -> str:
        """Write a snapshot with some files more, in a manifest of its own, as a round's commit leaves it."""
        known = read_list(places.read(before), before)
        added = self.manifests(more, snapshot_id, 2)
        return self.listed([*added, *also, *known], snapshot_id, 2)
