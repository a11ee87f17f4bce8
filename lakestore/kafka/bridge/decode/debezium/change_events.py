"""Turns Debezium's change events into rows, for every format.

- Operations c, r and u put `after`. d deletes by key. Other operations are passed under a name or rejected.
- The tombstone that follows a delete is passed.
- A tombstone without a delete before it deletes by key, or is ignored or rejected by the table's policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.kafka.bridge.decode.debezium import before_images, json_shapes
from lakestore.kafka.bridge.decode.debezium.connect_values import Faults, Kind, convert, from_arrow, struct
from lakestore.kafka.bridge.decode.debezium.event_inference import infer_kind
from lakestore.kafka.bridge.decode.debezium.event_rows import gather_structs
from lakestore.kafka.bridge.decode.debezium.schema_parts import SchemaParts
from lakestore.kafka.bridge.decode.framing import strip_framing
from lakestore.kafka.bridge.outcome import TOMBSTONE, DecodedBlock, Op, Reject, Stage
from lakestore.kafka.bridge.paths import Path
from lakestore.kafka.bridge.records import Ints, Records
from lakestore.kafka.bridge.spec import TableSpec, Tombstone, TopicSpec, Truncate, Wire

NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"
"""Debezium's headers for a change of a primary key. The delete of the old key has NEW_KEY, the event of the new key
has OLD_KEY.
"""


def key_changes(
    records: Records, rows: Ints, gone: npt.NDArray[np.bool_], head: pa.StructArray, position: pa.Int64Array
) -> Ints | None:
    """Pair the two events of every primary-key change. Returns a pair number for each row, or None if there is no
    pair.

    The delete of the old key and the event of the new key name each other in headers and have the same `source`.
    """
    if records.headers is None:
        return None
    named = [_named(records.headers[row]) for row in rows.tolist()]
    if not any(named):
        return None
    atomic = np.full(len(rows), -1, np.int64)
    open_: dict[object, list[int]] = {}
    source = pc.struct_field(head, "source")
    count = 0
    for row in [row for row, name in enumerate(named) if name]:
        place = (position[row].as_py(), str(source[row].as_py()))
        if gone[row] and named[row] == NEW_KEY:
            open_.setdefault(place, []).append(row)
        elif not gone[row] and named[row] == OLD_KEY and open_.get(place):
            atomic[[open_[place].pop(0), row]] = count
            count += 1
    return atomic if count else None


def _named(headers: Sequence[tuple[str, bytes | None]] | None) -> str:
    for name, _ in headers or ():
        if name in (NEW_KEY, OLD_KEY):
            return name
    return ""


def open_half(records: Records, rows: Ints) -> int | None:
    """Return the last delete of an old key in the rows of one partition if its new key's event is still to come.

    A tombstone may follow the delete. In a topic of several partitions the event may be in another partition.
    """
    for row in rows[-2:].tolist():
        if records.headers is None or _named(records.headers[row]) != NEW_KEY:
            continue
        is_last = row == rows[-1] or records.values[int(rows[-1])].as_py() is None
        if is_last and _open_halves(records.headers, several=len(rows) < len(records)) > 0:
            return int(row)
    return None


def _open_halves(headers: Sequence[Sequence[tuple[str, bytes | None]] | None], *, several: bool) -> int:
    """Count the deletes of old keys whose new key's event has not come.

    An event whose delete was in an earlier batch is ignored, except with records of `several` partitions, which have no
    common order.
    """
    open_ = 0
    for each in headers:
        name = _named(each)
        if name == NEW_KEY:
            open_ += 1
        elif name == OLD_KEY and (open_ > 0 or several):
            open_ -= 1
    return open_


_KEYS_SAMPLED = 64


class Keys(Protocol):
    """Decodes record keys of one format."""

    def structs(self, records: Records, wanted: pa.Schema | None) -> pa.StructArray | None: ...


class JsonKeys:
    """Decodes JSON record keys."""

    def __init__(self, wire: Wire) -> None:
        self._wire: Wire = wire
        self._parts = SchemaParts()

    def structs(self, records: Records, wanted: pa.Schema | None) -> pa.StructArray | None:
        keys = strip_framing(records, self._wire, "key")
        found: list[tuple[Ints, pa.StructArray]] = []
        for part in self._parts.split(keys.payloads):
            kind = part.kind if part.kind is not None else _key_kind(part.texts, wanted)
            if kind is None or not kind.fields:
                continue
            read = json_shapes.objects(part.texts, kind, json_shapes.learn_shape(part.texts, kind))
            for rows, raw in read.parts:
                faults = Faults()
                made = convert(raw, kind, "key", faults)
                wrong = np.zeros(len(made), bool)
                for bad, *_ in faults.found:
                    wrong[bad] = True
                found.append((keys.record[part.rows[rows[~wrong]]], made.filter(pa.array(~wrong))))
        return gather_structs(found, len(records))


def _key_kind(texts: pa.BinaryArray, wanted: pa.Schema | None) -> Kind | None:
    own = infer_kind(texts[:_KEYS_SAMPLED], ())
    if wanted is None:
        return own
    said = {part.name: from_arrow(part) for part in wanted}
    return Kind("struct", fields=tuple((name, said.get(name, kind)) for name, kind in own.fields))


_TRUNCATES: tuple[Truncate, ...] = ("refuse", "follow", "ignore")
_TOMBSTONES: tuple[Tombstone, ...] = ("dlq", "delete", "ignore")


@dataclass(frozen=True, slots=True)
class Policy:
    """Treatment of records that carry no row."""

    truncate: Truncate = "refuse"
    tombstone: Tombstone = "delete"
    """Applies to tombstones that do not follow a delete."""
    key: tuple[str, ...] = ()
    """The table's key as fields of rows; empty if the table uses the key of the events."""

    @staticmethod
    def of(topic: TopicSpec) -> Policy:
        """The strictest policy among the topic's tables, because tombstones and TRUNCATEs name no table."""
        truncates, tombstones = zip(*((table.truncate, table.tombstone) for table in topic.tables), strict=True)
        return Policy(
            next(policy for policy in _TRUNCATES if policy in truncates),
            next(policy for policy in _TOMBSTONES if policy in tombstones),
            tuple(dict.fromkeys(name for table in topic.tables if table.events != "log" for name in _key_of(table))),
        )


