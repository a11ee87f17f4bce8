"""Cuts presented by a presenter in the test's own process, and read back by PyIceberg as any engine reads them."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.table import StaticTable

from lakestore.iceberg import places
from lakestore.iceberg.manifest_lists import Manifest, read_list, write_list
from lakestore.iceberg.manifests import ADDED, DATA, EQUALITY_DELETES, Entry, described, write_manifest
from lakestore.model import file_uri
from lakestore.model.table import Table
from lakestore.rows import ipc
from lakestore.union import plan
from lakestore.union.plan import TableScan
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog.our_tables import first_metadata, schema_of
from lakestore_server.snapshots.builder import SnapshotBuilder
from lakestore_server.snapshots.hot_files import write_files
from lakestore_server.snapshots.messages import Base, BuildRequest, BuiltFiles
from lakestore_server.snapshots.shape import Shape
from tests.support.manifests import read_manifest
from tests.support.served import Served

Json = dict[str, Any]
CREATED_MS = 1_700_000_000_000


@dataclass
class Presenting:
    """Presents the tables of a server, upon bases that are presented cuts themselves."""

    served: Served
    folder: Path
    presenter: SnapshotBuilder = field(default_factory=lambda: SnapshotBuilder("run-0"))
    tierer: SnapshotBuilder = field(default_factory=lambda: SnapshotBuilder("tiered"))
    bases: dict[int, Base] = field(default_factory=lambda: {0: Base()})
    """By the snapshot id of a tier record."""
    fetched: list[pb.FetchRequest] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def plan(self, name: str, at: str = "") -> pb.PlanAnswer:
        """The plan of one table."""
        answer: pb.PlanAnswer = self.served.verbs("Plan").plan(plan.request([name], at=at, no_dead=True))
        return answer

    def fetch(self, request: pb.FetchRequest) -> Iterator[pa.RecordBatch]:
        """Rows as the presenter's process gets them."""
        self.fetched.append(request)
        for message in self.served.verbs("Fetch").fetch(request):
            yield from ipc.decode_server_rows(message.rows, crc=message.crc32c)

    def request(self, name: str, at: str = "", form: int = 2) -> tuple[BuildRequest, TableScan, Json]:
        """The request of a cut, its plan, and the document that has all but the snapshot."""
        answer = self.plan(name, at)
        scan = plan.decode(answer).tables[0]
        base = self.bases[scan.snapshot_id]
        document = document_of(scan.table, str(self.folder))
        cut = repr((scan.table.uuid, scan.table.schema_id, base, [bucket.head for bucket in scan.buckets], form))
        present = BuildRequest(
            cut_id=zlib.crc32(cut.encode()) << 16 | len(cut),
            folder=file_uri.to_uri(self.folder / "__presented" / scan.table.uuid),
            schema=document["schemas"][0],
            specs=document["partition-specs"],
            default_spec_id=0,
            flat_spec_id=1,
            format=form,
            plan=answer.SerializeToString(),
            base=base,
        )
        return present, scan, document

    def present(self, name: str, at: str = "", form: int = 2) -> tuple[BuiltFiles, Json]:
        """A cut, and its metadata document."""
        request, _, document = self.request(name, at, form)
        answer = self.presenter.present(request, self.fetch)
        return answer, with_snapshot(document, request, answer)

    def rows(self, name: str, at: str = "", form: int = 2) -> pa.Table:
        """The rows of a cut, as PyIceberg reads them."""
        _, document = self.present(name, at, form)
        return read(document, self.folder)

    def tier(self, name: str, form: int = 2, *, rewrite: bool = False) -> int:
        """Make the head a lake snapshot: what is presented there becomes the base. Its id.

        With `rewrite` its living rows alone are the base, as after a compaction, in another order.
        """
        request, scan, document = self.request(name, form=form)
        answer = self.tierer.present(request, self.fetch)
        number = self.served.tier(name)
        base = Base(answer.manifest_list, number, form, request.base.sequence + 1, answer.next_row_id)
        if rewrite:
            listed = self._rewritten(request, scan, read(with_snapshot(document, request, answer), self.folder))
            base = replace(base, manifest_list=listed)
        self.bases[number] = base
        return number

    def _rewritten(self, request: BuildRequest, scan: TableScan, rows: pa.Table) -> str:
        """A snapshot of these rows, in files of some rows each; its manifest list."""
        folder = file_uri.to_uri(self.folder / "rewritten" / str(request.cut_id))
        places.write(f"{folder}/begun", b"")
        shape = Shape(scan.table, request.schema, request.specs[0], request.specs[1])
        order = np.random.default_rng(request.cut_id).permutation(rows.num_rows)
        shuffled = rows.take(pa.array(order)).select(shape.arrow.names).cast(shape.arrow)
        entries: dict[int, list[Entry]] = {}
        sequence = request.base.sequence + 1
        for begin in range(0, rows.num_rows, 15):
            part = shuffled.slice(begin, 15)
            for one in write_files(part, np.empty(part.num_rows, np.int64), shape, self._namer(folder)):
                entry = Entry(ADDED, request.cut_id, sequence, sequence, one.file)
                entries.setdefault(one.file.spec_id, []).append(entry)
        manifests = []
        for spec_id, held in entries.items():
            said: Json = {"content": DATA, "schema": request.schema, "spec": request.specs[spec_id]}
            data = write_manifest(held, **said, format_version=request.format)
            location = f"{folder}/{spec_id}.avro"
            places.write(location, data)
            row = described(location, len(data), held, **said, snapshot_id=request.cut_id, sequence=sequence)
            manifests.append(replace(row, first_row_id=0) if request.format >= 3 else row)
        if not manifests:
            return ""
        listed = write_list(
            manifests, format_version=request.format, snapshot_id=request.cut_id, parent_id=None, sequence=sequence
        )
        places.write(f"{folder}/list.avro", listed)
        return f"{folder}/list.avro"

    def _namer(self, folder: str) -> Callable[[str], str]:
        return lambda ending: f"{folder}/{next(self._numbers)}-{ending}"


