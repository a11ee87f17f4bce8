"""Look-ups of one whole key at the newest view, without the machinery of a batch: a key's bytes in, a row's bytes out.

All that depends on the table's version alone is made once: the code of its keys, places and schema message of the
columns that are asked for. Long keys, cuts of the past, system columns and rows of older versions take the common way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lakestore.errors import Invalid, Unavailable
from lakestore.model.columns import SYSTEM_TYPES
from lakestore.model.table import Table
from lakestore.rows import keys
from lakestore.rows.ipc import STREAM_END, crc32c
from lakestore.rows.one_key import KeyCode
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.commit.engine import Engine
from lakestore_server.index.entry import FLAG, PREFIX_BYTES, table_prefix
from lakestore_server.index.keys import ByteKeys, IndexKeys, NumberKeys
from lakestore_server.state.table_versions import stored_schema
from lakestore_server.state.view import View

FORMS_MAX = 1_024
"""Tables, and lists of columns of one table, whose forms are kept."""
KEY_BYTES_MAX = keys.WHOLE_BYTES_MAX - PREFIX_BYTES
"""Longer keys are hashed in the index, and rows are compared with them."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """The answers of one version for one list of columns."""

    places: tuple[int, ...]
    """Places of the columns in stored batches."""
    schema: pa.Schema
    head: bytes
    """The schema's message."""
    nothing: bytes
    """The answer for a key that is not there."""
    nothing_crc: int


@dataclass(frozen=True, slots=True)
class KeyForm:
    """One version of a table, as look-ups of one key need it."""

    table: Table
    code: KeyCode | None
    prefix: bytes
    number_width: int | None
    """Bytes of keys that are numbers in the index."""
    answers: dict[tuple[str, ...], _Answers] = field(default_factory=dict)

    @staticmethod
    def of(table: Table) -> KeyForm:
        """The form of a version."""
        kinds = [table.column(name).arrow.type for name in table.primary_key]
        width = keys.number_width(kinds) if kinds else None
        return KeyForm(table, KeyCode.of(table), table_prefix(table.number), width)

    def coded(self) -> KeyCode:
        """The code of the table's keys, or `Invalid`."""
        if self.code is None:
            raise Invalid(f"keys of table {self.table.name} are sent as rows, in `keys`: `key` takes numbers and texts")
        return self.code

    def batch(self, key: bytes) -> pa.RecordBatch:
        """The key as a row, or `Invalid`."""
        code = self.coded()
        return code.batch(code.split(key))

    def index_keys(self, key: bytes) -> IndexKeys:
        """The key as the index takes it."""
        if self.number_width is None:
            return ByteKeys((self.prefix + key,))
        number = np.array((int.from_bytes(key, "big"),), dtype=np.uint64)
        return NumberKeys(self.prefix, self.number_width, number)

    def answered(self, columns: Sequence[str]) -> _Answers | None:
        """The answers for these columns, by default for all; None for system columns."""
        asked = tuple(columns)
        found = self.answers.get(asked)
        if found is None:
            found = self._made(asked)
            if found is not None and len(self.answers) < FORMS_MAX:
                self.answers[asked] = found
        return found

    def _made(self, columns: tuple[str, ...]) -> _Answers | None:
        if not SYSTEM_TYPES.keys().isdisjoint(columns):
            return None
        names = self.table.selected(columns)
        stored = stored_schema(self.table)
        places = tuple(stored.get_field_index(name) for name in names)
        schema = pa.schema([pa.field(name, stored.field(at).type) for name, at in zip(names, places, strict=True)])
        head = bytes(schema.serialize())
        none = pa.RecordBatch.from_pylist([], schema=schema)
        nothing = b"".join((head, none.serialize(), STREAM_END))
        return _Answers(places, schema, head, nothing, crc32c(nothing))


class KeyForms:
    """The forms of the tables that were asked for last. Thread-safe."""

    def __init__(self) -> None:
        self._forms: dict[str, KeyForm] = {}

    def of(self, table: Table) -> KeyForm:
        """The form of a table's version."""
        form = self._forms.get(table.uuid)
        if form is None or form.table is not table:
            if len(self._forms) >= FORMS_MAX:
                self._forms = {}
            form = self._forms[table.uuid] = KeyForm.of(table)
        return form


def row_of(engine: Engine, form_of: Callable[[Table], KeyForm], request: pb.LookupRequest) -> pb.RowBatch | None:
    """The answer to a request for one whole key; None where it takes the common way."""
    key, table = request.key, engine.view.meant(request.table, request.table_uuid).table
    is_older = request.HasField("schema_id") and request.schema_id != table.schema_id
    if request.at or is_older or len(key) > KEY_BYTES_MAX:
        return None
    form = form_of(table)
    code, answers = form.coded(), form.answered(request.columns)
    if answers is None:
        return None
    bucket = code.bucket(key, code.split(key))
    found = _live_offset(engine, table, form.index_keys(key))
    if found is None:
        return None
    view, offset = found
    data, crc = answers.nothing, answers.nothing_crc
    if offset >= 0:
        piece, row = view.by_uuid(table.uuid).logs[bucket].place_of(offset)
        if piece.schema_id != table.schema_id:
            return None
        stored = piece.load_rows(np.array((row,)), None).slice(row, 1)
        shown = pa.RecordBatch.from_arrays([stored.column(at) for at in answers.places], schema=answers.schema)
        data = b"".join((answers.head, shown.serialize(), STREAM_END))
        if len(data) > engine.limits.message_bytes // 2:
            return None
        crc = crc32c(data)
    return pb.RowBatch(rows=data, crc32c=crc, schema_id=table.schema_id, token=view.token(), answered=1)


def _live_offset(engine: Engine, table: Table, wanted: IndexKeys) -> tuple[View, int] | None:
    """(view, the key's live offset or a negative number) at one moment; None if the table or the index moved on."""
    index = engine.index
    with index.lock:
        view = engine.view
        reading = index.begin(wanted)
    held = view.tables.get(table.uuid)
    if held is None or held.table is not table:
        return None
    try:
        value = int(index.finish(reading)[0])
    except Unavailable:
        return None
    return view, value if value < FLAG else -1
