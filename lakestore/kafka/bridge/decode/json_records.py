"""Decodes JSON objects to rows: Arrow's reader takes a whole block, and records it refuses are read one by one.

Both ways accept the same records and give the same values:
- A missing field is null. A field without a column is not parsed; its name is reported.
- In a text column, numbers, booleans, objects and lists become their JSON text.
- "12" and 12.0 fit an integer column. 12.5 and values out of range are refused.
- Decimals are exact. Floats are rounded to the nearest value and are finite, except for the texts "NaN", "Infinity" and
  "-Infinity".
- Bytes are base64. An object is a struct or a map. A byte order mark is skipped.
- A duplicate field or the number NaN is refused if a column reads it. Invalid UTF-8 is always refused.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from lakestore.kafka.bridge.decode import inference, json_fallback
from lakestore.kafka.bridge.decode.far_decimals import FarDecimals
from lakestore.kafka.bridge.decode.framing import Part, spans, strip_framing
from lakestore.kafka.bridge.decode.json_fallback import DEPTH_MAX, DuplicateName, Number, RefusedRecord
from lakestore.kafka.bridge.outcome import TOMBSTONE, DecodedBlock, Reject, Stage
from lakestore.kafka.bridge.records import Records
from lakestore.kafka.bridge.spec import Wire
from lakestore.kafka.bridge.unread_fields import Tree, tree_of, unread_fields
from lakestore.model.types import is_bytes
from lakestore.rows.casting import RECORDS, mask, null_mask
from lakestore.rows.distinct import distinct
from lakestore.rows.scalar_casts import whole_decimals

_FRACTION = pa.decimal128(38, 9)
_ELEMENTS_SEEN = 4
_WHOLE_CHARS = 18


@dataclass(slots=True)
class Shape:
    """The reading of a wanted schema."""

    wanted: pa.Schema
    texts: pa.StructType
    """Types of values in records that are read one by one: times as texts."""
    by_hand: bool
    """True if a wanted type is unknown to Arrow's reader."""
    reader: json_fallback.Reader
    tree: Tree
    maps: tuple[Path, ...] = ()
    """Paths of maps. Arrow's reader reads a map as a list of entries."""
    learned: dict[str, pa.DataType] = dataclasses.field(default_factory=dict)
    """Path of a field to the type in which records send it, if it is not the usual one."""
    has_extra: bool = False
    """True if records have fields without a column."""
    _parse: pa.Schema | None = None
    _told: pa.StructType | None = None
    _far: FarDecimals | None = None

    @staticmethod
    def of(wanted: pa.Schema, part: Part) -> Shape:
        reader = json_fallback.Reader(pa.struct(list(wanted)), part)
        maps = map_paths(wanted)
        by_hand = maps is None or any(_by_hand(each.type) for each in wanted)
        return Shape(wanted, _loose(wanted), by_hand, reader, tree_of(wanted), tuple(maps or ()))

    @property
    def parse(self) -> pa.Schema:
        if self._parse is None:
            self._parse = pa.schema([self._part(part, "", times_only=False) for part in self.wanted])
        return self._parse

    @property
    def far(self) -> FarDecimals:
        """Finds numbers that Arrow's reader does not read right."""
        if self._far is None:
            self._far = FarDecimals(self.parse)
        return self._far

    def as_wanted(self, rows: pa.StructArray) -> pa.StructArray | None:
        """Cast rows of Arrow's reader to the wanted types; times stay as sent. None if a value does not fit."""
        if self._told is None:
            self._told = pa.struct([self._part(part, "", times_only=True) for part in self.wanted])
        if rows.type == self._told:
            return rows
        made, bad = mask(rows, pa.field("value", self._told), RECORDS)
        return None if bad is not None else made

    def learn(self, samples: Sequence[object]) -> bool:
        """Learn how fields are sent from samples. Returns whether something changed."""
        seen: dict[str, list[object]] = {}
        kinds: dict[str, pa.DataType] = {}
        for sample in samples:
            _see_fields(sample, self.wanted, "", seen, kinds)
        found = {path: kind for path, values in seen.items() if (kind := _sent(values, kinds[path])) is not None}
        if found == self.learned:
            return False
        self.learned, self._parse, self._told, self._far = found, None, None, None
        return True

    def _part(self, part: pa.Field, path: str, *, times_only: bool) -> pa.Field:
        return pa.field(part.name, self._kind(part.type, f"{path}.{part.name}", times_only=times_only))

    def _kind(self, kind: pa.DataType, path: str, *, times_only: bool) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct([self._part(part, path, times_only=times_only) for part in kind])
        if pa.types.is_list(kind):
            return pa.list_(self._kind(kind.value_type, f"{path}[]", times_only=times_only))
        if pa.types.is_map(kind):
            return pa.map_(kind.key_type, self._kind(kind.item_type, f"{path}{{}}", times_only=times_only))
        usual = _texts(kind)
        return usual if times_only and not pa.types.is_temporal(kind) else self.learned.get(path, usual)