def document_of(table: Table, warehouse: str) -> Json:
    """A document of a version of a table, with an unpartitioned spec beside the table's own."""
    first = first_metadata(replace(table, schema_id=0), warehouse, CREATED_MS)
    specs = [first["partition-specs"][0], {"spec-id": 1, "fields": []}]
    schema = {**schema_of(table), "schema-id": table.schema_id}
    last = max(table.last_column_id, 1_000_003)
    return {
        **first,
        "partition-specs": specs,
        "schemas": [schema],
        "current-schema-id": table.schema_id,
        "last-column-id": last,
    }


def with_snapshot(document: Json, request: BuildRequest, answer: BuiltFiles) -> Json:
    """The document of a presented cut."""
    snapshot = {
        "snapshot-id": request.cut_id,
        "sequence-number": request.base.sequence + 1,
        "timestamp-ms": CREATED_MS + 1,
        "manifest-list": answer.manifest_list,
        "summary": {"operation": "overwrite"},
        "schema-id": document["current-schema-id"],
    }
    shown: Json = {"format-version": request.format}
    if request.format >= 3:
        snapshot |= {"first-row-id": answer.first_row_id, "added-rows": answer.next_row_id - answer.first_row_id}
        shown["next-row-id"] = answer.next_row_id
    return {
        **document,
        **shown,
        "snapshots": [snapshot],
        "current-snapshot-id": request.cut_id,
        "last-sequence-number": request.base.sequence + 1,
        "refs": {"main": {"snapshot-id": request.cut_id, "type": "branch"}},
    }


def read(document: Json, folder: Path) -> pa.Table:
    """The rows of a document, as PyIceberg reads them."""
    place = folder / "read.metadata.json"
    place.write_text(json.dumps(document))
    return StaticTable.from_metadata(str(place)).scan().to_arrow()


@dataclass(frozen=True)
class Entries:
    """Every living entry of a snapshot, with its manifest."""

    data: list[tuple[Manifest, Entry]]
    deletes: list[tuple[Manifest, Entry]]

    @staticmethod
    def of(answer: BuiltFiles) -> Entries:
        """Those of a presented cut."""
        manifests = read_list(places.read(answer.manifest_list), answer.manifest_list)
        held = [(each, entry) for each in manifests for entry in read_manifest(places.read(each.path), each)]
        return Entries([one for one in held if one[0].content == DATA], [one for one in held if one[0].content != DATA])


def check_structure(answer: BuiltFiles, form: int) -> None:
    """The rules that PyIceberg forgives the breach of."""
    entries = Entries.of(answer)
    data = {entry.file.path: (manifest, entry) for manifest, entry in entries.data}
    assert len(data) == len(entries.data), "a data file is named twice"
    vectors: dict[str, int] = {}
    others: set[str] = set()
    for _, entry in entries.deletes:
        if entry.file.content == EQUALITY_DELETES:
            continue
        path = entry.file.referenced_data_file
        assert path in data, "a delete file names no data file of the snapshot"
        of = data[path][1]
        assert (entry.file.spec_id, dict(entry.file.partition)) == (of.file.spec_id, dict(of.file.partition))
        assert entry.sequence is not None
        assert of.sequence is not None
        assert entry.sequence >= of.sequence, "a delete file does not apply to its data file"
        if entry.file.format == "PUFFIN":
            vectors[path] = vectors.get(path, 0) + 1
        else:
            others.add((path, entry.file.path)[0])
            assert form == 2 or entry.snapshot_id is not None
    assert all(count == 1 for count in vectors.values()), "a data file has two vectors"
    assert form >= 3 or not vectors
