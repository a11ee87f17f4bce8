"""Decoder of Debezium's Avro change events. Properties in the registry's schemas give values their meaning."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.kafka.bridge.decode.debezium import documents
from lakestore.kafka.bridge.decode.debezium.before_images import without_fillers
from lakestore.kafka.bridge.decode.debezium.change_events import HEAD, Block, Changes, Events, Keys, Policy
from lakestore.kafka.bridge.decode.debezium.connect_values import TIMESTAMPS, Faults, Kind, convert
from lakestore.kafka.bridge.decode.debezium.debezium import reason_of
from lakestore.kafka.bridge.decode.debezium.event_rows import (
    gather_structs,
    image,
    row_kind,
    row_of,
    wanted_row,
)
from lakestore.kafka.bridge.decode.debezium.unavailable import Markers
from lakestore.kafka.bridge.decode.decoding import Decoder
from lakestore.kafka.bridge.outcome import DecodedBlock, Reject, Stage
from lakestore.kafka.bridge.records import Ints, Records

_WIRES = ((pa.types.is_boolean, "boolean"), (pa.types.is_int32, "int32"), (pa.types.is_integer, "int64"),
          (pa.types.is_float32, "float"), (pa.types.is_floating, "double"), (pa.types.is_string, "string"))  # fmt: skip
_NO_EVENT = "the record is not a Debezium event: its schema has no `op`; say `format: avro` for other records"


class AvroKeys:
    """Decodes Avro record keys."""

    def __init__(self, decoder: Decoder) -> None:
        """`decoder` decodes the record keys."""
        self._decoder = decoder

    def structs(self, records: Records, wanted: pa.Schema | None) -> pa.StructArray | None:
        found = self._decoder.decode(records, None)
        kind = kind_of(pa.field("key", found.values.type))
        made = convert(found.values, kind, "key", Faults())
        return gather_structs([(found.record, made)], len(records)) if kind.fields else None


class DebeziumAvro:
    """Decodes Avro change events. `wanted` names fields of rows; envelope fields are in `Decoded.envelope`."""

    def __init__(
        self, values: Decoder, keys: Keys, *, policy: Policy | None = None, unavailable: Sequence[str] = ()
    ) -> None:
        """`values` decodes whole envelopes."""
        self._values, self._keys = values, keys
        self._changes = Changes(policy or Policy())
        self._markers = Markers.of(unavailable)

    def decode(self, records: Records, wanted: pa.Schema | None) -> DecodedBlock:
        found = self._values.decode(records, None)
        block = Block([], list(found.rejects), {}, self._keys.structs(records, wanted))
        kind = kind_of(pa.field("value", found.values.type))
        if len(found.record):
            self._events(found, kind, wanted, block)
        return self._changes.decode(records, block)

    def schema(self) -> pa.Schema | None:
        whole = self._values.schema()
        row = None if whole is None else row_kind(kind_of(pa.field("value", pa.struct(list(whole)))))
        row = documents.ROW if row is not None and row.wire != "struct" else row
        return None if row is None else pa.schema(row.type)

    def _events(self, decoded: DecodedBlock, kind: Kind, wanted: pa.Schema | None, block: Block) -> None:
        row, asked = row_of(wanted_row(wanted, {}), kind), wanted_row(wanted, {})
        if (own := row_kind(kind)) is not None and own.wire != "struct":
            row = asked or documents.ROW
        known = np.zeros(len(decoded.record), bool)
        if row_kind(kind) is not None and kind.child("op") is not None:
            known = pc.struct_field(decoded.values, "op").is_valid().to_numpy(zero_copy_only=False)
        _not_events(decoded.record[~known], kind, decoded.values.filter(pa.array(~known)), block)
        if row is None or not known.any():
            return
        rows, raw = decoded.record[known], decoded.values.filter(pa.array(known))
        faults = Faults()
        head = convert(raw, HEAD, "value", faults)
        needed = self._changes.with_before(head, block.keys)
        shown = _image(raw, "after", row)
        after, kept = documents.images(shown, head, row, (block, rows), faults, self._markers)
        some, _ = image(_image(raw, "before", row).take(pa.array(needed)), row, "", Faults(), self._markers)
        whole = gather_structs([(needed, some)], len(rows)) if pa.types.is_struct(some.type) else None
        good = block.faultless(faults, rows)
        before = (
            pa.nulls(len(rows), row.type) if whole is None else without_fillers(whole, row, block.keys_of(rows), head)
        )
        block.events.append(Events(rows, head, before, after, kept).where(good))


def _image(raw: pa.StructArray, name: str, row: Kind) -> pa.Array:
    at = raw.type.get_field_index(name)
    return pa.nulls(len(raw), row.type) if at < 0 else pc.struct_field(raw, [at])


def _not_events(rows: Ints, kind: Kind, values: pa.StructArray, block: Block) -> None:
    for row, value in zip(rows.tolist(), values.to_pylist(), strict=True):
        reason = reason_of({name for name, part in value.items() if part is not None})
        if reason:
            block.passed.setdefault(reason, []).append(row)
        else:
            block.rejects.append(Reject(row, Stage.DECODE, "not-an-event", _NO_EVENT, "value.op"))


def kind_of(field: pa.Field) -> Kind:
    """The kind of an Avro field, from its type and Connect's properties in the schema."""
    kind, t = field.type, pa.types
    said = field.metadata or {}
    name = said.get(b"connect.name", b"").decode()
    if t.is_struct(kind):
        return Kind("struct", name, fields=tuple((part.name, kind_of(part)) for part in kind))
    if t.is_list(kind):
        return Kind("array", item=kind_of(kind.value_field))
    if t.is_map(kind):
        return Kind("map", item=kind_of(kind.item_field), key=kind_of(kind.key_field))
    if t.is_timestamp(kind):
        local = kind.tz is None or name in TIMESTAMPS
        return Kind("int64", target=pa.timestamp("us") if local else pa.timestamp("us", tz="UTC"))
    if t.is_temporal(kind) or t.is_decimal(kind):
        return Kind("bytes", target=kind)
    wire = next((wire for test, wire in _WIRES if test(kind)), "bytes")
    return Kind(wire, name, _parameters(said.get(b"connect.parameters", b"{}")))


def _parameters(text: bytes) -> dict[str, str]:
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in said.items()} if isinstance(said, dict) else {}