def _see_fields(
    held: object,
    fields: Iterable[pa.Field],
    path: str,
    samples: dict[str, list[object]],
    kinds: dict[str, pa.DataType],
) -> None:
    for part in fields:
        value = held.get(part.name) if isinstance(held, dict) else None
        _see(value, part.type, f"{path}.{part.name}", samples, kinds)


def _see(
    value: object, kind: pa.DataType, path: str, seen: dict[str, list[object]], kinds: dict[str, pa.DataType]
) -> None:
    if pa.types.is_struct(kind):
        _see_fields(value, kind, path, seen, kinds)
    elif pa.types.is_list(kind):
        for element in value[:_ELEMENTS_SEEN] if isinstance(value, list) else ():
            _see(element, kind.value_type, f"{path}[]", seen, kinds)
    elif pa.types.is_map(kind):
        for element in itertools.islice(value.values(), _ELEMENTS_SEEN) if isinstance(value, dict) else ():
            _see(element, kind.item_type, f"{path}{{}}", seen, kinds)
    elif value is not None:
        kinds[path] = kind
        seen.setdefault(path, []).append(value)


def _sent(values: Sequence[object], kind: pa.DataType) -> pa.DataType | None:
    t = pa.types
    if all(isinstance(value, Number) for value in values):
        whole = all(len(value) <= _WHOLE_CHARS and value.lstrip("-").isdigit() for value in map(str, values))
        if t.is_temporal(kind):
            return pa.int64() if whole else _FRACTION
        if t.is_string(kind):
            return pa.int64() if whole else None
        return _FRACTION if t.is_integer(kind) and not whole else None
    if all(isinstance(value, str) and not isinstance(value, Number) for value in values):
        return pa.string() if t.is_integer(kind) or t.is_floating(kind) else None
    return pa.bool_() if t.is_string(kind) and all(isinstance(value, bool) for value in values) else None


def _loose(fields: Iterable[pa.Field]) -> pa.StructType:
    return pa.struct([part.with_type(_texts(part.type)).with_nullable(True) for part in fields])


