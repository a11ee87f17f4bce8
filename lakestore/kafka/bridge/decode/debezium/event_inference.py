"""Infers the kinds of fields of change events without a schema, from all values of a block.

- Numbers are int64, or double if one has a decimal point. Kafka Connect writes NaN and infinities as texts, so the
  texts NaN, Infinity and -Infinity count as numbers in a numeric field.
- A list has the kind of its elements. An empty list is ignored.
- A field has the class of at least 99 % of its values, and the others become dead letters. Otherwise it is text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pyarrow as pa

from lakestore.kafka.bridge.decode.debezium import json_shapes
from lakestore.kafka.bridge.decode.debezium.connect_values import Kind
from lakestore.kafka.bridge.decode.inference import FLOATS, MOST, NEARLY_ALL


@dataclass(slots=True)
class Samples:
    """The values of one field."""

    classes: Counter[str] = field(default_factory=Counter)
    """Values by class: boolean, number, float (a text that means one), string, struct, array."""
    fractions: bool = False
    fields: dict[str, Samples] = field(default_factory=dict)
    items: Samples | None = None

    def add(self, value: Any) -> None:
        """Count one value. Null is ignored."""
        if value is None:
            return
        if isinstance(value, bool):
            found = "boolean"
        elif isinstance(value, int | float):
            found = "number"
            self.fractions |= isinstance(value, float)
        elif isinstance(value, dict):
            found = "struct"
            for name, part in value.items():
                self.fields.setdefault(name, Samples()).add(part)
        elif isinstance(value, list):
            found = "array"
            self.items = self.items or Samples()
            for part in value:
                self.items.add(part)
        else:
            found = "float" if value in FLOATS else "string"
        self.classes[found] += 1

    def _main(self) -> tuple[str, int]:
        classes = Counter(self.classes)
        floats = classes.pop("float", 0)
        classes["number" if classes["number"] else "string"] += floats
        main, count = classes.most_common(1)[0]
        return main, classes.total() - count

    @property
    def mixed(self) -> tuple[str, int, int] | None:
        """The main class, the number of other values and of all, if the user has to decide."""
        main, odd = self._main()
        total = self.classes.total()
        asks = main != "string" and (1 - NEARLY_ALL) * total < odd <= (1 - MOST) * total
        return (main, odd, total) if asks else None

    @property
    def kind(self) -> Kind:
        main, odd = self._main()
        if not self.classes or odd > (1 - NEARLY_ALL) * self.classes.total():
            return Kind("string")
        if main == "number":
            return Kind("double" if self.fractions or self.classes["float"] else "int64")
        if main == "struct":
            return self.struct
        if main == "array":
            return Kind("array", item=self.items.kind if self.items is not None else Kind("string"))
        return Kind(main)

    @property
    def struct(self) -> Kind:
        return Kind("struct", fields=tuple((name, part.kind) for name, part in self.fields.items()))


def sample_objects(texts: pa.BinaryArray, inside: Sequence[str]) -> Samples:
    """Samples of objects without a schema: the objects in the fields `inside`, or the whole texts."""
    samples = Samples()
    for text in texts.to_pylist():
        try:
            value = orjson.loads(text)
        except (orjson.JSONDecodeError, TypeError):
            continue
        images = [value.get(name) for name in inside] if inside and isinstance(value, dict) else [value]
        for image in images:
            if isinstance(image, dict):
                samples.add(image)
    return samples


def infer_kind(texts: pa.BinaryArray, inside: Sequence[str]) -> Kind:
    """The kind of objects without a schema."""
    return sample_objects(texts, inside).struct


def grow_kind(texts: pa.BinaryArray, inside: str, kind: Kind) -> Kind:
    """Return the kind of the objects in field `inside`, such as `after`: the known fields and all other fields of
    the objects.

    All texts are parsed, because one text may have a field that the others lack. A field that is always null is left
    out.
    """
    try:
        table = json_shapes.table_of(texts, pa.schema([]), "infer")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # the values of a field have several types
        return _joined(kind, infer_kind(texts, (inside,)))
    at = table.schema.get_field_index(inside)
    return kind if at < 0 else _joined(kind, _kind_of(table.schema.field(at).type))


def _joined(kind: Kind, other: Kind) -> Kind:
    if kind.name or kind.wire != other.wire:
        return kind
    if kind.item is not None and other.item is not None and kind.wire == "array":
        item = _joined(kind.item, other.item)
        return kind if item is kind.item else replace(kind, item=item, target=None)
    theirs = dict(other.fields)
    fields = [(name, _joined(part, theirs.pop(name)) if name in theirs else part) for name, part in kind.fields]
    fields += theirs.items()
    is_same = len(fields) == len(kind.fields) and all(a[1] is b[1] for a, b in zip(fields, kind.fields, strict=True))
    return kind if is_same else replace(kind, fields=tuple(fields), target=None)


_LEAVES = {pa.int64(): "int64", pa.float64(): "double", pa.bool_(): "boolean"}


def _kind_of(kind: pa.DataType) -> Kind:
    """The kind of the type that Arrow's reader chose. Texts that Arrow reads as times stay texts."""
    if pa.types.is_struct(kind):
        there = [part for part in kind if not pa.types.is_null(part.type)]
        return Kind("struct", fields=tuple((part.name, _kind_of(part.type)) for part in there))
    if pa.types.is_list(kind):
        return Kind("array", item=_kind_of(kind.value_type))
    return Kind(_LEAVES.get(kind, "string"))
