"""Reads Avro bodies into columns: every record of a block reads the same field in one step.

- Each record reads within its own bytes. A damaged record gets a fault and moves no other record.
- Functions that take `rows` return the values of those records, in order. The value of a record with a fault is
  undefined; the caller drops it.
- A record whose arrays are far longer than its neighbours' is left to `avro_plain`, which reads one record.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from lakestore.kafka.bridge.decode.avro_schema import DURATION, Node
from lakestore.kafka.bridge.decode.framing import Bools, Bytes, Cursors, decode_zigzag, spread
from lakestore.kafka.bridge.records import Ints

LONG = "long-array"
"""Fault code of a record that is left to `avro_plain`."""
TOGETHER_STEPS, TOGETHER_ROWS = 64, 64
"""An array with more than `TOGETHER_STEPS` items is left to `avro_plain` if at most `TOGETHER_ROWS` records have
one.
"""
_MILLIS = 1000
_INT = np.iinfo(np.int32)


def columns(node: Node, cursors: Cursors) -> pa.Array:
    """Read a whole block. A record that cannot be read, or has bytes left over, gets a fault."""
    rows = np.arange(len(cursors.at))
    values = _values(node, cursors, rows, "")
    over = cursors.end > cursors.at
    cursors.fail_where(rows, over, "trailing-bytes", "bytes are left over behind the last field of the schema", "")
    return values


def _values(node: Node, cursors: Cursors, rows: Ints, path: str) -> pa.Array:
    return _READERS[node.kind](node, cursors, rows, path)


def _null(_node: Node, _cursors: Cursors, rows: Ints, _path: str) -> pa.Array:
    return pa.nulls(len(rows))


def _boolean(_node: Node, cursors: Cursors, rows: Ints, path: str) -> pa.Array:
    starts, _ = cursors.take(rows, 1, path)
    byte = cursors.data[starts]
    cursors.fail_where(rows, byte > 1, "bad-boolean", "a boolean is a byte of 0 or 1", path)
    return pa.array(byte == 1)


def _int(node: Node, cursors: Cursors, rows: Ints, path: str) -> pa.Array:
    wide = decode_zigzag(cursors.varints(rows, path))
    wrong = (wide < _INT.min) | (wide > _INT.max)
    cursors.fail_where(rows, wrong, "out-of-range", "a number does not fit the 32 bits of an Avro int", path)
    if node.logical == "time-millis":
        return pa.array(wide * _MILLIS).cast(node.arrow)
    return pa.array(wide.astype(np.int32)).cast(node.arrow)


def _long(node: Node, cursors: Cursors, rows: Ints, path: str) -> pa.Array:
    return pa.array(decode_zigzag(cursors.varints(rows, path))).cast(node.arrow)


def _float(_node: Node, cursors: Cursors, rows: Ints, path: str) -> pa.Array:
    starts, _ = cursors.take(rows, 4, path)
    return pa.array(cursors.matrix(starts, 4).view("<f4")[:, 0])


def _double(_node: Node, cursors: Cursors, rows: Ints, path: str) -> pa.Array:
    starts, _ = cursors.take(rows, 8, path)
    return pa.array(cursors.matrix(starts, 8).view("<f8")[:, 0])


def _sized(cursors: Cursors, rows: Ints, path: str) -> tuple[Ints, Ints]:
    lengths = decode_zigzag(cursors.varints(rows, path))
    return cursors.take(rows, lengths, path)


def _bytes(node: Node, cursors: Cursors, rows: Ints, path: str) -> pa.Array:
    starts, ends = _sized(cursors, rows, path)
    if node.logical == "decimal":
        return decimals(node.arrow, cursors, rows, starts, ends, path)
    return cursors.binaries(starts, ends)


def _string(_node: Node, cursors: Cursors, rows: Ints, path: str) -> pa.Array:
    starts, ends = _sized(cursors, rows, path)
    return cursors.strings(rows, starts, ends, path)


def _fixed(node: Node, cursors: Cursors, rows: Ints, path: str) -> pa.Array:
    starts, ends = cursors.take(rows, node.size, path)
    if node.logical == "decimal":
        return decimals(node.arrow, cursors, rows, starts, ends, path)
    if not node.size:
        return cursors.binaries(starts, ends)
    matrix = cursors.matrix(starts, node.size)
    if node.logical == "duration":
        numbers = matrix.view("<u4").astype(np.uint32)
        return pa.StructArray.from_arrays([pa.array(numbers[:, at]) for at in range(3)], fields=list(DURATION))
    if node.logical == "uuid":
        return uuids(matrix)
    return pa.Array.from_buffers(node.arrow, len(rows), [None, pa.py_buffer(np.ascontiguousarray(matrix))])


def uuids(matrix: Bytes) -> pa.StringArray:
    """Format rows of sixteen bytes as UUID texts of 36 characters."""
    if not len(matrix):
        return pa.array([], pa.string())
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    text = np.full((len(matrix), 36), ord("-"), np.uint8)
    places = [at for at in range(36) if at not in (8, 13, 18, 23)]
    text[:, places[0::2]], text[:, places[1::2]] = digits[matrix >> 4], digits[matrix & 15]
    offsets = np.arange(len(matrix) + 1, dtype=np.int32) * 36
    return pa.Array.from_buffers(pa.string(), len(matrix), [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def decimals(arrow: pa.DataType, cursors: Cursors, rows: Ints, starts: Ints, ends: Ints, path: str) -> pa.Array:
    """Decimals from big-endian two's complement bytes of any length."""
    width = arrow.bit_width // 8
    lengths = ends - starts
    places = ends[:, None] - width + np.arange(width)
    sign = np.where((lengths > 0) & (cursors.data[starts] >= 0x80), 0xFF, 0).astype(np.uint8)
    inside = places >= starts[:, None]
    whole = np.where(inside, cursors.data[np.maximum(places, 0)], sign[:, None])
    little = np.ascontiguousarray(whole[:, ::-1])
    found = pa.Array.from_buffers(arrow, len(rows), [None, pa.py_buffer(little)])
    wrong = (lengths > width) | _too_precise(found)
    if wrong.any():
        text = f"a decimal has more than the {arrow.precision} digits of its schema"
        cursors.fail(rows[wrong], "out-of-range", text, path)
        little[wrong] = 0
    return found


