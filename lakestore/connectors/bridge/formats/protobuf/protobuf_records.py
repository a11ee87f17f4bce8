"""Protobuf records: a block's messages by schema, read with the fields of the newest schema and of older ones.

A field is told by its number, so that a renamed field goes on under its newest name. Records whose schema gave a number
another type wait for a decision. Different messages of one topic are rows of all their fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor_pool import DescriptorPool

from lakestore.connectors.bridge.formats.joined import Piece, faults, joined, kept
from lakestore.connectors.bridge.formats.protobuf.proto_columns import columns
from lakestore.connectors.bridge.formats.protobuf.proto_files import compiled, message
from lakestore.connectors.bridge.formats.protobuf.proto_schema import Message, aliased, conflict, planned, unions
from lakestore.connectors.bridge.framing.cursors import Cursors, Fault
from lakestore.connectors.bridge.framing.wire import Part, SchemaName, framed
from lakestore.connectors.bridge.outcome import TOMBSTONE, Decoded, Reject, Stage
from lakestore.connectors.bridge.records import Ints, Records
from lakestore.connectors.bridge.schemas.declared import Schemas
from lakestore.connectors.bridge.schemas.registry import Registered, Registry
from lakestore.connectors.bridge.spec import SchemaSpec, Wire
from lakestore.errors import Invalid

SCHEMAS_MERGED_MAX = 500
"""Schemas of one message that the fields wanted are made of, the newest ones."""
FORMER_VERSIONS = 10
"""Versions of a topic's subject that are looked at for the names that fields had."""
_File = tuple[DescriptorPool, str]


@dataclass(slots=True)
class _Topic:
    """Schemas that one topic's records have named."""

    files: dict[int | str, _File | Fault] = field(default_factory=dict)
    writers: dict[SchemaName, Message | Fault] = field(default_factory=dict)
    readers: dict[str, Message] = field(default_factory=dict)
    """Full name of a message to the fields wanted."""
    former: list[Message] | None = None
    """Messages of the subject's versions, for the names that fields had; None until they are asked for."""


class ProtobufRecords:
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
        self._spec = declared or SchemaSpec()
        self._schemas = Schemas("PROTOBUF", part, self._spec, registry)
        self._topics: dict[str, _Topic] = {}
        self._topic = topic

    def decode(self, records: Records, wanted: pa.Schema | None = None) -> Decoded:
        """The rows of a block; nulls are passed as tombstones."""
        block = framed(records, self._wire, self._part, format="protobuf", registry=self._registered)
        state = self._topics.setdefault(records.topic, _Topic())
        self._topic = records.topic
        rejects, pieces = list(block.rejects), []
        groups: dict[str, list[Ints]] = {}
        for name, rows in block.groups():
            writer = self._writer(name, records.topic, state)
            said = self._refusal(writer, state)
            if said is not None:
                rejects += [Reject(record, *said) for record in block.record[rows].tolist()]
            elif isinstance(writer, Message):
                groups.setdefault(writer.name, []).append(rows)
        for whole_name, parts in groups.items():
            rows = np.sort(np.concatenate(parts))
            pieces.append(_read(state.readers[whole_name], block.payloads_of(rows), block.record[rows], rejects))
        return joined(_alike(pieces, rejects), rejects, {TOMBSTONE: block.nulls}, self._empty(state))

    def schema(self) -> pa.Schema | None:
        """Fields of the newest schema, and of older ones that records have named; None before there is any."""
        state = self._topics.setdefault(self._topic, _Topic())
        if not state.readers and (self._spec.text or self._topic):
            self._writer(None, self._topic, state)
        fields: dict[str, pa.Field] = {}
        for reader in state.readers.values():
            for each in reader.schema:
                fields.setdefault(each.name, each if len(state.readers) == 1 else each.with_nullable(True))
        return pa.schema(list(fields.values())) if fields else None

    def _empty(self, state: _Topic) -> pa.DataType:
        return next((reader.arrow for reader in state.readers.values()), pa.struct([]))

    def _refusal(self, writer: Message | Fault, state: _Topic) -> tuple[Stage, str, str, str] | None:
        if isinstance(writer, Fault):
            stage = Stage.DECODE if writer.code == "bad-schema" else Stage.WIRE
            return stage, writer.code, writer.sentence, writer.path
        path = conflict(writer, state.readers[writer.name])
        if not path:
            return None
        text = f"{path} has another type in the record's schema than in the newest: decide on the proposal"
        return Stage.SCHEMA, "waits-for-proposal", text, path

    def _writer(self, name: SchemaName | None, topic: str, state: _Topic) -> Message | Fault:
        """The message of a record. A registry that does not answer raises, and nothing is remembered."""
        if name is not None and name in state.writers:
            return state.writers[name]
        known = name or SchemaName("")
        file = state.files.get(known.id) if name is not None or self._spec.text else None
        if file is None:
            found = self._schemas.declared(topic) if name is None else self._schemas.named(name, topic)
            if isinstance(found, Fault):
                return found
            known = known if name is not None or found.id is None else SchemaName(found.id)
            file = state.files.get(known.id) or _file(found)
            state.files[known.id] = file
        if isinstance(file, Fault):
            return file
        if known in state.writers:
            return state.writers[known]
        writer = self._message(file, known)
        if isinstance(writer, Message):
            reader = _reader({**state.writers, known: writer}, writer.name)
            for older in self._former(topic, state, writer.name):
                reader = aliased(reader, older)
            state.readers[writer.name] = reader
        state.writers[known] = writer
        return writer

    def _former(self, topic: str, state: _Topic, name: str) -> list[Message]:
        """The message as older versions of the topic's subject have it."""
        if state.former is None:
            found = [_file(each) for each in self._schemas.former(topic, FORMER_VERSIONS)]
            state.former = [each for file in found if not isinstance(file, Fault) for each in _messages(file)]
        return [each for each in state.former if each.name == name]

    def _message(self, file: _File, name: SchemaName) -> Message | Fault:
        declared = self._spec.message if not name.message else ""
        try:
            return planned(message(*file, name.message or (0,), declared))
        except Invalid as error:
            code = "bad-message-index" if name.message else "bad-schema"
            return Fault(code, str(error), "")