def _key_of(table: TableSpec) -> Iterator[str]:
    said = {column.name: column for column in table.columns}
    for name in table.primary_key:
        column = said.get(name)
        path = Path.of(column.source) if column and column.source else Path("value", (name,))
        if path.root == "value" and path.parts and not (column and column.expression):
            yield path.parts[0]


_FILE_BITS, _POS_BITS, _ROW_BITS = 19, 32, 12
_VLF_BITS, _BLOCK_BITS, _SLOT_BITS = 23, 28, 12
_ORD_BITS = 31
_Numbers = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]


def positions(source: pa.StructArray) -> pa.Int64Array:
    """Position of each event, computed from its `source`. Null if the source has no position in one number."""
    made = pa.nulls(len(source), pa.int64())
    connector = pc.struct_field(source, "connector")
    for name in pc.unique(connector).to_pylist():
        how = _HOW.get(name or "")
        if how is not None:
            made = pc.if_else(pc.equal(connector, name), how(source), made)
    return made


def _number(source: pa.StructArray, name: str) -> pa.Int64Array:
    return pc.struct_field(source, name)


def _scn(source: pa.StructArray) -> pa.Int64Array:
    text = pc.struct_field(source, "scn")
    numeric = pc.match_substring_regex(text, r"^[0-9]{1,18}$")
    return pc.if_else(numeric, text, pa.scalar(None, pa.string())).cast(pa.int64())


def _binlog(source: pa.StructArray) -> pa.Int64Array:
    found = pc.extract_regex(pc.struct_field(source, "file"), r"\.(?P<n>[0-9]{1,9})$")
    file, row = _plain(pc.struct_field(found, "n").cast(pa.int64())), _plain(_number(source, "row").fill_null(0))
    return _packed([file, _plain(_number(source, "pos")), row], [_FILE_BITS, _POS_BITS, _ROW_BITS])


def _commit_lsn(source: pa.StructArray) -> pa.Int64Array:
    text = pc.struct_field(source, "commit_lsn")
    found = pc.extract_regex(text, r"^(?P<a>[0-9a-fA-F]{8}):(?P<b>[0-9a-fA-F]{8}):(?P<c>[0-9a-fA-F]{4})$")
    parts = []
    for name in "abc":
        digits = pc.struct_field(found, name)
        parts.append(_plain(pc.binary_join_element_wise("0x", digits, "").cast(pa.int64())))
    return _packed(parts, [_VLF_BITS, _BLOCK_BITS, _SLOT_BITS])


