"""Avro schemas and records of them for tests: strategies, writers, and the values that fastavro reads."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from lakestore.kafka.bridge.records import Records

Json = Any


def records(
    values: Sequence[bytes | None], topic: str = "orders", keys: Sequence[bytes | None] | None = None
) -> Records:
    """A block of one partition."""
    none = np.zeros(len(values), np.int64)
    key = pa.array(keys if keys is not None else [None] * len(values), pa.binary())
    return Records(topic, "id", none, np.arange(len(values)), none, key, pa.array(values, pa.binary()))


def written(schema: Json, value: Any) -> bytes:
    """A body without framing."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def read(schema: Json, body: bytes) -> Any:
    """The value that fastavro reads, or the error by which it refuses; bytes that are left over are one."""
    source = io.BytesIO(body)
    try:
        value = fastavro.schemaless_reader(source, schema, None)
    except (EOFError, IndexError, ValueError, KeyError, TypeError, OverflowError, StopIteration) as error:
        return error
    return value if source.tell() == len(body) else ValueError("bytes are left over")


class Names:
    """Names that no other type of the schema has."""

    def __init__(self) -> None:
        self._count = 0

    def new(self) -> str:
        """The next one."""
        self._count += 1
        return f"N{self._count}"


@st.composite
def schemas(draw: st.DrawFn) -> Json:
    """A record of anything, nested."""
    names = Names()

    def kind(depth: int) -> Json:
        simple = ["boolean", "int", "long", "float", "double", "bytes", "string", "enum", "fixed"]
        picked = draw(st.sampled_from(simple + ["array", "map", "record", "optional", "optional"] * (depth < 3)))
        if picked == "enum":
            return {"type": "enum", "name": names.new(), "symbols": ["A", "B", "C"]}
        if picked == "fixed":
            return {"type": "fixed", "name": names.new(), "size": draw(st.integers(1, 5))}
        if picked == "array":
            return {"type": "array", "items": kind(depth + 1)}
        if picked == "map":
            return {"type": "map", "values": kind(depth + 1)}
        if picked == "record":
            return record(depth + 1)
        if picked == "optional":
            inner = kind(3)
            return draw(st.sampled_from([["null", inner], [inner, "null"]]))
        return picked

    def record(depth: int) -> Json:
        count = draw(st.integers(1, 4))
        return {
            "type": "record",
            "name": names.new(),
            "fields": [{"name": f"f{at}", "type": kind(depth)} for at in range(count)],
        }

    return record(0)


def values_of(schema: Json) -> st.SearchStrategy[Any]:
    """Values of a schema."""
    if isinstance(schema, list):
        return st.one_of([values_of(branch) for branch in schema])
    if isinstance(schema, str):
        return _SIMPLE[schema]
    kind = schema["type"]
    if kind == "enum":
        return st.sampled_from(schema["symbols"])
    if kind == "fixed":
        return st.binary(min_size=schema["size"], max_size=schema["size"])
    if kind == "array":
        return st.lists(values_of(schema["items"]), max_size=4)
    if kind == "map":
        return st.dictionaries(st.text(max_size=3), values_of(schema["values"]), max_size=3)
    return st.fixed_dictionaries({field["name"]: values_of(field["type"]) for field in schema["fields"]})


_SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=20),
    "string": st.text(max_size=20),
}


def plain(schema: Json, value: Any) -> Any:
    """What fastavro reads as Arrow shows it: maps are lists of pairs."""
    if isinstance(schema, list):
        inner = next(branch for branch in schema if branch != "null")
        return None if value is None else plain(inner, value)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "array":
        return [plain(schema["items"], item) for item in value]
    if kind == "map":
        return {key: plain(schema["values"], item) for key, item in value.items()}
    if kind == "record":
        return {field["name"]: plain(field["type"], value[field["name"]]) for field in schema["fields"]}
    return value


def as_dicts(schema: Json, value: Any) -> Any:
    """An Arrow value with its maps as dicts; a later entry of a key wins, as in fastavro."""
    if isinstance(schema, list):
        inner = next(branch for branch in schema if branch != "null")
        return None if value is None else as_dicts(inner, value)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "array":
        return [as_dicts(schema["items"], item) for item in value]
    if kind == "map":
        return {key: as_dicts(schema["values"], item) for key, item in value}
    if kind == "record":
        return {field["name"]: as_dicts(field["type"], value[field["name"]]) for field in schema["fields"]}
    return value
