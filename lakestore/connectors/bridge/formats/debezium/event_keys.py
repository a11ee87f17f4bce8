"""Keys of change events, as structs."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from lakestore.connectors.bridge.formats.debezium import json_shapes
from lakestore.connectors.bridge.formats.debezium.connect_types import Kind, from_arrow
from lakestore.connectors.bridge.formats.debezium.connect_values import Faults, converted
from lakestore.connectors.bridge.formats.debezium.event_inference import inferred
from lakestore.connectors.bridge.formats.debezium.event_rows import gathered
from lakestore.connectors.bridge.formats.debezium.schema_parts import SchemaParts
from lakestore.connectors.bridge.framing.wire import framed
from lakestore.connectors.bridge.records import Ints, Records
from lakestore.connectors.bridge.spec import Wire

_KEYS_SAMPLED = 64


class Keys(Protocol):
    """A format of keys."""

    def structs(self, records: Records, wanted: pa.Schema | None) -> pa.StructArray | None:
        """Keys of all records; null where there is none, or one that is no object. None: no record has one."""
        ...


class JsonKeys:
    """Keys in JSON."""

    def __init__(self, wire: Wire) -> None:
        self._wire: Wire = wire
        self._parts = SchemaParts()

    def structs(self, records: Records, wanted: pa.Schema | None) -> pa.StructArray | None:
        """Keys of all records; null where there is none, or one that is no object."""
        keys = framed(records, self._wire, "key")
        found: list[tuple[Ints, pa.StructArray]] = []
        for part in self._parts.split(keys.payloads):
            kind = part.kind if part.kind is not None else _key_kind(part.texts, wanted)
            if kind is None or not kind.fields:
                continue
            read = json_shapes.objects(part.texts, kind, json_shapes.learned(part.texts, kind))
            for rows, raw in read.parts:
                faults = Faults()
                made = converted(raw, kind, "key", faults)
                wrong = np.zeros(len(made), bool)
                for bad, *_ in faults.found:
                    wrong[bad] = True
                found.append((keys.record[part.rows[rows[~wrong]]], made.filter(pa.array(~wrong))))
        return gathered(found, len(records))


def _key_kind(texts: pa.BinaryArray, wanted: pa.Schema | None) -> Kind | None:
    """The kind of keys without a schema: their own fields, in the types that the same fields of rows have."""
    own = inferred(texts[:_KEYS_SAMPLED], ())
    if wanted is None:
        return own
    said = {part.name: from_arrow(part) for part in wanted}
    return Kind("struct", fields=tuple((name, said.get(name, kind)) for name, kind in own.fields))
