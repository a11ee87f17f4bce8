"""The Avro schemas of manifests and manifest lists in Iceberg's specification, by format version."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson

from lakestore.iceberg.values import avro_type

_REQUIRED, _OPTIONAL = False, True


def _field(name: str, kind: Any, number: int, optional: bool = _REQUIRED) -> dict[str, Any]:
    made = {"name": name, "type": ["null", kind] if optional else kind, "field-id": number}
    return made | {"default": None} if optional else made


def _list(element: Any, number: int) -> dict[str, Any]:
    return {"type": "array", "items": element, "element-id": number}


def _map(key: int, value: int, kind: str) -> dict[str, Any]:
    fields = [_field("key", "int", key), _field("value", kind, value)]
    items = {"type": "record", "name": f"k{key}_v{value}", "fields": fields}
    return {"type": "array", "logicalType": "map", "items": items}


_MAPS = (
    ("column_sizes", 108, 117, 118, "long"),
    ("value_counts", 109, 119, 120, "long"),
    ("null_value_counts", 110, 121, 122, "long"),
    ("nan_value_counts", 137, 138, 139, "long"),
    ("lower_bounds", 125, 126, 127, "bytes"),
    ("upper_bounds", 128, 129, 130, "bytes"),
    ("distinct_counts", 111, 123, 124, "long"),
)
_SUMMARY_FIELDS = (
    _field("contains_null", "boolean", 509),
    _field("contains_nan", "boolean", 518, _OPTIONAL),
    _field("lower_bound", "bytes", 510, _OPTIONAL),
    _field("upper_bound", "bytes", 511, _OPTIONAL),
)
_SUMMARY = {"type": "record", "name": "r508", "fields": _SUMMARY_FIELDS}
_LIST = (
    _field("manifest_path", "string", 500),
    _field("manifest_length", "long", 501),
    _field("partition_spec_id", "int", 502),
    _field("content", "int", 517),
    _field("sequence_number", "long", 515),
    _field("min_sequence_number", "long", 516),
    _field("added_snapshot_id", "long", 503),
    _field("added_files_count", "int", 504),
    _field("existing_files_count", "int", 505),
    _field("deleted_files_count", "int", 506),
    _field("added_rows_count", "long", 512),
    _field("existing_rows_count", "long", 513),
    _field("deleted_rows_count", "long", 514),
    _field("partitions", _list(_SUMMARY, 508), 507, _OPTIONAL),
    _field("key_metadata", "bytes", 519, _OPTIONAL),
)
_FIRST_ROW_ID = _field("first_row_id", "long", 520, _OPTIONAL)


def _file_fields(partition: Any, format_version: int, distinct: bool) -> list[dict[str, Any]]:
    """The fields of a file. `distinct` adds the deprecated counts of distinct values, for files of older writers."""
    maps = _MAPS if distinct else _MAPS[:-1]
    fields = [
        _field("content", "int", 134),
        _field("file_path", "string", 100),
        _field("file_format", "string", 101),
        _field("partition", partition, 102),
        _field("record_count", "long", 103),
        _field("file_size_in_bytes", "long", 104),
        *(_field(name, _map(key, value, kind), number, _OPTIONAL) for name, number, key, value, kind in maps),
        _field("key_metadata", "bytes", 131, _OPTIONAL),
        _field("split_offsets", _list("long", 133), 132, _OPTIONAL),
        _field("equality_ids", _list("int", 136), 135, _OPTIONAL),
        _field("sort_order_id", "int", 140, _OPTIONAL),
        _field("referenced_data_file", "string", 143, _OPTIONAL),
    ]
    if format_version >= 3:
        fields.append(_field("first_row_id", "long", 142, _OPTIONAL))
        fields.append(_field("content_offset", "long", 144, _OPTIONAL))
        fields.append(_field("content_size_in_bytes", "long", 145, _OPTIONAL))
    return fields


def _entry_fields(data_file: Any) -> list[dict[str, Any]]:
    return [
        _field("status", "int", 0),
        _field("snapshot_id", "long", 1, _OPTIONAL),
        _field("sequence_number", "long", 3, _OPTIONAL),
        _field("file_sequence_number", "long", 4, _OPTIONAL),
        _field("data_file", data_file, 2),
    ]


ENTRY_NAMES = tuple(
    (field["field-id"], field["name"]) for field in (*_entry_fields("null"), *_file_fields("null", 3, distinct=True))
)
"""Our names of the fields of entries, by field id. A writer may use other names."""
LIST_NAMES = tuple((field["field-id"], field["name"]) for field in (*_LIST, *_SUMMARY_FIELDS, _FIRST_ROW_ID))
"""Our names of the fields of a manifest list."""


@lru_cache(maxsize=64)
def entry_schema(partition: tuple[tuple[str, int, str], ...], format_version: int, distinct: bool) -> bytes:
    """The schema of a manifest with these partition fields: name, id and type."""
    names: set[str] = set()
    fields = []
    for name, number, kind in partition:
        plain = avro_name(name)
        made = _field(plain, avro_type(kind, number, names), number, _OPTIONAL)
        fields.append(made if plain == name else made | {"iceberg-field-name": name})
    record = {"type": "record", "name": "r102", "fields": fields}
    data_file = {"type": "record", "name": "r2", "fields": _file_fields(record, format_version, distinct)}
    return orjson.dumps({"type": "record", "name": "manifest_entry", "fields": _entry_fields(data_file)})


@lru_cache(maxsize=2)
def list_schema(format_version: int) -> bytes:
    """The schema of a manifest list."""
    fields = [*_LIST, _FIRST_ROW_ID] if format_version >= 3 else list(_LIST)
    return orjson.dumps({"type": "record", "name": "manifest_file", "fields": fields})


def avro_name(name: str) -> str:
    """A name that Avro allows, built like in Iceberg Java: letters, digits and underscores."""
    made = "".join(_plain(char, place) for place, char in enumerate(name))
    return made or "_"


def _plain(char: str, place: int) -> str:
    if char == "_" or (char.isascii() and char.isalpha()):
        return char
    if char.isascii() and char.isdigit():
        return char if place else f"_{char}"
    return f"_x{ord(char):X}"