def _cluster_time(source: pa.StructArray) -> pa.Int64Array:
    seconds = pc.divide(_number(source, "ts_ms"), 1_000)
    return _packed([_plain(seconds), _plain(_number(source, "ord"))], [32, _ORD_BITS])


def _plain(numbers: pa.Int64Array) -> _Numbers:
    return numbers.fill_null(-1).to_numpy(), numbers.is_valid().to_numpy(zero_copy_only=False)


def _packed(parts: list[_Numbers], bits: list[int]) -> pa.Int64Array:
    """Pack numbers into 64 bits, the first one highest. Null if a number is null or needs more than its bits."""
    made = np.zeros(len(parts[0][0]), np.int64)
    good = np.ones(len(made), bool)
    for (numbers, valid), width in zip(parts, bits, strict=True):
        good &= valid & (numbers >= 0) & (numbers < 1 << width)
        made = (made << width) | np.where(good, numbers, 0)
    return pa.array(made, mask=~good)


_HOW = {
    "postgresql": lambda source: _number(source, "lsn"),
    "lakestore": lambda source: _number(source, "offset"),
    "mysql": _binlog,
    "mariadb": _binlog,
    "sqlserver": _commit_lsn,
    "oracle": _scn,
    "mongodb": _cluster_time,
}


_TEXT, _INT = Kind("string"), Kind("int64")
SOURCE = struct(
    version=_TEXT, connector=_TEXT, name=_TEXT, ts_ms=_INT, ts_us=_INT, ts_ns=_INT, snapshot=_TEXT, sequence=_TEXT,
    db=_TEXT, schema=_TEXT, table=_TEXT, collection=_TEXT, txId=_TEXT, lsn=_INT, xmin=_INT,
    server_id=_INT, gtid=_TEXT, file=_TEXT, pos=_INT, row=_INT, thread=_INT, query=_TEXT,
    change_lsn=_TEXT, commit_lsn=_TEXT, event_serial_no=_INT, scn=_TEXT, commit_scn=_TEXT, ord=_INT,
    bucket=_INT, offset=_INT,
)  # fmt: skip
"""Fields of `source` that the bridge reads, for all connectors. Transaction ids are texts because some connectors
send texts.
"""
TRANSACTION = struct(id=_TEXT, total_order=_INT, data_collection_order=_INT)
HEAD = struct(op=_TEXT, ts_ms=_INT, ts_us=_INT, ts_ns=_INT, source=SOURCE, transaction=TRANSACTION)
_EXTRA = (("position", pa.int64()),)
ENVELOPE = pa.struct([pa.field(name, kind.type) for name, kind in HEAD.fields] + [pa.field(*each) for each in _EXTRA])
PUTS = ("c", "r", "u")
PASSED = {"m": "message"}


@dataclass(slots=True)
class Events:
    """Events that share a schema. A row number counts the records of the block."""

    rows: Ints
    head: pa.StructArray
    before: pa.StructArray
    """Only filled for the rows that `with_before` selects."""
    after: pa.StructArray
    """Rows after the change; `before` has the same kind."""
    kept: Mapping[str, pa.BooleanArray] = field(default_factory=dict)

    def where(self, good: npt.NDArray[np.bool_]) -> Events:
        if good.all():
            return self
        mask = pa.array(good)
        kept = {name: flags.filter(mask) for name, flags in self.kept.items()}
        return Events(self.rows[good], self.head.filter(mask), self.before.filter(mask), self.after.filter(mask), kept)


@dataclass(slots=True)
class Block:
    """A block after its format was read: events, records that are not events, and keys."""

    events: list[Events]
    rejects: list[Reject]
    passed: dict[str, list[int]]
    keys: pa.StructArray | None
    """Keys of all records; null for a missing or unreadable key."""
    truncates: list[Events] = field(default_factory=list)
    plain_keys: bool = False
    """True if document ids in the keys are already plain texts."""

    def keys_of(self, rows: Ints) -> pa.StructArray | None:
        return None if self.keys is None else self.keys.take(pa.array(rows))

    def faultless(self, faults: Faults, rows: Ints) -> npt.NDArray[np.bool_]:
        """Mask of the rows without a fault. Every other row is rejected once. `rows` are record numbers."""
        good = np.ones(len(rows), bool)
        for found, code, reason, path in faults.found:
            for row in found[good[found]].tolist():
                self.rejects.append(Reject(int(rows[row]), Stage.CONVERT, code, reason, path))
                good[row] = False
        return good


