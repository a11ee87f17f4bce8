"""JSON objects as rows: a block by Arrow's reader at once, and what it does not take record by record.

Both ways take the same records and give the same values:
- a field that is missing is null; a field that no column reads is not looked at, and its name is told;
- numbers and booleans in a text column are their JSON text, objects and lists too;
- "12" and 12.0 in an integer column are 12; 12.5, and what the type does not hold, is refused;
- a decimal is read from numbers and texts, exactly or not at all; a float is the nearest one, and finite, but for the
  texts "NaN", "Infinity" and "-Infinity"; the numbers NaN and Infinity are no JSON, and refused where a column reads
  them; bytes are base64; an object is a struct or a map;
- a field twice in an object is refused where a column reads it, as is broken UTF-8 anywhere;
- a byte order mark is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from lakestore.connectors.bridge.casting import casts
from lakestore.connectors.bridge.formats.json import inference, json_one
from lakestore.connectors.bridge.formats.json.json_maps import as_maps, entries_as_lists, entry_lists, has_keys_once
from lakestore.connectors.bridge.formats.json.json_one import DEPTH_MAX, Number, Refused, Twice
from lakestore.connectors.bridge.formats.json.json_types import Shape
from lakestore.connectors.bridge.framing.spans import spans
from lakestore.connectors.bridge.framing.wire import Part, framed
from lakestore.connectors.bridge.outcome import TOMBSTONE, Decoded, Reject, Stage
from lakestore.connectors.bridge.records import Ints, Records
from lakestore.connectors.bridge.spec import Wire
from lakestore.connectors.bridge.unread_fields import unread_fields

ONE_BY_ONE_MAX = 64
"""Records that are read one by one when they cannot be read together; more are parted first."""
PARTS, TRIED_MIN = 16, 8
JOINED_BYTES_MAX = 512 << 20
SAMPLED = 32
"""Records of a block in which new fields are looked for, once a field is known that no column reads."""
INFERRED = 1_000
"""Records of a block from which a schema is made when all fields are wanted."""
FAR_DECIMAL = r'[0-9.][eE]-[0-9]{2,}["\s,\]}]|[0-9]{29}'
"""Numbers so far behind the point that Arrow's reader of decimals leaves its table of powers, and ends the process."""
_BLANKS = " \t\r\n"


@dataclass(slots=True)
class _Block:
    """Ends of a block's records while it is read."""

    pieces: list[tuple[Ints, pa.StructArray]] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    extra: dict[str, pa.DataType] = field(default_factory=dict)
    unread: dict[str, list[Ints]] = field(default_factory=dict)
    """Fields that no column reads, to the records that have a value there."""
    small: int = 0
    """Parts of the smallest size that were tried at once."""
    failed: int = 0

    @property
    def mostly_fails(self) -> bool:
        """Whether records that cannot be read at once are all over the block."""
        return self.small >= TRIED_MIN and 2 * self.failed > self.small


