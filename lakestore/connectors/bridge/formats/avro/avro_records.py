"""Avro records: a block's bodies by schema, each schema's whole columns at once, and all as the fields wanted.

Not made of one object container for a compiled reader: such readers trust the blocks that they are given, so that one
damaged record shifts its neighbours, and none of those at hand takes all types. Reading all records field by field is
as fast, and every record is held to its own bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lakestore.connectors.bridge.formats.avro import avro_plain
from lakestore.connectors.bridge.formats.avro.avro_columns import LONG, columns
from lakestore.connectors.bridge.formats.avro.avro_resolution import Incompatible, adapt, merged
from lakestore.connectors.bridge.formats.avro.avro_schema import Node, crc64, parsed
from lakestore.connectors.bridge.formats.joined import VALUE, Piece, as_struct, faults, joined, kept
from lakestore.connectors.bridge.framing.cursors import Cursors, Fault
from lakestore.connectors.bridge.framing.wire import Part, SchemaName, framed
from lakestore.connectors.bridge.outcome import TOMBSTONE, Decoded, Reject, Stage
from lakestore.connectors.bridge.records import Ints, Records
from lakestore.connectors.bridge.schemas.declared import Schemas
from lakestore.connectors.bridge.schemas.registry import Registered, Registry
from lakestore.connectors.bridge.spec import SchemaSpec, Wire
from lakestore.errors import Invalid

SCHEMAS_MERGED_MAX = 500
"""Schemas of one topic that the fields wanted are made of, the newest ones."""


@dataclass(slots=True)
class _Topic:
    """Schemas that one topic's records have named."""

    known: dict[str | int, Node | Fault] = field(default_factory=dict)
    reader: Node | None = None
    newest: Node | None = None


class AvroRecords:
    """A decoder of values or keys."""

    def __init__(
        self,
        *,
        wire: Wire = "auto",
        part: Part = "value",
        declared: SchemaSpec | None = None,
        registry: Registry | None = None,
        topic: str = "",
    ) -> None:
        self._wire: Wire = wire
        self._part: Part = part
        self._registered = registry is not None
        spec = declared or SchemaSpec()
        self._schemas = Schemas("AVRO", part, spec, registry)
        self._wanted = parsed(spec.text) if spec.text else None
        self._print = f"crc64:{crc64(spec.text)}" if spec.text else ""
        self._topics: dict[str, _Topic] = {}
        self._topic = topic

    def decode(self, records: Records, wanted: pa.Schema | None = None) -> Decoded:
        """The rows of a block; nulls are passed as tombstones."""
        block = framed(records, self._wire, self._part, format="avro", registry=self._registered)
        topic = self._topics.setdefault(records.topic, _Topic())
        self._topic = records.topic
        rejects, found = list(block.rejects), []
        for name, rows in block.groups():
            node = self._node(name, records.topic, topic)
            if isinstance(node, Fault):
                stage = Stage.DECODE if node.code == "bad-schema" else Stage.WIRE
                said = (node.code, node.sentence, node.path)
                rejects += [Reject(record, stage, *said) for record in block.record[rows].tolist()]
                continue
            found.append((node, _read(node, block.payloads_of(rows), block.record[rows], rejects)))
        reader = self._reader(topic)
        pieces = [each for node, piece in found if (each := _adapted(piece, node, reader, rejects)) is not None]
        empty = reader.arrow if reader is not None else pa.struct([])
        return joined(pieces, rejects, {TOMBSTONE: block.nulls}, empty)

    def schema(self) -> pa.Schema | None:
        """Fields of the newest schema, and of older ones that records have named; None before there is any."""
        topic = self._topics.setdefault(self._topic, _Topic())
        if topic.reader is None and self._wanted is None and self._topic:
            self._node(None, self._topic, topic)
        reader = self._reader(topic)
        if reader is None:
            return None
        if reader.kind == "record":
            return pa.schema([field.arrow for field in reader.fields])
        return pa.schema([pa.field(VALUE, reader.arrow, nullable=reader.nullable)])

    def _reader(self, topic: _Topic) -> Node | None:
        return self._wanted or topic.reader

    def _node(self, name: SchemaName | None, topic: str, state: _Topic) -> Node | Fault:
        """The writer's schema. A registry that does not answer raises, and nothing is remembered."""
        if name is not None and name.id in state.known:
            return state.known[name.id]
        if self._wanted is not None and (name is None or name.id == self._print):
            return self._wanted
        found = self._schemas.declared(topic) if name is None else self._schemas.named(name, topic)
        if isinstance(found, Fault):
            return found
        node = _tree(found)
        state.known[found.id if name is None and found.id is not None else name.id if name is not None else ""] = node
        _merge(state)
        return node


def _merge(state: _Topic) -> None:
    """The fields wanted, anew: of the newest schema first. Numbers grow with time; GUIDs come as they were seen."""
    numbers = sorted((name for name in state.known if isinstance(name, int)), reverse=True)
    names: list[str | int] = [*numbers, *reversed([name for name in state.known if isinstance(name, str)])]
    nodes = [node for name in names[:SCHEMAS_MERGED_MAX] if isinstance(node := state.known[name], Node)]
    state.newest = nodes[0] if nodes else None
    state.reader = state.newest
    for older in nodes[1:]:
        assert state.reader is not None
        state.reader = merged(state.reader, older)


def _tree(found: Registered) -> Node | Fault:
    try:
        return parsed(found.text, found.references)
    except Invalid as error:
        return Fault("bad-schema", str(error), "")


def _read(node: Node, payloads: pa.BinaryArray, record: Ints, rejects: list[Reject]) -> Piece:
    """The rows of one schema; records that cannot be read join the rejects."""
    cursors = Cursors.of(payloads)
    values = columns(node, cursors)
    fine = np.flatnonzero(~cursors.bad)
    piece = Piece(kept(values, ~cursors.bad), record[fine])
    long = [row for row, fault in cursors.faults.items() if fault.code == LONG]
    rejects += faults({row: fault for row, fault in cursors.faults.items() if fault.code != LONG}, record)
    return piece if not long else _with_long(piece, node, payloads, record, sorted(long), rejects)


def _with_long(
    piece: Piece, node: Node, payloads: pa.BinaryArray, record: Ints, long: Sequence[int], rejects: list[Reject]
) -> Piece:
    """The rows, and those of records that are read by themselves."""
    values, rows = [piece.values], []
    for row in long:
        try:
            values.append(avro_plain.array(node, payloads[row].as_py()))
            rows.append(row)
        except avro_plain.Unreadable as error:
            rejects += faults({row: error.fault}, record)
    return Piece(pa.concat_arrays(values), np.concatenate([piece.record, record[rows]]))


def _adapted(piece: Piece, node: Node, reader: Node | None, rejects: list[Reject]) -> Piece | None:
    if reader is None or reader is node:
        return Piece(as_struct(piece.values), piece.record)
    try:
        return Piece(as_struct(adapt(piece.values, node, reader)), piece.record)
    except Incompatible as error:
        said = (Stage.SCHEMA, "waits-for-proposal", str(error), error.path)
        rejects += [Reject(record, *said) for record in piece.record.tolist()]
        return None
