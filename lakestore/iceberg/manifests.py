"""Manifests of format versions 2 and 3: files and entries as values, and their encoding.

1. Fields are found by id, as Iceberg demands. So manifests of every writer are read, of version 1 too.
2. A decoded entry holds the values that it inherits from its manifest, so it can be written to another manifest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from lakestore.errors import Corrupt, Invalid
from lakestore.iceberg import manifest_schemas
from lakestore.iceberg.avro import Container, Names, encoded
from lakestore.iceberg.manifest_lists import DELETES, Manifest, Summary
from lakestore.iceberg.row_search import Bounds
from lakestore.iceberg.values import Json, Metrics, Value, bounds, fitted, partition_types
from lakestore.model.columns import LAKE_BUCKET, LAKE_FIELD_IDS, LAKE_OFFSET

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
"""The content of a file."""
EXISTING, ADDED, DELETED = 0, 1, 2
"""The status of an entry."""
FAILURES = (AttributeError, IndexError, KeyError, OverflowError, StopIteration, TypeError, ValueError, struct.error)
"""Exceptions that damaged bytes of a manifest raise in our code."""
_NONE = Metrics()
_Bytes = bytes
_BUCKET, _OFFSET = LAKE_FIELD_IDS[LAKE_BUCKET], LAKE_FIELD_IDS[LAKE_OFFSET]


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A data file, a delete file or one vector in a Puffin file, as a manifest describes it."""

    content: int
    """`DATA`, `POSITION_DELETES` or `EQUALITY_DELETES`."""
    path: str
    format: str
    """In capitals: PARQUET, ORC, AVRO or PUFFIN."""
    spec_id: int
    """The partition spec of the file's manifest."""
    partition: Mapping[str, Value]
    """Partition field to value in Avro's form: days and months are numbers, decimals are bytes. Decimals from before a
    column was widened have fewer bytes."""
    rows: int
    bytes: int
    metrics: Metrics = _NONE
    distinct: Mapping[int, int] = field(default_factory=dict)
    """Numbers of distinct values by field id, from older writers."""
    key_metadata: _Bytes | None = None
    split_offsets: tuple[int, ...] | None = None
    equality_ids: tuple[int, ...] | None = None
    sort_order_id: int | None = None
    first_row_id: int | None = None
    referenced_data_file: str | None = None
    content_offset: int | None = None
    """The position of a vector in its Puffin file."""
    content_size: int | None = None

    @property
    def bounds(self) -> Bounds | None:
        """The least and greatest bucket and offset; None if the writer stored no bounds."""
        lower, upper = self.metrics.lower, self.metrics.upper
        try:
            return Bounds(
                (_number(lower[_BUCKET]), _number(upper[_BUCKET])), (_number(lower[_OFFSET]), _number(upper[_OFFSET]))
            )
        except KeyError:
            return None


def _number(bound: bytes) -> int:
    return int.from_bytes(bound, "little", signed=True)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a manifest."""

    status: int
    """`EXISTING`, `ADDED` or `DELETED`."""
    snapshot_id: int | None
    """The snapshot that added the file. None is possible only in an entry to be written: the manifest's snapshot."""
    sequence: int | None
    """The sequence number of the data. None is possible only in an added entry to be written: the manifest's number."""
    file_sequence: int | None
    file: File


@dataclass(frozen=True, slots=True)
class Heading:
    """The header of a manifest."""

    schema: Json
    spec: Json
    """With `spec-id` and `fields`."""
    format_version: int
    content: int


def entry_names(container: Container) -> Names:
    """The names of the fields of a manifest's entries, with its partition fields."""
    with damage(container.name):
        fields = _spec_fields(container.meta)
        return (*manifest_schemas.ENTRY_NAMES, *((part["field-id"], part["name"]) for part in fields))


def heading(data: bytes, name: str) -> Heading:
    """Decode the header of a manifest. Raises `Corrupt`."""
    meta = Container.opened(data, name).meta
    with damage(name):
        spec = {"spec-id": int(meta.get("partition-spec-id", b"0")), "fields": _spec_fields(meta)}
        version = int(meta.get("format-version", b"1"))
        content = DELETES if meta.get("content") == b"deletes" else DATA
        return Heading(orjson.loads(meta["schema"]), spec, version, content)


@contextmanager
def damage(name: str) -> Iterator[None]:
    """Raise `Corrupt` with the manifest's name for exceptions in `FAILURES`."""
    try:
        yield
    except FAILURES as error:
        raise Corrupt(f"{name} is no readable manifest: {type(error).__name__}: {error}") from error


def write_manifest(entries: Sequence[Entry], *, content: int, schema: Json, spec: Json, format_version: int) -> bytes:
    """Encode a manifest. All files of the entries have this partition spec."""
    types = partition_types(spec, schema)
    partition = tuple((name, number, kind) for name, (number, kind) in types.items())
    meta = {
        "schema": _json(schema),
        "schema-id": str(schema.get("schema-id", 0)).encode(),
        "partition-spec": _json(list(spec["fields"])),
        "partition-spec-id": str(spec["spec-id"]).encode(),
        "format-version": str(format_version).encode(),
        "content": b"deletes" if content else b"data",
    }
    columns = {name: (manifest_schemas.avro_name(name), kind) for name, _, kind in partition}
    records = [_entry_record(entry, columns) for entry in entries]
    distinct = any(entry.file.distinct for entry in entries)
    return encoded(manifest_schemas.entry_schema(partition, format_version, distinct), meta, records)


