"""Iceberg schemas, partition specs and sort orders as JSON: field ids, checks, equality. Pure.

This module knows no table metadata; `metadata` uses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from lakestore.errors import Invalid

Json = dict[str, Any]

PARTITION_ID_FIRST = 1000
_PRIMITIVE = re.compile(
    r"boolean|int|long|float|double|date|time|timestamp|timestamptz|string|uuid|binary"
    r"|decimal\(\s*\d+\s*,\s*\d+\s*\)|fixed\[\s*\d+\s*\]"
)
_PRIMITIVE_V3 = re.compile(r"timestamp_ns|timestamptz_ns|unknown|variant|geometry(\(.*\))?|geography(\(.*\))?")
_DEPTH_MAX = 64


def _parts(kind: Any) -> list[tuple[int, str, Any]]:
    """(id, name, type) of a nested type's direct fields."""
    if not isinstance(kind, dict):
        return []
    if kind["type"] == "struct":
        return [(field["id"], field["name"], field["type"]) for field in kind["fields"]]
    if kind["type"] == "list":
        return [(kind["element-id"], "element", kind["element"])]
    if kind["type"] == "map":
        return [(kind["key-id"], "key", kind["key"]), (kind["value-id"], "value", kind["value"])]
    raise Invalid(f"type {kind['type']!r} is not struct, list or map")


def fields(schema: Json) -> Iterator[tuple[int, str, Any]]:
    """(id, dotted name, type) of every field at every depth."""
    stack = [(0, "", schema)]
    while stack:
        depth, prefix, kind = stack.pop()
        if depth > _DEPTH_MAX:
            raise Invalid(f"a schema nests deeper than {_DEPTH_MAX}")
        for field_id, name, inner in _parts(kind):
            yield field_id, prefix + name, inner
            stack.append((depth + 1, f"{prefix}{name}.", inner))


def field_ids(schema: Json) -> set[int]:
    """The ids of every field at every depth."""
    return {field_id for field_id, _, _ in fields(schema)}


def check_schema(schema: Json, format_version: int) -> None:
    """Refuse a schema that readers of this format version cannot read."""
    seen: set[int] = set()
    names: set[str] = set()
    for field_id, name, kind in fields(schema):
        if type(field_id) is not int or field_id in seen:
            raise Invalid(f"field {name!r} has the id {field_id!r}, which is not a number or is used twice")
        if name in names:
            raise Invalid(f"the schema has two fields {name!r}")
        seen.add(field_id)
        names.add(name)
        if isinstance(kind, str):
            _check_primitive(name, kind, format_version)
    for field_id in schema.get("identifier-field-ids") or ():
        if field_id not in seen:
            raise Invalid(f"identifier field id {field_id} is not in the schema")


def _check_primitive(name: str, kind: str, format_version: int) -> None:
    if _PRIMITIVE.fullmatch(kind):
        return
    if not _PRIMITIVE_V3.fullmatch(kind):
        raise Invalid(f"field {name!r} has the type {kind!r}, which Iceberg does not know")
    if format_version < 3:
        raise Invalid(f"field {name!r} has the type {kind!r}, which needs format version 3")


def fresh_ids(schema: Json) -> tuple[Json, dict[int, int]]:
    """The schema with ids 1, 2, … level by level like Iceberg Java, and old id to new id."""
    ids: dict[int, int] = {}

    def take(old: int) -> int:
        ids[old] = len(ids) + 1
        return ids[old]

    fresh = {**_fresh(schema, take), "schema-id": 0}
    if schema.get("identifier-field-ids"):
        fresh["identifier-field-ids"] = [ids[old] for old in schema["identifier-field-ids"]]
    return fresh, ids


def _fresh(kind: Any, take: Callable[[int], int]) -> Any:
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "struct":
        numbered = [{**field, "id": take(field["id"])} for field in kind["fields"]]
        return {**kind, "fields": [{**field, "type": _fresh(field["type"], take)} for field in numbered]}
    if kind["type"] == "list":
        element = take(kind["element-id"])
        return {**kind, "element-id": element, "element": _fresh(kind["element"], take)}
    key, value = take(kind["key-id"]), take(kind["value-id"])
    return {
        **kind,
        "key-id": key,
        "value-id": value,
        "key": _fresh(kind["key"], take),
        "value": _fresh(kind["value"], take),
    }


def _plain(value: Any) -> Any:
    """JSON without nulls and without spaces in type names, so that equal values compare equal."""
    if isinstance(value, dict):
        return {
            key: part.replace(" ", "")
            if key in ("type", "element", "key", "value") and isinstance(part, str)
            else _plain(part)
            for key, part in value.items()
            if part is not None
        }
    return [_plain(part) for part in value] if isinstance(value, list) else value


def same_schema(one: Json, other: Json) -> bool:
    """Whether two schemas have equal fields and identifier fields; ids do not count."""
    return bool(
        _plain(one["fields"]) == _plain(other["fields"])
        and set(one.get("identifier-field-ids") or ()) == set(other.get("identifier-field-ids") or ())
    )


def sources(part: Json) -> list[int]:
    """The source field ids of a partition or sort field."""
    return list(part["source-ids"]) if part.get("source-ids") else [part["source-id"]]


def _spec_fields(spec: Json) -> list[tuple[list[int], str, str]]:
    return [(sources(part), str(part["transform"]), str(part["name"])) for part in spec["fields"]]


def same_spec(one: Json, other: Json) -> bool:
    """Whether two specs partition alike; spec and field ids do not count."""
    return _spec_fields(one) == _spec_fields(other)


def same_order(one: Json, other: Json) -> bool:
    """Whether two sort orders sort alike."""
    return bool(_plain(one["fields"]) == _plain(other["fields"]))


def numbered_spec(spec: Json, known: list[Json], last_id: int) -> tuple[Json, int]:
    """The spec with an id in each field, reused from known specs for equal fields, and the last id."""
    used = {(tuple(sources(part)), part["transform"]): part["field-id"] for other in known for part in other["fields"]}
    done: list[Json] = []
    for part in spec["fields"]:
        number = part.get("field-id") or used.get((tuple(sources(part)), part["transform"]))
        if number is None:
            number = last_id + 1
        last_id = max(last_id, number)
        done.append({**part, "field-id": number})
    if len({part["field-id"] for part in done}) != len(done):
        raise Invalid("two fields of a partition spec have the same id")
    return {**spec, "fields": done}, last_id


def mapped_sources(part: Json, ids: dict[int, int]) -> Json:
    """A partition or sort field with its source ids mapped by `ids`."""
    changed = dict(part)
    if part.get("source-ids"):
        changed["source-ids"] = [ids[old] for old in part["source-ids"]]
    if "source-id" in part:
        changed["source-id"] = ids[part["source-id"]]
    return changed


def check_sources(what: str, holder: Json, schema: Json) -> None:
    """Refuse a spec or sort order over a field that is not in the schema."""
    known = field_ids(schema)
    for part in holder["fields"]:
        if part["transform"] != "void" and not set(sources(part)) <= known:
            raise Invalid(f"the {what} uses field id {sources(part)[0]}, which the current schema does not have")
