"""The kinds of fields that change events bring without a schema, from all values of a block.

- Numbers are int64, or double where one has a point. Kafka Connect writes NaN and infinities as texts, so the texts
  NaN, Infinity and -Infinity are numbers where a field has others.
- Lists have the kind of their elements. An empty list tells nothing.
- At least 99 % of one class decide, and the rest are dead letters. Otherwise a field of several classes is text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from lakestore.connectors.bridge.formats.debezium import json_shapes
from lakestore.connectors.bridge.formats.debezium.connect_types import Kind
from lakestore.connectors.bridge.formats.json.inference import FLOATS, MOST, NEARLY_ALL


@dataclass(slots=True)
class Samples:
    """The values of one field."""

    classes: Counter[str] = field(default_factory=Counter)
    """Values by class: boolean, number, float (a text that stands for one), string, struct, array."""
    fractions: bool = False
    fields: dict[str, Samples] = field(default_factory=dict)
    items: Samples | None = None

    def add(self, value: Any) -> None:
        """One more value; null tells nothing."""
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
        """The class of most values, and the values of other ones."""
        classes = Counter(self.classes)
        floats = classes.pop("float", 0)
        classes["number" if classes["number"] else "string"] += floats
        main, count = classes.most_common(1)[0]
        return main, classes.total() - count

    @property
    def mixed(self) -> tuple[str, int, int] | None:
        """The class of most values, the values of other ones and all, where somebody is to decide between these."""
        main, odd = self._main()
        total = self.classes.total()
        asks = main != "string" and (1 - NEARLY_ALL) * total < odd <= (1 - MOST) * total
        return (main, odd, total) if asks else None

    @property
    def kind(self) -> Kind:
        """The kind of nearly all values, or text."""
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
        """The kind of objects."""
        return Kind("struct", fields=tuple((name, part.kind) for name, part in self.fields.items()))


def sampled(texts: pa.BinaryArray, inside: Sequence[str]) -> Samples:
    """The values of objects that no schema tells: of those in the named fields, or the whole ones."""
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


def inferred(texts: pa.BinaryArray, inside: Sequence[str]) -> Kind:
    """The kind of these objects."""
    return sampled(texts, inside).struct


def beside(texts: pa.BinaryArray, inside: str, known: Kind) -> list[tuple[str, Kind]]:
    """Return the fields of objects in a field, as `after`, that are not known; those that are null everywhere are none.

    Only a look at all of the texts can tell that there are none.
    """
    names = {name for name, _ in known.fields}
    try:
        table = json_shapes.table_of(texts, pa.schema([]), "infer")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # values of a field are of several types
        return [(name, kind) for name, kind in inferred(texts, (inside,)).fields if name not in names]
    at = table.schema.get_field_index(inside)
    kind = table.schema.field(at).type if at >= 0 else pa.null()
    if not pa.types.is_struct(kind):
        return []
    return [(part.name, _kind_of(part.type)) for part in kind if part.name not in names]


_LEAVES = {pa.int64(): "int64", pa.float64(): "double", pa.bool_(): "boolean"}


def _kind_of(kind: pa.DataType) -> Kind:
    """The kind of values whose type Arrow's reader has chosen; texts that it takes for times are texts."""
    if pa.types.is_struct(kind):
        return Kind("struct", fields=tuple((part.name, _kind_of(part.type)) for part in kind))
    if pa.types.is_list(kind):
        return Kind("array", item=_kind_of(kind.value_type))
    return Kind(_LEAVES.get(kind, "string"))