def _texts(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return _loose(kind)
    if pa.types.is_list(kind):
        return pa.list_(_texts(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_texts(kind.key_type), _texts(kind.item_type))
    if pa.types.is_temporal(kind):
        return pa.string()
    return pa.float64() if pa.types.is_floating(kind) else kind


def _by_hand(kind: pa.DataType) -> bool:
    t = pa.types
    if t.is_struct(kind):
        return any(_by_hand(part.type) for part in kind)
    if t.is_list(kind):
        return _by_hand(kind.value_type)
    if t.is_map(kind):
        return _by_hand(kind.item_type)
    return is_bytes(kind)


Ints = npt.NDArray[np.signedinteger[Any]]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Path = tuple[str, ...]
_BREAK = ord("\n")
_QUOTE, _BACKSLASH, _COLON, _COMMA, _OPEN, _CLOSE = (ord(each) for each in '"\\:,{}')
_STEPS = np.zeros(256, np.int8)
_STEPS[[ord("{"), ord("[")]] = 1
_STEPS[[ord("}"), ord("]")]] = -1
_MARKS = np.zeros(256, np.bool_)
_MARKS[[ord(each) for each in '"{}[]:,']] = True
_KEY, _VALUE = b'{"key":', b',"value":'


def map_paths(fields: Iterable[pa.Field], above: Path = ()) -> list[Path] | None:
    """Paths of maps with text keys, through structs. None if a map is somewhere else or has other keys."""
    found: list[Path] = []
    for field in fields:
        kind, path = field.type, (*above, field.name)
        if pa.types.is_map(kind):
            if not pa.types.is_string(kind.key_type) or map_paths([pa.field("", kind.item_type)]) != []:
                return None
            found.append(path)
        elif pa.types.is_struct(kind):
            inside = map_paths(list(kind), path)
            if inside is None:
                return None
            found += inside
        elif pa.types.is_list(kind) and map_paths([pa.field("", kind.value_type)]) != []:
            return None
    return found


@dataclass(frozen=True, slots=True)
class _Marks:
    """Brackets, commas and colons outside texts, in order of position."""

    data: Bytes
    at: Ints
    sign: Bytes
    depth: Ints
    """Number of open brackets after each mark."""
    quotes: Ints
    """Positions of the quotes that begin and end texts."""
    quoted: Ints
    """Number of quotes before each mark."""
    slashes: Ints

    def above(self, depth: int) -> tuple[Ints, Ints]:
        """Indexes of the marks that open a bracket at a depth, and for every mark the last of them before it, or -1."""
        is_open = (self.depth == depth) & (_STEPS[self.sign] == 1)
        return np.flatnonzero(is_open), np.cumsum(is_open, dtype=np.int32) - 1

    def keys(self, colons: Ints) -> tuple[Ints, Ints, Bools]:
        last = self.quoted[colons] - 1
        is_known = (last >= 1) & (colons >= 1)
        if not len(self.quotes):
            return colons, colons, np.zeros(len(colons), np.bool_)
        begin, end = self.quotes[np.maximum(last - 1, 0)], self.quotes[np.maximum(last, 0)]
        return begin, end, is_known & (begin > self.at[np.maximum(colons - 1, 0)])


def _marks(data: Bytes) -> _Marks | None:
    at = np.flatnonzero(_MARKS[data])
    sign = data[at]
    is_quote = sign == _QUOTE
    slashes = np.flatnonzero(data == _BACKSLASH)
    if len(slashes):
        ends = np.append(np.flatnonzero(np.diff(slashes) != 1), len(slashes) - 1)
        lengths = np.diff(ends, prepend=-1)
        escaped = slashes[ends][lengths % 2 == 1] + 1
        is_quote &= ~np.isin(at, escaped, assume_unique=True)
    count = np.cumsum(is_quote, dtype=np.int32)
    if len(count) and count[-1] % 2:
        return None
    kept = (count % 2 == 0) & (sign != _QUOTE)
    quotes, at, sign = at[is_quote], at[kept], sign[kept]
    depth = np.cumsum(_STEPS[sign], dtype=np.int32)
    return _Marks(data, at, sign, depth, quotes, count[kept], slashes)


def entry_lists(kind: pa.DataType) -> pa.DataType:
    """The type with lists of entries instead of maps, also inside structs."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(entry_lists(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
    return kind


def as_maps(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert values of `entry_lists(kind)` to `kind`."""
    if array.type == kind:
        return array
    mask = null_mask(array)
    if pa.types.is_struct(kind):
        children = [as_maps(array.field(at), field.type) for at, field in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    keys, values = array.values.flatten()
    return pa.MapArray.from_arrays(array.offsets, keys, values, type=kind, mask=mask)


def has_keys_once(array: pa.MapArray) -> bool:
    """True if no map has a duplicate key."""
    offsets = array.offsets.to_numpy()
    codes = array.keys.dictionary_encode()
    maps = np.repeat(np.arange(len(array)), np.diff(offsets)) * max(len(codes.dictionary), 1)
    entries = maps + codes.indices.to_numpy()[offsets[0] : offsets[-1]]
    entries.sort()
    return not bool((np.diff(entries) == 0).any())


def entries_as_lists(data: Any, paths: Sequence[Path]) -> bytes | None:
    """Rewrite maps in objects, one per line, as lists of entries. None if the result is uncertain."""
    whole = np.frombuffer(data, dtype=np.uint8)
    marks = _marks(whole)
    if marks is None or not _whole(marks, np.flatnonzero(whole == _BREAK)) or _has_escaped_list(marks):
        return None
    edits: list[tuple[Ints, Ints, bytes]] = []
    for path in paths:
        made = _edits(marks, path)
        if made is None:
            return None
        edits += made
    return _edited(marks.data, edits)


def _whole(marks: _Marks, starts: Ints) -> bool:
    before = np.searchsorted(marks.at, starts)
    open_ = np.where(before > 0, marks.depth[np.maximum(before - 1, 0)], 0)
    return not (open_.any() or (np.searchsorted(marks.quotes, starts) % 2).any())


def _has_escaped_list(marks: _Marks) -> bool:
    """True if a list is the value of an escaped name, which may be a map's: the reader would confuse them."""
    if not len(marks.slashes):
        return False
    begin, end, is_key = marks.keys(np.maximum(np.flatnonzero(marks.sign == ord("[")) - 1, 0))
    return bool((is_key & (np.searchsorted(marks.slashes, begin) < np.searchsorted(marks.slashes, end))).any())


def _edits(marks: _Marks, path: Path) -> list[tuple[Ints, Ints, bytes]] | None:
    opens, last = marks.above(1)
    is_meant = np.ones(len(opens), np.bool_)
    for depth, name in enumerate(path, start=1):
        inner, of_inner = marks.above(depth + 1)
        found = _named(marks, inner, name)
        parent = last[np.maximum(inner - 1, 0)]
        found &= (parent >= 0) & is_meant[np.maximum(parent, 0)] if len(opens) else False
        if (marks.sign[inner[found]] != _OPEN).any():
            return None  # a list where an object is expected
        opens, last, is_meant = inner, of_inner, found
    level = len(path) + 1
    mine = (last >= 0) & is_meant[np.maximum(last, 0)] if len(opens) else np.zeros(len(last), np.bool_)
    at_level = mine & (marks.depth == level)
    colons = np.flatnonzero(at_level & (marks.sign == _COLON))
    commas = np.flatnonzero(at_level & (marks.sign == _COMMA))
    closes = np.flatnonzero(mine & (marks.depth == level - 1) & (_STEPS[marks.sign] == -1))
    opened = opens[is_meant]
    begin, _, is_key = marks.keys(colons)
    before = marks.sign[np.maximum(colons - 1, 0)]
    behind = at_level[np.maximum(colons - 1, 0)] & ((before == _COMMA) | (before == _OPEN))
    if not (is_key.all() and behind.all()) or len(closes) != len(opened) or (marks.sign[closes] != _CLOSE).any():
        return None
    is_empty = closes == opened + 1
    replaced = ((opened, b"["), (colons, _VALUE), (commas, b"},"), (closes[~is_empty], b"}]"), (closes[is_empty], b"]"))
    edits = [(marks.at[of], np.ones(len(of), np.int64), text) for of, text in replaced]
    return [*edits, (begin, np.zeros(len(begin), np.int64), _KEY)]


def _named(marks: _Marks, opens: Ints, name: str) -> Bools:
    colons = opens - 1
    found: Bools = (opens >= 1) & (marks.sign[np.maximum(colons, 0)] == _COLON)
    begin, end, is_key = marks.keys(colons)
    told = name.encode()
    found &= is_key & (end - begin == len(told) + 1)
    at = np.flatnonzero(found)
    for offset, byte in enumerate(told):
        at = at[marks.data[begin[at] + 1 + offset] == byte]
    found[:] = False
    found[at] = True
    return found


def _edited(data: Bytes, edits: Sequence[tuple[Ints, Ints, bytes]]) -> bytes:
    places = np.concatenate([at for at, _, _ in edits])
    taken = np.concatenate([count for _, count, _ in edits])
    added = np.concatenate([np.full(len(at), len(text), np.int64) for at, _, text in edits])
    order = np.argsort(places, kind="stable")
    change = (added - taken)[order]
    begins = np.empty(len(places), np.int64)
    begins[order] = places[order] + np.cumsum(change) - change
    made = np.empty(len(data) + int(change.sum()), np.uint8)
    is_old = np.ones(len(made), np.bool_)
    first = 0
    for at, _, text in edits:
        for offset, byte in enumerate(text):
            mine = begins[first : first + len(at)] + offset
            made[mine], is_old[mine] = byte, False
        first += len(at)
    kept = np.ones(len(data), np.bool_)
    kept[places[taken == 1]] = False
    made[is_old] = data[kept]
    return made.tobytes()


ONE_BY_ONE_MAX = 64
"""At most so many records are read one by one when they cannot be read in one step. More records are split first."""
PARTS, TRIED_MIN = 16, 8
JOINED_BYTES_MAX = 512 << 20
SAMPLED = 32
"""Records of a block that are searched for new fields, once a field without a column is known."""
INFERRED = 1_000
"""Records of a block that a schema is inferred from when all fields are wanted."""
_BLANKS = " \t\r\n"


@dataclass(slots=True)
class _Block:
    """Results of a block while it is read."""

    pieces: list[tuple[Ints, pa.StructArray]] = dataclasses.field(default_factory=list)
    rejects: list[Reject] = dataclasses.field(default_factory=list)
    extra: dict[str, pa.DataType] = dataclasses.field(default_factory=dict)
    unread: dict[str, list[Ints]] = dataclasses.field(default_factory=dict)
    """Fields without a column, to the records that have a value in them."""
    small: int = 0
    """Parts of the smallest size that were read in one step."""
    failed: int = 0

    @property
    def mostly_fails(self) -> bool:
        return self.small >= TRIED_MIN and 2 * self.failed > self.small


class JsonDecoder:
    """Decodes JSON records."""

    def __init__(self, part: Part = "value", wire: Wire = "plain") -> None:
        """A frame is only stripped: JSON needs no schema."""
        self._part: Part = part
        self._wire = wire
        self._shapes: dict[pa.Schema, Shape] = {}
        self._inferred: pa.Schema | None = None

    def schema(self) -> pa.Schema | None:
        """Fields of the last block that was read with all fields; otherwise None."""
        return self._inferred

    def decode(self, records: Records, wanted: pa.Schema | None) -> DecodedBlock:
        found = strip_framing(records, self._wire, self._part, format="json")
        if wanted is None:
            wanted = self._inferred = inference.schema_of(_samples(found.payloads, INFERRED))
        shape = self._shape(wanted)
        block = _Block(rejects=list(found.rejects))
        self._whole(found.payloads, found.record, shape, block)
        passed = {TOMBSTONE: found.nulls} if len(found.nulls) else {}
        rows, record = _together(block.pieces, shape)
        unread = {name: distinct(np.concatenate(parts)) for name, parts in block.unread.items()}
        return DecodedBlock(rows, record, rejects=block.rejects, passed=passed, extra=block.extra, unread=unread)

    def _shape(self, wanted: pa.Schema) -> Shape:
        if wanted not in self._shapes:
            self._shapes.clear()
            self._shapes[wanted] = Shape.of(wanted, self._part)
        return self._shapes[wanted]

    def _whole(self, values: pa.BinaryArray, ids: Ints, shape: Shape, block: _Block) -> None:
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
        values, ids = self._without_far(values, ids, shape, block)
        rows = self._at_once(values, ids, shape, block)
        if rows is None and shape.learn(_samples(values)):
            values, ids = self._without_far(values, ids, shape, block)
            rows = self._at_once(values, ids, shape, block)
        if rows is not None:
            block.pieces.append((ids, rows))
            return
        size = max(-(-len(ids) // PARTS), ONE_BY_ONE_MAX)
        for start in range(0, len(ids), size):
            self._part_of(values.slice(start, size), ids[start : start + size], shape, block)

    def _without_far(
        self, values: pa.BinaryArray, ids: Ints, shape: Shape, block: _Block
    ) -> tuple[pa.BinaryArray, Ints]:
        """The records without far decimals. The others are read one by one."""
        far = shape.far.rows(values)
        if far is None:
            return values, ids
        self._one_by_one(values.filter(pa.array(far)), ids[far], shape, block)
        return values.filter(pa.array(~far)), ids[~far]

    def _at_once(self, values: pa.BinaryArray, ids: Ints, shape: Shape, block: _Block) -> pa.StructArray | None:
        """Read all rows in one step, or return None. Fields without a column are recorded."""
        if not shape.has_extra:
            table = _read(values, shape, "error")
            if table is not None and (rows := _rows(table, shape)) is not None:
                return rows
        table = _read(values, shape, "infer")
        if table is not None and (rows := _rows(table, shape)) is not None:
            self._note_unread(table, values, ids, shape, block)
            return rows
        table = _read(values, shape, "ignore")  # a field without a column may have values of several types
        rows = None if table is None else _rows(table, shape)
        if rows is not None:
            for raw, number in zip(values.to_pylist(), ids.tolist(), strict=True):
                _note(json_fallback.parse_object(raw), shape.reader.fields, "", block, number)
        return rows

    def _note_unread(self, table: pa.Table, values: pa.BinaryArray, ids: Ints, shape: Shape, block: _Block) -> None:
        rows = table.combine_chunks().to_struct_array().combine_chunks()
        for name, flags in unread_fields(rows, shape.tree):
            block.unread.setdefault(name, []).append(ids[flags])
            if name not in block.extra:
                first = json_fallback.parse_object(values[int(np.flatnonzero(flags)[0])].as_py())
                block.extra[name] = guess_type(_at(first, name.split(".")))

    def _part_of(self, values: pa.BinaryArray, ids: Ints, shape: Shape, block: _Block) -> None:
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
                found = json_fallback.parse_object(raw)
                rows.append(read(found))
            except RefusedRecord as refused:
                block.rejects.append(
                    Reject(number, Stage.DECODE, refused.code, f"{refused.why}; mend its producer", refused.path)
                )
                continue
            kept.append(number)
            _note(found, fields, "", block, number)
        if kept:
            block.pieces.append((np.array(kept, dtype=np.int64), pa.array(rows, shape.texts)))


def _looks_whole(values: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    offsets, data = spans(values)
    whole = np.diff(offsets) >= 2
    whole[whole] = (data[offsets[:-1][whole]] == ord("{")) & (data[offsets[1:][whole] - 1] == ord("}"))
    return whole


def _trimmed(values: pa.BinaryArray) -> pa.BinaryArray:
    try:
        return pc.ascii_trim(values.cast(pa.string()), characters=_BLANKS).cast(pa.binary())
    except pa.ArrowInvalid:
        return values


def _read(values: pa.BinaryArray, shape: Shape, unexpected: str) -> pa.Table | None:
    """Read objects, one per value, by one call of Arrow's reader. Returns None if the reader refuses any.

    Every value begins with { and ends with }, has no zero byte, and a line break inside a text is refused. An object
    therefore ends where its record ends, and an equal number of rows and records means one row per record. `unexpected`
    says what to do with a field without a column: "error", "ignore" or "infer". No value has a far decimal.
    """
    if values.nbytes > JOINED_BYTES_MAX:
        return None
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return None
    lists = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    data = pc.binary_join(lists, b"\n").buffers()[2]
    if not np.frombuffer(data, dtype=np.uint8).all() or _too_deep(values):
        return None
    return _table(data, len(values), shape, unexpected)


def parse_lines(data: pa.Buffer, count: int, shape: Shape, unexpected: str) -> pa.StructArray | None:
    """Read `count` lines of one object each by one call of Arrow's reader. Returns None if the reader refuses any.

    The caller guarantees UTF-8 without zero bytes, without far decimals and with bounded nesting.
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
    if not shape.parse.names:
        return pa.array([{}] * table.num_rows, pa.struct([]))
    columns = [
        as_maps(_narrowed(table.column(part.name).combine_chunks(), part.type), part.type) for part in shape.parse
    ]
    if not all(_sound(column) for column in columns):
        return None
    return shape.as_wanted(pa.StructArray.from_arrays(columns, fields=list(shape.parse)))


def _narrowed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    t = pa.types
    if array.type == kind:
        return array
    if t.is_struct(kind) and t.is_struct(array.type):
        names = array.type.names
        inner = [_narrowed(array.field(names.index(part.name)), part.type) for part in kind]
        fields = [part.with_type(each.type) for part, each in zip(kind, inner, strict=True)]
        mask = null_mask(array)
        return pa.StructArray.from_arrays(inner, fields=fields, mask=mask)
    if t.is_list(kind) and t.is_list(array.type):
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        inner = _narrowed(array.values.slice(start, end - start), kind.value_type)
        if inner.type == array.type.value_type:
            return array
        offsets = pc.subtract(array.offsets, pa.scalar(start, pa.int32()))
        mask = null_mask(array)
        return pa.ListArray.from_arrays(offsets, inner, type=pa.list_(inner.type), mask=mask)
    return array


def _too_deep(values: pa.BinaryArray) -> bool:
    long = pc.greater_equal(pc.binary_length(values), 2 * DEPTH_MAX)
    if not long.true_count:
        return False
    return any(json_fallback.depth(raw) > DEPTH_MAX for raw in values.filter(long).to_pylist())


def _sound(array: pa.Array) -> bool:
    """False if Arrow's reader accepted NaN, infinity, a decimal longer than its type, or a duplicate key."""
    kind, t = array.type, pa.types
    if t.is_struct(kind):
        return all(_sound(array.field(at)) for at in range(kind.num_fields))
    if t.is_list(kind):
        return _sound(array.values)
    if t.is_map(kind):
        return has_keys_once(array) and _sound(array.items)
    if t.is_decimal(kind):
        return whole_decimals(array)
    return not t.is_floating(kind) or pc.all(pc.is_finite(array)).as_py() is not False


def _samples(values: pa.BinaryArray, most: int = SAMPLED) -> list[object]:
    step = max(1, len(values) // most)
    found: list[object] = []
    for at in range(0, len(values), step):
        try:
            read = json_fallback.parse_object(values[at].as_py())
        except RefusedRecord:
            continue
        found.append(read.held if isinstance(read, DuplicateName) else read)
    return found


def _note(value: object, fields: Mapping[str, json_fallback.Reader], path: str, block: _Block, number: int) -> None:
    if isinstance(value, DuplicateName):
        value = value.held
    if isinstance(value, list):
        for part in value:
            _note(part, fields, path, block, number)
    if not isinstance(value, dict):
        return
    for name in value.keys() - fields.keys():
        if value[name] is not None:
            block.unread.setdefault(path + name, []).append(np.array([number]))
            block.extra.setdefault(path + name, guess_type(value[name]))
    for name, reader in fields.items():
        if reader.fields:
            _note(value.get(name), reader.fields, f"{path}{name}.", block, number)


def note_extra(
    value: object, fields: Mapping[str, json_fallback.Reader], path: str, extra: dict[str, pa.DataType]
) -> None:
    """Add the fields that have no column to `extra`, with the type of a value."""
    if isinstance(value, DuplicateName):
        value = value.held
    if not isinstance(value, dict):
        return
    for name in value.keys() - fields.keys():
        if extra.get(path + name) in (None, pa.null()):
            extra[path + name] = guess_type(value[name])
    for name, reader in fields.items():
        if reader.fields:
            note_extra(value.get(name), reader.fields, f"{path}{name}.", extra)


def _at(value: object, parts: Sequence[str]) -> object:
    for part in parts:
        value = value.held if isinstance(value, DuplicateName) else value
        value = value.get(part) if isinstance(value, dict) else None
    return value


def guess_type(value: object) -> pa.DataType:
    """The type of a JSON value on its own."""
    if isinstance(value, Number):
        return pa.int64() if value.lstrip("-").isdigit() and len(value) <= 18 else pa.float64()
    if value is None:
        return pa.null()
    return pa.bool_() if isinstance(value, bool) else pa.string()


def _together(pieces: list[tuple[Ints, pa.StructArray]], shape: Shape) -> tuple[pa.StructArray, Ints]:
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