def _too_precise(values: pa.Array) -> Bools:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        wide = pa.Array.from_buffers(_widest(values.type), len(values), values.buffers())
        most = 10**values.type.precision
        return np.fromiter((abs(int(value.as_py())) >= most for value in wide), np.bool_, len(values))
    return np.zeros(len(values), np.bool_)


def _widest(arrow: pa.DataType) -> pa.DataType:
    return pa.decimal128(38, 0) if arrow.bit_width == 128 else pa.decimal256(76, 0)


def _enum(node: Node, cursors: Cursors, rows: Ints, path: str) -> pa.Array:
    place = decode_zigzag(cursors.varints(rows, path))
    wrong = (place < 0) | (place >= len(node.symbols))
    cursors.fail_where(
        rows, wrong, "bad-enum", f"an enum has {len(node.symbols)} symbols, and the value is none of them", path
    )
    return pa.array(node.symbols, pa.string()).take(pa.array(np.where(wrong, 0, place)))


def _branches(node: Node, count: int, cursors: Cursors, rows: Ints, path: str) -> Ints:
    branch = decode_zigzag(cursors.varints(rows, path))
    wrong = (branch < 0) | (branch >= count)
    cursors.fail_where(rows, wrong, "bad-union", f"a union has {count} branches, and the value is none of them", path)
    return np.where(wrong, node.null_branch, branch)


def _optional(node: Node, cursors: Cursors, rows: Ints, path: str) -> pa.Array:
    assert node.item is not None
    count = 1 if node.item.kind == "null" else 2
    there = _branches(node, count, cursors, rows, path) != node.null_branch
    if not there.any():
        return pa.nulls(len(rows), node.arrow)
    return spread(_values(node.item, cursors, rows[there], path), there)


def _union(node: Node, cursors: Cursors, rows: Ints, path: str) -> pa.Array:
    count = len(node.fields) + (node.null_branch >= 0)
    branch = _branches(node, count, cursors, rows, path)
    numbers = [at for at in range(count) if at != node.null_branch]
    children = []
    for number, field in zip(numbers, node.fields, strict=True):
        there = branch == number
        assert field.node.item is not None
        values = _values(field.node.item, cursors, rows[there], f"{path}.{field.name}")
        children.append(spread(values, there))
    null = pa.array(branch == node.null_branch) if node.null_branch >= 0 else None
    return pa.StructArray.from_arrays(children, fields=list(node.arrow), mask=null)


