"""Manifest lists of format versions 2 and 3: the manifests of a snapshot, with counts and partition bounds of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lakestore.errors import Corrupt
from lakestore.iceberg import manifest_schemas
from lakestore.iceberg.avro import Container, encoded

DATA, DELETES = 0, 1
"""The content of a manifest: data files or delete files."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Bounds of one partition field over all files of a manifest."""

    contains_null: bool
    contains_nan: bool | None
    lower: bytes | None
    """The least value as single-value bytes; None if all values are null or NaN."""
    upper: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """An entry of a manifest list."""

    path: str
    length: int
    """Bytes of the file."""
    spec_id: int
    content: int
    """`DATA` or `DELETES`."""
    sequence: int
    min_sequence: int
    added_snapshot_id: int
    added_files: int | None
    """This and the other counts are None if an old writer left them out."""
    existing_files: int | None
    deleted_files: int | None
    added_rows: int | None
    existing_rows: int | None
    deleted_rows: int | None
    partitions: tuple[Summary, ...] | None = None
    key_metadata: bytes | None = None
    first_row_id: int | None = None


def read_list(data: bytes, name: str) -> list[Manifest]:
    """Decode a manifest list. Raises `Corrupt`."""
    records = Container.opened(data, name).records(manifest_schemas.LIST_NAMES)
    try:
        return [_manifest(record) for record in records]
    except (KeyError, TypeError) as error:
        raise Corrupt(f"{name} is no readable manifest list: {type(error).__name__}: {error}") from error


def write_list(
    manifests: Iterable[Manifest],
    *,
    format_version: int,
    snapshot_id: int,
    parent_id: int | None,
    sequence: int,
    first_row_id: int | None = None,
) -> bytes:
    """Encode the list of a snapshot's manifests. `first_row_id` is the snapshot's, for version 3."""
    meta = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
        "sequence-number": str(sequence),
        "format-version": str(format_version),
    }
    if format_version >= 3:
        meta["first-row-id"] = "null" if first_row_id is None else str(first_row_id)
    schema = manifest_schemas.list_schema(format_version)
    return encoded(
        schema,
        {key: value.encode() for key, value in meta.items()},
        [_manifest_record(manifest) for manifest in manifests],
    )


def _manifest(record: Mapping[str, Any]) -> Manifest:
    parts = record.get("partitions")
    return Manifest(
        path=record["manifest_path"],
        length=record["manifest_length"],
        spec_id=record["partition_spec_id"],
        content=record.get("content") or DATA,
        sequence=record.get("sequence_number") or 0,
        min_sequence=record.get("min_sequence_number") or 0,
        added_snapshot_id=record["added_snapshot_id"],
        added_files=record.get("added_files_count"),
        existing_files=record.get("existing_files_count"),
        deleted_files=record.get("deleted_files_count"),
        added_rows=record.get("added_rows_count"),
        existing_rows=record.get("existing_rows_count"),
        deleted_rows=record.get("deleted_rows_count"),
        partitions=None if parts is None else tuple(map(_summary, parts)),
        key_metadata=record.get("key_metadata"),
        first_row_id=record.get("first_row_id"),
    )


def _summary(record: Mapping[str, Any]) -> Summary:
    get = record.get
    return Summary(record["contains_null"], get("contains_nan"), get("lower_bound"), get("upper_bound"))


def _manifest_record(manifest: Manifest) -> dict[str, Any]:
    parts = manifest.partitions
    return {
        "manifest_path": manifest.path,
        "manifest_length": manifest.length,
        "partition_spec_id": manifest.spec_id,
        "content": manifest.content,
        "sequence_number": manifest.sequence,
        "min_sequence_number": manifest.min_sequence,
        "added_snapshot_id": manifest.added_snapshot_id,
        "added_files_count": manifest.added_files,
        "existing_files_count": manifest.existing_files,
        "deleted_files_count": manifest.deleted_files,
        "added_rows_count": manifest.added_rows,
        "existing_rows_count": manifest.existing_rows,
        "deleted_rows_count": manifest.deleted_rows,
        "partitions": None if parts is None else [_summary_record(part) for part in parts],
        "key_metadata": manifest.key_metadata,
        "first_row_id": manifest.first_row_id,
    }


def _summary_record(part: Summary) -> dict[str, Any]:
    return {
        "contains_null": part.contains_null,
        "contains_nan": part.contains_nan,
        "lower_bound": part.lower,
        "upper_bound": part.upper,
    }