def described(
    path: str,
    length: int,
    entries: Sequence[Entry],
    *,
    content: int,
    schema: Json,
    spec: Json,
    snapshot_id: int,
    sequence: int,
) -> Manifest:
    """The row of a manifest list for these entries, which a snapshot with this sequence number writes."""
    files, rows = [0, 0, 0], [0, 0, 0]
    for entry in entries:
        files[entry.status] += 1
        rows[entry.status] += entry.file.rows
    living = [entry for entry in entries if entry.status != DELETED]
    known = (sequence if entry.sequence is None else entry.sequence for entry in living)
    return Manifest(
        path=path,
        length=length,
        spec_id=spec["spec-id"],
        content=content,
        sequence=sequence,
        min_sequence=min(known, default=sequence),
        added_snapshot_id=snapshot_id,
        added_files=files[ADDED],
        existing_files=files[EXISTING],
        deleted_files=files[DELETED],
        added_rows=rows[ADDED],
        existing_rows=rows[EXISTING],
        deleted_rows=rows[DELETED],
        partitions=_summaries(entries, schema, spec),
    )


def _summaries(entries: Sequence[Entry], schema: Json, spec: Json) -> tuple[Summary, ...]:
    found = []
    for name, (_, kind) in partition_types(spec, schema).items():
        values = {entry.file.partition[name] for entry in entries}
        nans = {value for value in values if value != value}
        known = values - nans - {None}
        nan = bool(nans) if kind in ("float", "double") else None
        found.append(Summary(None in values, nan, *bounds(kind, known)))
    return tuple(found)


def _json(value: Any) -> bytes:
    return orjson.dumps(value)


def _spec_fields(meta: Mapping[str, bytes]) -> list[dict[str, Any]]:
    fields = orjson.loads(meta.get("partition-spec", b"[]"))
    first = 1000
    return [{**field, "field-id": field.get("field-id", first + place)} for place, field in enumerate(fields)]


def entry_of(record: Mapping[str, Any], manifest: Manifest, first_row_id: int | None) -> Entry:
    """The entry of a decoded record, with the values that it inherits from its manifest."""
    snapshot_id = record.get("snapshot_id")
    return Entry(
        record["status"],
        manifest.added_snapshot_id if snapshot_id is None else snapshot_id,
        _sequence(record, "sequence_number", manifest),
        _sequence(record, "file_sequence_number", manifest),
        _file(record["data_file"], manifest, first_row_id),
    )


def _sequence(record: Mapping[str, Any], name: str, manifest: Manifest) -> int:
    found: int | None = record.get(name)
    if found is not None:
        return found
    if manifest.sequence and record["status"] != ADDED:
        raise Corrupt(f"{manifest.path} has an old file without a sequence number")
    return manifest.sequence


def _file(record: Mapping[str, Any], manifest: Manifest, first_row_id: int | None) -> File:
    get = record.get
    return File(
        content=get("content") or DATA,
        path=record["file_path"],
        format=record["file_format"].upper(),
        spec_id=manifest.spec_id,
        partition=record["partition"],
        rows=record["record_count"],
        bytes=record["file_size_in_bytes"],
        metrics=Metrics(
            get("lower_bounds") or {},
            get("upper_bounds") or {},
            get("null_value_counts") or {},
            get("value_counts") or {},
            get("nan_value_counts") or {},
            get("column_sizes") or {},
        ),
        distinct=get("distinct_counts") or {},
        key_metadata=get("key_metadata"),
        split_offsets=_tuple(get("split_offsets")),
        equality_ids=_tuple(get("equality_ids")),
        sort_order_id=get("sort_order_id"),
        first_row_id=first_row_id,
        referenced_data_file=get("referenced_data_file"),
        content_offset=get("content_offset"),
        content_size=get("content_size_in_bytes"),
    )


def _tuple(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


def _entry_record(entry: Entry, columns: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """An entry as a record for Avro. `columns` is partition field to its name in Avro and its type."""
    if entry.sequence is None and entry.status != ADDED:
        raise Invalid(f"{entry.file.path} is not added, and so needs a sequence number")
    file, metrics = entry.file, entry.file.metrics
    return {
        "status": entry.status,
        "snapshot_id": entry.snapshot_id,
        "sequence_number": entry.sequence,
        "file_sequence_number": entry.file_sequence,
        "data_file": {
            "content": file.content,
            "file_path": file.path,
            "file_format": file.format,
            "partition": {column: fitted(kind, file.partition[name]) for name, (column, kind) in columns.items()},
            "record_count": file.rows,
            "file_size_in_bytes": file.bytes,
            "column_sizes": metrics.sizes or None,
            "value_counts": metrics.values or None,
            "null_value_counts": metrics.nulls or None,
            "nan_value_counts": metrics.nans or None,
            "distinct_counts": file.distinct or None,
            "lower_bounds": metrics.lower or None,
            "upper_bounds": metrics.upper or None,
            "key_metadata": file.key_metadata,
            "split_offsets": file.split_offsets,
            "equality_ids": file.equality_ids,
            "sort_order_id": file.sort_order_id,
            "first_row_id": file.first_row_id,
            "referenced_data_file": file.referenced_data_file,
            "content_offset": file.content_offset,
            "content_size_in_bytes": file.content_size,
        },
    }