class Changes:
    """Builds rows from change events and remembers the ends of earlier blocks."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._last: dict[int, list[tuple[int, bytes | None]]] = {}
        """Partition to the ends of its last two blocks, because a block may be read twice. An end is the last
        record's offset and, for a delete, its key.
        """

    def decode(self, records: Records, block: Block) -> DecodedBlock:
        ops = np.full(len(records), "", dtype="<U1")
        for part in block.events:
            ops[part.rows] = _letters(pc.struct_field(part.head, "op"))
        rows = [made for part in block.events for made in self._rows(part, block, ops)]
        rows.append(self._tombstones(records, block, ops))
        return _assembled(records, block, [part for part in rows if len(part.rows)])

    def with_before(self, head: pa.StructArray, keys: pa.StructArray | None) -> Ints:
        """The events whose before-image is needed: deletes, and updates that may change a declared key."""
        ops = pc.struct_field(head, "op")
        others = set(self._policy.key) - ({part.name for part in keys.type} if keys is not None else set())
        asked = pa.array(["d", "u"] if others else ["d"])
        return np.flatnonzero(pc.is_in(ops, value_set=asked).to_numpy(zero_copy_only=False))

    def _rows(self, part: Events, block: Block, ops: npt.NDArray[np.str_]) -> list[_Part]:
        op = ops[part.rows]
        put, delete = np.isin(op, PUTS), op == "d"
        empty = put & part.after.is_null().to_numpy(zero_copy_only=False)
        for row in part.rows[empty].tolist():
            block.rejects.append(_refused(row, "no-after", _NO_AFTER, "value.after"))
        other = ~(put | delete)
        self._others(part.rows[other], ops, block)
        if self._policy.truncate == "follow" and (ops[part.rows] == "t").any():
            block.truncates.append(part.where(ops[part.rows] == "t"))
        keyless = delete & _keyless(part, block.keys)
        for row in part.rows[keyless].tolist():
            block.rejects.append(_refused(row, "no-key", "a delete has neither a key nor a before-image", "key"))
        good = (put & ~empty) | (delete & ~keyless)
        gone = delete[good]
        part = part.where(good)
        values = {
            name: _chosen(gone, _child(part.before, name), _child(part.after, name)) for name in part.after.type.names
        }
        kept = {name: pc.and_not(mask, pa.array(gone)) for name, mask in part.kept.items()}
        rest = _Part(part.rows, gone, values, kept, part.head)
        moved = np.zeros(len(part.rows), bool)
        if self._policy.key:
            moved = ~gone & before_images.key_moves(part.before, part.after, self._policy.key, part.kept)
        return [_left_behind(part, moved, rest), rest] if moved.any() else [rest]

    def _others(self, rows: Ints, ops: npt.NDArray[np.str_], block: Block) -> None:
        for row in rows.tolist():
            letter = str(ops[row])
            if letter == "t" and self._policy.truncate == "refuse":
                block.rejects.append(_refused(row, "truncate", _TRUNCATED, "value.op"))
            elif letter == "t" or letter in PASSED:
                block.passed.setdefault(PASSED.get(letter, "truncate"), []).append(row)
            else:
                sentence = (
                    f"{letter!r} is not an operation of a change event" if letter else "a change event has no `op`"
                )
                block.rejects.append(_refused(row, "unknown-op", sentence, "value.op"))

    def _tombstones(self, records: Records, block: Block, ops: npt.NDArray[np.str_]) -> _Part:
        """Pass a tombstone that follows the delete of its key. Treat every other tombstone as a delete."""
        null = records.values.is_null().to_numpy(zero_copy_only=False)
        behind = self._behind_delete(records, null, ops == "d")
        alone = np.flatnonzero(null & ~behind).astype(np.int64)
        if behind.any():
            block.passed.setdefault(TOMBSTONE, []).extend(np.flatnonzero(behind).tolist())
        if self._policy.tombstone == "ignore":
            block.passed.setdefault(TOMBSTONE, []).extend(alone.tolist())
            alone = alone[:0]
        elif self._policy.tombstone == "dlq":
            block.rejects.extend(_refused(row, TOMBSTONE, _ALONE, "value") for row in alone.tolist())
            alone = alone[:0]
        nameless = records.keys.is_null().to_numpy(zero_copy_only=False)[alone]
        if nameless.any():  # a tombstone without a key follows a delete in a table without a key and adds nothing
            block.passed.setdefault(TOMBSTONE, []).extend(alone[nameless].tolist())
            alone = alone[~nameless]
        has_key = np.zeros(len(alone), bool)
        if block.keys is not None:
            has_key = block.keys.is_valid().to_numpy(zero_copy_only=False)[alone]
        for row in alone[~has_key].tolist():
            block.rejects.append(_refused(row, "no-key", "a tombstone has no key that names a row", "key"))
        alone = alone[has_key]
        return _Part(alone, np.ones(len(alone), bool), {}, {}, pa.nulls(len(alone), HEAD.type))

    def _behind_delete(
        self, records: Records, null: npt.NDArray[np.bool_], delete: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.bool_]:
        behind = np.zeros(len(records), bool)
        if null.any():
            codes = records.keys.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
            order = np.lexsort((np.arange(len(records)), codes, records.partition))
            same = (np.diff(codes[order]) == 0) & (np.diff(records.partition[order]) == 0) & (codes[order][1:] >= 0)
            behind[order[1:]] = same & delete[order[:-1]]
            behind &= null
            first = np.unique(records.partition, return_index=True)[1]
            for row in first[null[first]].tolist():
                ends = self._last.get(int(records.partition[row]), [])
                known = next((key for offset, key in reversed(ends) if offset < records.offset[row]), None)
                behind[row] = known is not None and known == records.keys[row].as_py()
        for partition in np.unique(records.partition).tolist():
            last = int(np.flatnonzero(records.partition == partition)[-1])
            end = (int(records.offset[last]), records.keys[last].as_py() if delete[last] else None)
            before = [each for each in self._last.get(partition, []) if each[0] < end[0]]
            self._last[partition] = [*before[-1:], end]
        return behind


@dataclass(slots=True)
class _Part:
    """Rows built from some records."""

    rows: Ints
    gone: npt.NDArray[np.bool_]
    values: dict[str, pa.Array]
    kept: dict[str, pa.BooleanArray]
    head: pa.StructArray


def _left_behind(part: Events, moved: npt.NDArray[np.bool_], rest: _Part) -> _Part:
    """Delete rows under the old key of key changes. Values missing in `rest` come from the before-image."""
    for name, mask in rest.kept.items():
        carried = pc.and_(pa.array(moved), mask)
        rest.values[name] = pc.if_else(carried, _child(part.before, name), rest.values[name])
        rest.kept[name] = pc.and_not(mask, carried)
    some = part.where(moved)
    values = {name: _child(some.before, name) for name in some.before.type.names}
    return _Part(some.rows, np.ones(len(some.rows), bool), values, {}, some.head)


_NO_AFTER = (
    "an event that puts a row has no `after`; MongoDB's needs capture.mode change_streams_update_full, "
    "and others no transformation that drops it"
)
_ALONE = (
    "the record has no value (a tombstone), and no delete of its key is before it, and tombstone: dlq says so: "
    "say tombstone: ignore to leave such records out, or delete"
)
_TRUNCATED = "the source table was truncated; empty the table, or say `truncate: follow` or `ignore`"


def _refused(row: int, code: str, sentence: str, path: str) -> Reject:
    return Reject(row, Stage.CHANGE, code, sentence, path)


def _letters(op: pa.StringArray) -> npt.NDArray[np.str_]:
    made = op.fill_null("").to_numpy(zero_copy_only=False).astype(str)
    return np.where(np.char.str_len(made) > 1, "?", made)


def _keyless(part: Events, keys: pa.StructArray | None) -> npt.NDArray[np.bool_]:
    none = part.before.is_null().to_numpy(zero_copy_only=False)
    if keys is None:
        return np.asarray(none)
    return np.asarray(none & keys.is_null().to_numpy(zero_copy_only=False)[part.rows])


def _child(parent: pa.StructArray, name: str) -> pa.Array:
    return pc.struct_field(parent, [parent.type.get_field_index(name)])


def _chosen(gone: npt.NDArray[np.bool_], before: pa.Array, after: pa.Array) -> pa.Array:
    if not gone.any():
        return after
    kind = _common([before.type, after.type])
    return pc.if_else(pa.array(gone), *(_changed(image, kind, "", Faults(), 0) for image in (before, after)))


def _assembled(records: Records, block: Block, parts: Sequence[_Part]) -> DecodedBlock:
    rows = np.concatenate([part.rows for part in parts]) if parts else np.zeros(0, np.int64)
    gone = np.concatenate([part.gone for part in parts]) if parts else np.zeros(0, bool)
    keys = _of_rows(block.keys, rows)
    faults = Faults()
    columns = {name: _joined(parts, name, faults) for name in _names(parts)}
    columns = _with_keys(columns, keys, gone, faults)
    good = block.faultless(faults, rows)
    order = np.flatnonzero(good)[np.argsort(rows[good], kind="stable")]
    at = pa.array(order)
    heads = [part.head for part in parts] or [pa.nulls(0, HEAD.type)]
    head = pa.concat_arrays(heads).take(at)
    taken = {name: column.take(at) for name, column in columns.items()}
    kept = {name: mask.take(at) for name, mask in _kept(parts).items()}
    rows, gone = rows[order], gone[order]
    keys = None if keys is None else keys.take(at)
    position = positions(_child(head, "source"))
    return DecodedBlock(
        pa.StructArray.from_arrays(list(taken.values()), list(taken)) if taken else pa.nulls(len(rows), pa.struct([])),
        rows,
        keys,
        np.where(gone, Op.DELETE, Op.PUT).astype(np.int8),
        kept,
        _origin(head),
        tuple(keys.type.names) if keys is not None else (),
        key_changes(records, rows, gone, head, position),
        sorted(block.rejects, key=lambda reject: reject.record),
        {reason: np.array(sorted(found), np.int64) for reason, found in block.passed.items()},
        envelope=_envelope(head, position),
        truncates=[(each.rows, _origin(each.head)) for each in block.truncates],
    )


def _of_rows(keys: pa.StructArray | None, rows: Ints) -> pa.StructArray | None:
    if keys is None:
        return None
    keys = keys.take(pa.array(rows))
    named = {name: column for name in keys.type.names if (column := _child(keys, name)).null_count < len(keys)}
    if not named:
        return None
    return pa.StructArray.from_arrays(list(named.values()), list(named), mask=keys.is_null())


def _names(parts: Sequence[_Part]) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part.values))


def _joined(parts: Sequence[_Part], name: str, faults: Faults) -> pa.Array:
    """Concatenate one field of all parts. If its types differ, the result has a type for all, or text."""
    types = [part.values[name].type for part in parts if name in part.values]
    kind = _common(types)
    made, start = [], 0
    for part in parts:
        column = part.values.get(name)
        if column is None:
            made.append(pa.nulls(len(part.rows), kind))
        else:
            made.append(_changed(column, kind, name, faults, start))
        start += len(part.rows)
    return pa.concat_arrays(made)


def _common(types: Sequence[pa.DataType]) -> pa.DataType:
    if all(kind == types[0] for kind in types):
        return types[0]
    try:
        schemas = [pa.schema([pa.field("_", kind)]) for kind in types]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.string()


def _changed(column: pa.Array, kind: pa.DataType, name: str, faults: Faults, start: int) -> pa.Array:
    if column.type == kind:
        return column
    inside = Faults()
    made = convert(column, Kind("", target=kind), f"value.after.{name}", inside)
    faults.found.extend((found + start, code, reason, path) for found, code, reason, path in inside.found)
    return made


def _with_keys(
    columns: dict[str, pa.Array], keys: pa.StructArray | None, gone: npt.NDArray[np.bool_], faults: Faults
) -> dict[str, pa.Array]:
    if keys is None or not gone.any():
        return columns
    mine = pc.and_(pa.array(gone), keys.is_valid())
    made = dict(columns)
    for name in keys.type.names:
        key = _child(keys, name)
        if name in made and made[name].type != key.type:
            hidden = pc.if_else(mine, key, pa.scalar(None, key.type))
            key = convert(hidden, Kind("", target=made[name].type), f"key.{name}", faults)
        old = made.get(name)
        made[name] = pc.if_else(mine, key, pa.scalar(None, key.type) if old is None else old)
    return made


def _kept(parts: Sequence[_Part]) -> dict[str, pa.BooleanArray]:
    names = dict.fromkeys(name for part in parts for name in part.kept)
    return {
        name: pa.concat_arrays([part.kept.get(name, pa.array(np.zeros(len(part.rows), bool))) for part in parts])
        for name in names
    }


def _origin(head: pa.StructArray) -> pa.StructArray:
    source = _child(head, "source")
    table = pc.coalesce(_child(source, "table"), _child(source, "collection"))
    parts = [_child(source, "db"), _child(source, "schema"), table]
    return pa.StructArray.from_arrays(parts, ["database", "schema", "table"])


def _envelope(head: pa.StructArray, position: pa.Int64Array) -> pa.StructArray:
    parts = [_child(head, name) for name in head.type.names]
    return pa.StructArray.from_arrays([*parts, position], fields=list(ENVELOPE))
