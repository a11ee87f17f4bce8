"""MongoDB documents as rows. Change events hold documents as extended JSON in text.

- Column `id` is the document's id from the record key, as text. Column `document` is the whole text. Other columns are
  the document's fields of the same names.
- Extended JSON's wrappers are removed: `{"$oid": "5f"}` becomes "5f", `{"$numberLong": "7"}` becomes 7, `{"$date": 0}`
  becomes 0. Decimals, UUIDs and binaries become texts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.kafka.bridge.decode.debezium import json_shapes
from lakestore.kafka.bridge.decode.debezium.change_events import Block
from lakestore.kafka.bridge.decode.debezium.connect_values import Faults, Kind
from lakestore.kafka.bridge.decode.debezium.event_rows import gather_structs, image
from lakestore.kafka.bridge.decode.debezium.unavailable import Markers
from lakestore.kafka.bridge.records import Ints

ID, DOCUMENT = "id", "document"
ROW = Kind("struct", fields=((ID, Kind("string")), (DOCUMENT, Kind("string"))))
"""The row if no columns are declared."""
CONNECTOR = "mongodb"
_KEY = "_id"
_WRAPPERS = (
    (r'\{\s*"\$number(?:Long|Int)"\s*:\s*"(-?[0-9]+)"\s*\}', r"\1"),
    (r'\{\s*"\$numberDouble"\s*:\s*"(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)"\s*\}', r"\1"),
    (r'\{\s*"\$(?:oid|numberDecimal|numberDouble|uuid|symbol)"\s*:\s*("[^"\\]*")\s*\}', r"\1"),
    (r'\{\s*"\$date"\s*:\s*(-?[0-9]+|"[^"\\]*")\s*\}', r"\1"),
    (r'\{\s*"\$binary"\s*:\s*\{\s*"base64"\s*:\s*("[^"\\]*")\s*,\s*"subType"\s*:\s*"[^"\\]*"\s*\}\s*\}', r"\1"),
    (r'\{\s*"\$binary"\s*:\s*("[^"\\]*")\s*,\s*"\$type"\s*:\s*"[^"\\]*"\s*\}', r"\1"),
)


def plain_json(texts: pa.StringArray) -> pa.StringArray:
    """Convert extended JSON to plain JSON. A wrapper inside a text has escaped quotes and is left alone."""
    for pattern, inside in _WRAPPERS:
        texts = pc.replace_substring_regex(texts, pattern, inside)
    return texts


def images(
    after: pa.Array, head: pa.StructArray, row: Kind, where: tuple[Block, Ints], faults: Faults, markers: Markers
) -> tuple[pa.StructArray, dict[str, pa.BooleanArray]]:
    """After-images of events, documents or rows. `where` is the block and the events' record numbers."""
    block, records = where
    text = pa.types.is_string(after.type)
    connectors = pc.struct_field(pc.struct_field(head, "source"), "connector")
    if not text and not pc.all(pc.equal(connectors, CONNECTOR), skip_nulls=False).as_py():
        return image(after, row, "value.after", faults, markers)
    if not block.plain_keys:
        block.keys, block.plain_keys = keys(block.keys, row), True
    ids = None if block.keys is None else block.keys.take(pa.array(records))
    return rows(after if text else pa.nulls(len(after), pa.string()), row, ids, faults, markers)


def keys(structs: pa.StructArray | None, row: Kind) -> pa.StructArray | None:
    """Keys with the document's id as plain text, named like the row's id field."""
    if structs is None or structs.type.get_field_index(ID) < 0:
        return structs
    column = pc.struct_field(structs, ID)
    if pa.types.is_string(column.type):
        column = pc.replace_substring_regex(plain_json(column), r'^"((?:[^"\\]|\\.)*)"$', r"\1")
    name = _KEY if row.child(_KEY) is not None and row.child(ID) is None else ID
    return pa.StructArray.from_arrays([column], [name], mask=structs.is_null())


def rows(
    texts: pa.StringArray, row: Kind, ids: pa.StructArray | None, faults: Faults, markers: Markers
) -> tuple[pa.StructArray, dict[str, pa.BooleanArray]]:
    """Rows of documents; null for a missing document. `ids` are the keys of the same events."""
    there = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False)).astype(np.int64)
    inner = Kind("struct", fields=tuple(part for part in row.fields if part[0] not in (ID, DOCUMENT)))
    parsed, kept = None, dict[str, pa.BooleanArray]()
    if inner.fields and len(there):
        parsed, kept = _parsed(texts, there, inner, faults, markers)
    columns = []
    for name, part in row.fields:
        if name == DOCUMENT:
            columns.append(texts)
        elif name == ID and ids is not None:
            columns.append(pc.struct_field(ids, [0]))
        elif parsed is None or parsed.type.get_field_index(name) < 0:
            columns.append(pa.nulls(len(texts), part.type))
        else:
            columns.append(pc.struct_field(parsed, name))
    names = [name for name, _ in row.fields]
    return pa.StructArray.from_arrays(columns, names, mask=texts.is_null()), kept


def _parsed(
    texts: pa.StringArray, present: Ints, inner: Kind, faults: Faults, markers: Markers
) -> tuple[pa.StructArray | None, dict[str, pa.BooleanArray]]:
    plain = plain_json(texts.take(pa.array(present))).cast(pa.binary())
    read = json_shapes.objects(plain, inner, json_shapes.learn_shape(plain, inner))
    for row, code, reason in read.faults:
        faults.found.append((present[[row]], code, reason, "value.after"))
    found, kept = [], dict[str, npt.NDArray[np.bool_]]()
    for at, raw in read.parts:
        inside = Faults()
        made, masks = image(raw, inner, "value.after", inside, markers)
        faults.found.extend((present[at][wrong], code, reason, path) for wrong, code, reason, path in inside.found)
        found.append((present[at], made))
        for name, mask in masks.items():
            whole = kept.setdefault(name, np.zeros(len(texts), bool))
            whole[present[at]] |= mask.to_numpy(zero_copy_only=False)
    return gather_structs(found, len(texts)), {name: pa.array(mask) for name, mask in kept.items()}