def _record(node: Node, cursors: Cursors, rows: Ints, path: str) -> pa.Array:
    children = [
        _values(field.node, cursors, rows, f"{path}.{field.name}" if path else field.name) for field in node.fields
    ]
    if not children:
        return pa.array([{}] * len(rows), node.arrow)
    return pa.StructArray.from_arrays(children, fields=list(node.arrow))


def _array(node: Node, cursors: Cursors, rows: Ints, path: str) -> pa.Array:
    item = node.item
    assert item is not None
    offsets, items = _items(cursors, rows, path, item.bytes_min, lambda some: _values(item, cursors, some, f"{path}[]"))
    values = items[0] if items else pa.array([], item.arrow)
    return pa.ListArray.from_arrays(offsets, values, type=node.arrow)


def _map(node: Node, cursors: Cursors, rows: Ints, path: str) -> pa.Array:
    item = node.item
    assert item is not None
    key = Node("string", pa.string())

    def entry(some: Ints) -> pa.Array:
        keys = _values(key, cursors, some, f"{path}{{}}")
        values = _values(item, cursors, some, f"{path}{{}}")
        return pa.StructArray.from_arrays([keys, values], ["key", "value"])

    offsets, items = _items(cursors, rows, path, 1 + item.bytes_min, entry)
    if not items:
        return pa.MapArray.from_arrays(offsets, pa.array([], pa.string()), pa.array([], item.arrow), type=node.arrow)
    return pa.MapArray.from_arrays(offsets, items[0].field(0), items[0].field(1), type=node.arrow)


def _items(
    cursors: Cursors, rows: Ints, path: str, least: int, read: Callable[[Ints], pa.Array]
) -> tuple[pa.Array, list[pa.Array]]:
    """Read array items: the first of every record, then the second, and so on; then sort by record."""
    left = np.zeros(len(rows), np.int64)
    opened = np.ones(len(rows), np.bool_)
    owners: list[Ints] = []
    chunks: list[pa.Array] = []
    while True:
        fresh = np.flatnonzero(opened & (left == 0))
        if len(fresh):
            left[fresh] = _counts(cursors, rows[fresh], least, path)
            opened[fresh] = left[fresh] > 0
        more = np.flatnonzero(left > 0)
        if len(chunks) >= TOGETHER_STEPS and 0 < len(more) <= TOGETHER_ROWS:
            cursors.fail(rows[more], LONG, "", path)
            more = more[:0]
        if not len(more):
            break
        chunks.append(read(rows[more]))
        owners.append(more)
        left[more] -= 1
        lost = more[cursors.bad[rows[more]]]
        left[lost], opened[lost] = 0, False
    lengths = np.zeros(len(rows) + 1, np.int64)
    if not chunks:
        return pa.array(lengths.astype(np.int32)), []
    owner = np.concatenate(owners)
    lengths[1:] = np.bincount(owner, minlength=len(rows))
    offsets = pa.array(np.cumsum(lengths).astype(np.int32))
    whole = pa.concat_arrays(chunks)
    return offsets, [whole if len(chunks) == 1 else whole.take(pa.array(np.argsort(owner, kind="stable")))]


def _counts(cursors: Cursors, rows: Ints, least: int, path: str) -> Ints:
    """Items in the next piece of an array. After a negative number the piece's size in bytes follows."""
    counts = decode_zigzag(cursors.varints(rows, path))
    negative = np.flatnonzero(counts < 0)
    if len(negative):
        sizes = decode_zigzag(cursors.varints(rows[negative], path))
        left = cursors.end[rows[negative]] - cursors.at[rows[negative]]
        wrong = (sizes < 0) | (sizes > left)
        text = "an array's piece is larger than the rest of the record"
        cursors.fail_where(rows[negative], wrong, "short-payload", text, path)
        counts[negative] = -counts[negative]
    room = (cursors.end[rows] - cursors.at[rows]) // max(least, 1)
    wrong = (counts > room) | (counts < 0)
    cursors.fail_where(rows, wrong, "short-payload", "an array has more items than the record has bytes", path)
    return np.where(cursors.bad[rows], 0, counts)


_READERS: dict[str, Callable[[Node, Cursors, Ints, str], pa.Array]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
    "fixed": _fixed,
    "enum": _enum,
    "optional": _optional,
    "union": _union,
    "record": _record,
    "array": _array,
    "map": _map,
}
