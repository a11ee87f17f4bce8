"""Decoder of Debezium's JSON change events, with or without the schema part, whole or flattened by Debezium's
transform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.kafka.bridge.decode.debezium import documents, json_shapes
from lakestore.kafka.bridge.decode.debezium.before_images import without_fillers
from lakestore.kafka.bridge.decode.debezium.change_events import HEAD, Block, Changes, Events, JsonKeys, Keys, Policy
from lakestore.kafka.bridge.decode.debezium.connect_values import Faults, Kind, convert
from lakestore.kafka.bridge.decode.debezium.event_inference import grow_kind, infer_kind
from lakestore.kafka.bridge.decode.debezium.event_rows import (
    gather_structs,
    image,
    row_kind,
    row_of,
    wanted_row,
)
from lakestore.kafka.bridge.decode.debezium.schema_parts import Part, SchemaParts
from lakestore.kafka.bridge.decode.debezium.unavailable import Markers
from lakestore.kafka.bridge.decode.framing import strip_framing
from lakestore.kafka.bridge.outcome import DecodedBlock, Reject, Stage
from lakestore.kafka.bridge.records import Ints, Records
from lakestore.kafka.bridge.spec import Wire

_TEXT = Kind("string")
_TELLTALE = (("status", _TEXT), ("ddl", _TEXT), ("databaseName", _TEXT), ("__op", _TEXT), ("__deleted", _TEXT))
"""Fields that identify records without an envelope."""
_AFTER_ALONE = Kind("struct", fields=(("after", _TEXT),))
_TIMES_ONLY = {"ts_ms", "ts_us", "ts_ns"}
_FLAT = {"db": "__db", "schema": "__schema", "table": "__table", "connector": "__connector", "lsn": "__lsn"}
_NO_EVENT = (
    "the record is not a Debezium event: it has no `op`; say `format: json` for flattened events that have neither "
    "`__op` nor `__deleted`"
)


@dataclass(slots=True)
class _Reading:
    """State of one block while it is decoded."""

    wanted: Kind | None
    """The requested row; None: all fields."""
    block: Block


class DebeziumJson:
    """Decodes JSON change events. `wanted` names fields of rows; envelope fields are in `Decoded.envelope`."""

    def __init__(
        self,
        *,
        wire: Wire = "auto",
        policy: Policy | None = None,
        unavailable: Sequence[str] = (),
        units: Mapping[str, str] | None = None,
        keys: Keys | None = None,
    ) -> None:
        """`units` maps a decimal field that arrives as text without a schema to base64 or text."""
        self._wire: Wire = wire
        self._changes = Changes(policy or Policy())
        self._markers = Markers.of(unavailable)
        self._units = units or {}
        self._values = SchemaParts()
        self._newest: Kind | None = None
        """The kind that `_schema` was computed for."""
        self._schema: pa.Schema | None = None
        self._keys: Keys = keys or JsonKeys(wire)

    def decode(self, records: Records, wanted: pa.Schema | None) -> DecodedBlock:
        block = Block([], [], {}, self._keys.structs(records, wanted))
        values = strip_framing(records, self._wire)
        block.rejects.extend(values.rejects)
        reading = _Reading(wanted_row(wanted, self._units), block)
        for part in self._values.split(values.payloads):
            self._part(Part(values.record[part.rows], part.kind, part.texts), reading)
        return self._changes.decode(records, block)

    def schema(self) -> pa.Schema | None:
        """Row fields of the newest schema part, then fields that only older schema parts have."""
        if self._values.newest is not self._newest:
            rows = [row for kind in self._values.kinds if (row := row_kind(kind)) is not None]
            if any(row.wire != "struct" for row in rows[:1]):
                rows = [documents.ROW]
            fields: dict[str, Kind] = {}
            for row in rows:
                fields = dict(row.fields) | fields
            self._newest = self._values.newest
            self._schema = pa.schema(Kind("struct", fields=tuple(fields.items())).type) if rows else None
        return self._schema

    def _part(self, part: Part, reading: _Reading) -> None:
        kind = part.kind
        if kind is None or kind.child("op") is not None:
            self._enveloped(part, reading)
        elif kind.child("__op") is not None or kind.child("__deleted") is not None:
            self._flat(part.rows, part.texts, row_of(reading.wanted, kind) or kind, reading)
        else:
            self._not_events(part.rows, part.texts, reading)

    def _enveloped(self, part: Part, reading: _Reading) -> None:
        row = self._row(part, reading)
        head = Kind("struct", fields=tuple(_head_of(part.kind)))
        kind = Kind("struct", fields=(*head.fields, ("after", row), *_TELLTALE))
        read = json_shapes.objects(part.texts, kind, json_shapes.learn_shape(part.texts, kind))
        self._reject(part.rows, read.faults, reading)
        for rows, raw in read.parts:
            known = pc.struct_field(raw, "op").is_valid().to_numpy(zero_copy_only=False)
            if not known.all():
                self._others(part.rows[rows[~known]], part.texts.take(pa.array(rows[~known])), raw, ~known, reading)
                rows, raw = rows[known], raw.filter(pa.array(known))
            if len(rows):
                self._events(part.rows[rows], _some(part.texts, rows), raw, row, reading)

    def _row(self, part: Part, reading: _Reading) -> Kind:
        own = None if part.kind is None else row_kind(part.kind)
        said = None if own is not None and own.wire != "struct" else row_of(reading.wanted, part.kind)
        if said is not None and part.kind is None and said.fields and said is reading.wanted:
            return grow_kind(part.texts, "after", said)
        if said is not None or reading.wanted is not None:
            return said or reading.wanted or documents.ROW
        shape = json_shapes.learn_shape(part.texts, _AFTER_ALONE)
        text = isinstance(shape, dict) and shape.get("after") == "string"
        return documents.ROW if own is not None or text else infer_kind(part.texts, ("after", "before"))

    def _events(self, rows: Ints, texts: pa.BinaryArray, raw: pa.StructArray, row: Kind, reading: _Reading) -> None:
        faults = Faults()
        head = convert(raw, HEAD, "value", faults)
        asked = self._changes.with_before(head, reading.block.keys)
        before = pa.nulls(len(rows), row.type)
        if len(asked):
            before = self._before(texts, row, asked)
            before = without_fillers(before, row, reading.block.keys_of(rows), head)
        shown = pc.struct_field(raw, "after")
        after, kept = documents.images(shown, head, row, (reading.block, rows), faults, self._markers)
        good = reading.block.faultless(faults, rows)
        events = Events(rows, head, before, after, kept)
        reading.block.events.append(events.where(good))

    def _before(self, texts: pa.BinaryArray, row: Kind, asked: Ints) -> pa.StructArray:
        """Before-images of some events, at their positions. An unreadable image is null: the key identifies the row."""
        some = texts.take(pa.array(asked))
        kind = Kind("struct", fields=(("before", row),))
        read = json_shapes.objects(some, kind, json_shapes.learn_shape(some, kind))
        found = []
        for rows, raw in read.parts:
            before, _ = image(pc.struct_field(raw, "before"), row, "", Faults(), self._markers)
            if pa.types.is_struct(before.type):
                found.append((asked[rows], before))
        whole = gather_structs(found, len(texts))
        return pa.nulls(len(texts), row.type) if whole is None else whole

    def _others(
        self, rows: Ints, texts: pa.BinaryArray, raw: pa.StructArray, mask: npt.NDArray[np.bool_], reading: _Reading
    ) -> None:
        raw = raw.filter(pa.array(mask))
        flat = pc.or_(pc.struct_field(raw, "__op").is_valid(), pc.struct_field(raw, "__deleted").is_valid())
        flattened = flat.to_numpy(zero_copy_only=False)
        if flattened.any():
            some = texts.filter(pa.array(flattened))
            self._flat(rows[flattened], some, reading.wanted or infer_kind(some, ()), reading)
        self._not_events(rows[~flattened], texts.filter(pa.array(~flattened)), reading)

    def _flat(self, rows: Ints, texts: pa.BinaryArray, row: Kind, reading: _Reading) -> None:
        fields = [(name, part) for name, part in row.fields if not name.startswith("__")]
        row = Kind("struct", fields=tuple(fields))
        marks = tuple((name, _TEXT) for name in ("__op", "__deleted", *_FLAT.values()))
        kind = Kind("struct", fields=(*row.fields, *marks))
        read = json_shapes.objects(texts, kind, json_shapes.learn_shape(texts, kind))
        self._reject(rows, read.faults, reading)
        for at, raw in read.parts:
            faults = Faults()
            flags = convert(raw, Kind("struct", fields=marks), "value", faults)
            shown, kept = image(raw, row, "value", faults, self._markers)
            gone = _equal(pc.struct_field(flags, "__deleted"), "true") | _equal(pc.struct_field(flags, "__op"), "d")
            head = _flat_head(flags, gone)
            good = reading.block.faultless(faults, rows[at])
            events = Events(rows[at], head, shown, shown, kept)
            reading.block.events.append(events.where(good))

    def _not_events(self, rows: Ints, texts: pa.BinaryArray, reading: _Reading) -> None:
        for row, text in zip(rows.tolist(), texts.to_pylist(), strict=True):
            try:
                names = set(orjson.loads(text))
            except (orjson.JSONDecodeError, TypeError):
                names = set()
            reason = reason_of(names)
            if reason:
                reading.block.passed.setdefault(reason, []).append(row)
            else:
                reading.block.rejects.append(Reject(row, Stage.DECODE, "not-an-event", _NO_EVENT, "value.op"))

    def _reject(self, rows: Ints, faults: list[tuple[int, str, str]], reading: _Reading) -> None:
        for row, code, reason in faults:
            reading.block.rejects.append(Reject(int(rows[row]), Stage.DECODE, code, reason, "value"))


def _head_of(kind: Kind | None) -> list[tuple[str, Kind]]:
    if kind is None:
        return list(HEAD.fields)
    said = kind.child("source") or Kind("struct")
    names = {name for name, _ in said.fields}
    source = Kind("struct", fields=tuple(part for part in dict(HEAD.fields)["source"].fields if part[0] in names))
    kept = [(name, part) for name, part in HEAD.fields if name != "source" and kind.child(name) is not None]
    return [*kept, ("source", source)] if source.fields else kept


def reason_of(names: set[str]) -> str:
    """The reason to pass records with these fields, such as heartbeats; empty if such records are invalid."""
    if {"status", "id"} <= names:
        return "transaction-marker"
    if names & {"ddl", "tableChanges"}:
        return "schema-change"
    return "heartbeat" if names and names <= _TIMES_ONLY else ""


def _some(texts: pa.BinaryArray, rows: Ints) -> pa.BinaryArray:
    return texts if len(rows) == len(texts) else texts.take(pa.array(rows))


def _equal(texts: pa.StringArray, text: str) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.equal(texts, text).fill_null(False).to_numpy(zero_copy_only=False))


def _flat_head(flags: pa.StructArray, gone: npt.NDArray[np.bool_]) -> pa.StructArray:
    letter = pc.struct_field(flags, "__op")
    put = pc.if_else(pc.is_in(letter, value_set=pa.array(["c", "r", "u"])), letter, "u")
    raw = {name: pc.struct_field(flags, flat) for name, flat in _FLAT.items()}
    source = pa.StructArray.from_arrays(list(raw.values()), list(raw))
    op = pc.if_else(pa.array(gone), "d", pc.coalesce(put, pa.scalar("u")))
    return convert(pa.StructArray.from_arrays([op, source], ["op", "source"]), HEAD, "value", Faults())