def _messages(file: _File) -> list[Message]:
    """The messages of a file that are in no other, those that columns hold."""
    pool, name = file
    found = []
    for each in pool.FindFileByName(name).message_types_by_name.values():
        try:
            found.append(planned(each))
        except Invalid:
            continue
    return found


def _file(found: Registered) -> _File | Fault:
    try:
        return compiled(found.text, found.references)
    except Invalid as error:
        return Fault("bad-schema", str(error), "")


def _reader(writers: Mapping[SchemaName, Message | Fault], name: str) -> Message:
    """The fields wanted of a message: of its newest schema first. Numbers grow; GUIDs come as they were seen."""
    mine = [(at, key, writer) for at, (key, writer) in enumerate(writers.items()) if isinstance(writer, Message)]
    mine = [each for each in mine if each[2].name == name]
    mine.sort(key=lambda each: (isinstance(each[1].id, int), each[1].id if isinstance(each[1].id, int) else each[0]))
    newest, *older = [writer for _, _, writer in reversed(mine)][:SCHEMAS_MERGED_MAX]
    for each in older:
        newest = unions(newest, each)
    return newest


def _read(reader: Message, payloads: pa.BinaryArray, record: Ints, rejects: list[Reject]) -> Piece:
    cursors = Cursors.of(payloads)
    values = columns(reader, cursors)
    rejects += faults(cursors.faults, record)
    return Piece(kept(values, ~cursors.bad), record[~cursors.bad])


def _alike(pieces: Sequence[Piece], rejects: list[Reject]) -> list[Piece]:
    """Rows of different messages with all their fields; a name of two types keeps the first one's."""
    fields: dict[str, pa.DataType] = {}
    fine = []
    for piece in pieces:
        clash = next((each.name for each in piece.values.type if fields.get(each.name, each.type) != each.type), "")
        if clash:
            text = f"{clash} has another type in another message of the topic: route the topic by message, or rename it"
            said = (Stage.SCHEMA, "conflicting-fields", text, clash)
            rejects += [Reject(record, *said) for record in piece.record.tolist()]
            continue
        fields |= {each.name: each.type for each in piece.values.type}
        fine.append(piece)
    return fine if len(fine) < 2 else [_widened(piece, fields) for piece in fine]


def _widened(piece: Piece, fields: Mapping[str, pa.DataType]) -> Piece:
    has = {each.name: at for at, each in enumerate(piece.values.type)}
    nulls = {name: pa.nulls(len(piece.record), kind) for name, kind in fields.items() if name not in has}
    children = [nulls[name] if name in nulls else piece.values.field(has[name]) for name in fields]
    return Piece(pa.StructArray.from_arrays(children, list(fields)), piece.record)
