"""Nested values of CSV, which are JSON texts in one field: a column of them at once, or one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.connectors.bridge.casting.cast_rules import Misfit
from lakestore.connectors.bridge.formats.json import json_one
from lakestore.connectors.bridge.formats.json.json_one import DEPTH_MAX, Refused
from lakestore.connectors.bridge.formats.json.json_records import FAR_DECIMAL, note_extra, parsed_at_once
from lakestore.connectors.bridge.formats.json.json_types import Shape
from lakestore.loading import casts

_ONE_BY_ONE_MAX = 64
_VALUE = "v"


class NestedTexts:
    """Reads columns of JSON texts."""

    def __init__(self) -> None:
        self._shapes: dict[pa.DataType, Shape] = {}

    def read(self, texts: pa.StringArray, field: pa.Field) -> pa.Array:
        """The values, as JSON has them; `Misfit` if one is none of the column's type."""
        kind = casts.written(field.type)
        shape = self._shapes.get(kind)
        if shape is None:
            shape = self._shapes[kind] = Shape.of(pa.schema([(_VALUE, kind)]), "value")
        rows = None if shape.by_hand else _at_once(texts, shape)
        if rows is None:
            if len(texts) > _ONE_BY_ONE_MAX and not shape.by_hand:
                raise Misfit(f"one is no {field.type}")
            rows = _one_by_one(texts, shape)
        return rows.field(0)


def _at_once(texts: pa.StringArray, shape: Shape) -> pa.StructArray | None:
    whole = texts.fill_null("null")
    odd = pc.or_(pc.match_substring(whole, "\n"), pc.greater(pc.binary_length(whole), 2 * DEPTH_MAX))
    if pc.any(odd).as_py() or (shape.has_decimals and pc.any(pc.match_substring_regex(whole, FAR_DECIMAL)).as_py()):
        return None
    lines = pc.binary_join_element_wise(f'{{"{_VALUE}":', whole, "}", "")
    lists = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    data = pc.binary_join(lists, "\n").buffers()[2]
    if data is None or not np.frombuffer(data, dtype=np.uint8).all():
        return None
    return parsed_at_once(data, len(texts), shape, "error")


def _one_by_one(texts: pa.StringArray, shape: Shape) -> pa.StructArray:
    rows = []
    for text in texts.to_pylist():
        try:
            found = json_one.parsed(f'{{"{_VALUE}":{"null" if text is None else text}}}'.encode())
            extra: dict[str, pa.DataType] = {}
            note_extra(found, shape.reader.fields, "", extra)
            if extra:
                raise Misfit(f"it has no field {min(extra).removeprefix(f'{_VALUE}.')!r}")
            rows.append(shape.reader.read(found))
        except Refused as refused:
            raise Misfit(refused.why.replace(f"value.{_VALUE}", "it")) from refused
    return pa.array(rows, shape.texts)