class JsonDecoder:
    """JSON records."""

    def __init__(self, part: Part = "value", wire: Wire = "plain") -> None:
        """A frame is only taken off: JSON tells its fields by itself."""
        self._part: Part = part
        self._wire = wire
        self._shapes: dict[pa.Schema, Shape] = {}
        self._inferred: pa.Schema | None = None

    def schema(self) -> pa.Schema | None:
        """The fields that a block showed from which all were wanted; else None, for JSON has no schema."""
        return self._inferred

    def decode(self, records: Records, wanted: pa.Schema | None) -> Decoded:
        """The rows of a block; nulls are tombstones."""
        found = framed(records, self._wire, self._part, format="json")
        if wanted is None:
            wanted = self._inferred = inference.schema_of(_samples(found.payloads, INFERRED))
        shape = self._shape(wanted)
        block = _Block(rejects=list(found.rejects))
        self._whole(found.payloads, found.record, shape, block)
        passed = {TOMBSTONE: found.nulls} if len(found.nulls) else {}
        rows, record = _together(block.pieces, shape)
        unread = {name: np.unique(np.concatenate(parts)) for name, parts in block.unread.items()}
        return Decoded(rows, record, rejects=block.rejects, passed=passed, extra=block.extra, unread=unread)

    def _shape(self, wanted: pa.Schema) -> Shape:
        if wanted not in self._shapes:
            self._shapes.clear()
            self._shapes[wanted] = Shape.of(wanted, self._part)
        return self._shapes[wanted]

    def _whole(self, values: pa.BinaryArray, ids: Ints, shape: Shape, block: _Block) -> None:
        """Read what is whole objects by its looks together, and the rest one by one."""
        if not len(ids):
            return
        if shape.by_hand:
            self._one_by_one(values, ids, shape, block)
            return
        looks = _looks_whole(values)
        if not looks.all():
            values = _trimmed(values)
            looks = _looks_whole(values)
        if not looks.all():
            self._one_by_one(values.filter(pa.array(~looks)), ids[~looks], shape, block)
            values, ids = values.filter(pa.array(looks)), ids[looks]
        if len(ids):
            self._parted(values, ids, shape, block)
        shape.has_extra |= bool(block.extra)

    def _parted(self, values: pa.BinaryArray, ids: Ints, shape: Shape, block: _Block) -> None:
        """Read all at once, or the parts of it that can be."""
        rows = self._at_once(values, ids, shape, block)
        if rows is None and shape.learn(_samples(values)):
            rows = self._at_once(values, ids, shape, block)
        if rows is not None:
            block.pieces.append((ids, rows))
            return
        size = max(-(-len(ids) // PARTS), ONE_BY_ONE_MAX)
        for start in range(0, len(ids), size):
            self._part_of(values.slice(start, size), ids[start : start + size], shape, block)

    def _at_once(self, values: pa.BinaryArray, ids: Ints, shape: Shape, block: _Block) -> pa.StructArray | None:
        """All rows, or None; records that have fields that no column reads are noted with all of these."""
        if not shape.has_extra:
            table = _read(values, shape, "error")
            if table is not None and (rows := _rows(table, shape)) is not None:
                return rows
        table = _read(values, shape, "infer")
        if table is not None and (rows := _rows(table, shape)) is not None:
            self._note_unread(table, values, ids, shape, block)
            return rows
        table = _read(values, shape, "ignore")  # an unread field may have values of several types
        rows = None if table is None else _rows(table, shape)
        if rows is not None:
            for raw, number in zip(values.to_pylist(), ids.tolist(), strict=True):
                _note(json_one.parsed(raw), shape.reader.fields, "", block, number)
        return rows

    def _note_unread(self, table: pa.Table, values: pa.BinaryArray, ids: Ints, shape: Shape, block: _Block) -> None:
        rows = table.combine_chunks().to_struct_array().combine_chunks()
        for name, flags in unread_fields(rows, shape.tree):
            block.unread.setdefault(name, []).append(ids[flags])
            if name not in block.extra:
                first = json_one.parsed(values[int(np.flatnonzero(flags)[0])].as_py())
                block.extra[name] = guessed(_at(first, name.split(".")))

    def _part_of(self, values: pa.BinaryArray, ids: Ints, shape: Shape, block: _Block) -> None:
        """Read a part at once, or its parts; where most of these fail as well, one by one."""
        rows = self._at_once(values, ids, shape, block) if not block.mostly_fails else None
        if rows is not None:
            block.pieces.append((ids, rows))
        elif len(ids) <= ONE_BY_ONE_MAX or block.mostly_fails:
            block.failed += len(ids) <= ONE_BY_ONE_MAX
            self._one_by_one(values, ids, shape, block)
        else:
            for start in range(0, len(ids), ONE_BY_ONE_MAX):
                block.small += 1
                self._part_of(values.slice(start, ONE_BY_ONE_MAX), ids[start : start + ONE_BY_ONE_MAX], shape, block)

    def _one_by_one(self, values: pa.BinaryArray, ids: Ints, shape: Shape, block: _Block) -> None:
        rows, kept = [], []
        read, fields = shape.reader.read, shape.reader.fields
        for raw, number in zip(values.to_pylist(), ids.tolist(), strict=True):
            try:
                found = json_one.parsed(raw)
                rows.append(read(found))
            except Refused as refused:
                block.rejects.append(
                    Reject(number, Stage.DECODE, refused.code, f"{refused.why}; mend its producer", refused.path)
                )
                continue
            kept.append(number)
            _note(found, fields, "", block, number)
        if kept:
            block.pieces.append((np.array(kept, dtype=np.int64), pa.array(rows, shape.texts)))


def _looks_whole(values: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    """Which values begin and end as an object."""
    offsets, data = spans(values)
    whole = np.diff(offsets) >= 2
    whole[whole] = (data[offsets[:-1][whole]] == ord("{")) & (data[offsets[1:][whole] - 1] == ord("}"))
    return whole


def _trimmed(values: pa.BinaryArray) -> pa.BinaryArray:
    """The values without blanks around, where all are texts."""
    try:
        return pc.ascii_trim(values.cast(pa.string()), characters=_BLANKS).cast(pa.binary())
    except pa.ArrowInvalid:
        return values


def _read(values: pa.BinaryArray, shape: Shape, unexpected: str) -> pa.Table | None:
    """The rows of objects, one each, by one call of Arrow's reader; None when it does not take all of them.

    Each value begins with { and ends with }, none has a zero byte, and a line break inside a text is refused: so an
    object ends where its record ends, and as many rows as records are one each. A field that no column reads is an
    `unexpected` one: an "error", "ignore" or "infer".
    """
    if values.nbytes > JOINED_BYTES_MAX:
        return None
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        return None
    if shape.has_decimals and pc.match_substring_regex(texts, FAR_DECIMAL).true_count:
        return None
    lists = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    data = pc.binary_join(lists, b"\n").buffers()[2]
    if not np.frombuffer(data, dtype=np.uint8).all() or _too_deep(values):
        return None
    return _table(data, len(values), shape, unexpected)


def parsed_at_once(data: pa.Buffer, count: int, shape: Shape, unexpected: str) -> pa.StructArray | None:
    """The rows of so many lines that are one object each, by one call of Arrow's reader; None if it refuses any.

    The caller sees to it that the data is UTF-8 without zero bytes and far decimals, and nests not too deep.
    """
    table = _table(data, count, shape, unexpected)
    return None if table is None else _rows(table, shape)


def _table(data: pa.Buffer, count: int, shape: Shape, unexpected: str) -> pa.Table | None:
    if shape.maps:
        text = entries_as_lists(data, shape.maps)
        if text is None:
            return None
        data = pa.py_buffer(text)
    reading = pajson.ReadOptions(use_threads=False, block_size=data.size + 1)
    told = [part.with_type(entry_lists(part.type)) for part in shape.parse] if shape.maps else list(shape.parse)
    parsing = pajson.ParseOptions(explicit_schema=pa.schema(told), unexpected_field_behavior=unexpected)
    try:
        table = pajson.read_json(pa.BufferReader(data), read_options=reading, parse_options=parsing)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None
    return table if table.num_rows == count else None


def _rows(table: pa.Table, shape: Shape) -> pa.StructArray | None:
    """The fields of a table that columns read, in the types that are wanted; None where a value does not fit."""
    if not shape.parse.names:
        return pa.array([{}] * table.num_rows, pa.struct([]))
    columns = [
        as_maps(_narrowed(table.column(part.name).combine_chunks(), part.type), part.type) for part in shape.parse
    ]
    if not all(_sound(column) for column in columns):
        return None
    return shape.told(pa.StructArray.from_arrays(columns, fields=list(shape.parse)))


def _narrowed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column without the fields inside that its type does not have."""
    t = pa.types
    if array.type == kind:
        return array
    if t.is_struct(kind) and t.is_struct(array.type):
        names = array.type.names
        inner = [_narrowed(array.field(names.index(part.name)), part.type) for part in kind]
        fields = [part.with_type(each.type) for part, each in zip(kind, inner, strict=True)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(inner, fields=fields, mask=mask)
    if t.is_list(kind) and t.is_list(array.type):
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        inner = _narrowed(array.values.slice(start, end - start), kind.value_type)
        if inner.type == array.type.value_type:
            return array
        offsets = pc.subtract(array.offsets, pa.scalar(start, pa.int32()))
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(offsets, inner, type=pa.list_(inner.type), mask=mask)
    return array


def _too_deep(values: pa.BinaryArray) -> bool:
    long = pc.greater_equal(pc.binary_length(values), 2 * DEPTH_MAX)
    if not long.true_count:
        return False
    return any(json_one.depth(raw) > DEPTH_MAX for raw in values.filter(long).to_pylist())


def _sound(array: pa.Array) -> bool:
    """Whether Arrow's reader took no more than is right: NaN and infinity are no JSON, it lets decimals through that
    are longer than their type, and a key of a map may be in it twice."""
    kind, t = array.type, pa.types
    if t.is_struct(kind):
        return all(_sound(array.field(at)) for at in range(kind.num_fields))
    if t.is_list(kind):
        return _sound(array.values)
    if t.is_map(kind):
        return has_keys_once(array) and _sound(array.items)
    if t.is_decimal(kind):
        return casts.whole_decimals(array)
    return not t.is_floating(kind) or pc.all(pc.is_finite(array)).as_py() is not False


def _samples(values: pa.BinaryArray, most: int = SAMPLED) -> list[object]:
    """Some of the objects, from all over the block."""
    step = max(1, len(values) // most)
    found: list[object] = []
    for at in range(0, len(values), step):
        try:
            read = json_one.parsed(values[at].as_py())
        except Refused:
            continue
        found.append(read.held if isinstance(read, Twice) else read)
    return found


def _note(held: object, fields: Mapping[str, json_one.Reader], path: str, block: _Block, number: int) -> None:
    """Note the fields of a record that no column reads and that have a value, with its type."""
    if isinstance(held, Twice):
        held = held.held
    if isinstance(held, list):
        for part in held:
            _note(part, fields, path, block, number)
    if not isinstance(held, dict):
        return
    for name in held.keys() - fields.keys():
        if held[name] is not None:
            block.unread.setdefault(path + name, []).append(np.array([number]))
            block.extra.setdefault(path + name, guessed(held[name]))
    for name, reader in fields.items():
        if reader.fields:
            _note(held.get(name), reader.fields, f"{path}{name}.", block, number)


def note_extra(held: object, fields: Mapping[str, json_one.Reader], path: str, extra: dict[str, pa.DataType]) -> None:
    """Note the fields that no column reads, with the type of a value."""
    if isinstance(held, Twice):
        held = held.held
    if not isinstance(held, dict):
        return
    for name in held.keys() - fields.keys():
        if extra.get(path + name) in (None, pa.null()):
            extra[path + name] = guessed(held[name])
    for name, reader in fields.items():
        if reader.fields:
            note_extra(held.get(name), reader.fields, f"{path}{name}.", extra)


def _at(held: object, parts: Sequence[str]) -> object:
    """The value at a path inside an object; None inside a list."""
    for part in parts:
        held = held.held if isinstance(held, Twice) else held
        held = held.get(part) if isinstance(held, dict) else None
    return held


def guessed(value: object) -> pa.DataType:
    """The type of a JSON value by itself."""
    if isinstance(value, Number):
        return pa.int64() if value.lstrip("-").isdigit() and len(value) <= 18 else pa.float64()
    if value is None:
        return pa.null()
    return pa.bool_() if isinstance(value, bool) else pa.string()


def _together(pieces: list[tuple[Ints, pa.StructArray]], shape: Shape) -> tuple[pa.StructArray, Ints]:
    """All rows in the order of their records."""
    if not pieces:
        return pa.array([], shape.texts), np.zeros(0, dtype=np.int64)
    if len(pieces) == 1:
        return pieces[0][1], pieces[0][0]
    if any(rows.type != pieces[0][1].type for _, rows in pieces):
        pieces = [(ids, rows if rows.type == shape.texts else rows.cast(shape.texts)) for ids, rows in pieces]
    ids = np.concatenate([ids for ids, _ in pieces])
    rows = pa.concat_arrays([rows for _, rows in pieces])
    if (np.diff(ids) < 0).any():
        order = np.argsort(ids, kind="stable")
        return rows.take(pa.array(order)), ids[order]
    return rows, ids
