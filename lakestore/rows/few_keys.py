"""Keys of very few rows as bytes, row by row: for a single look-up arrays cost more than what they save.

The bytes are those that `keys` makes of columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

ROWS_MAX = 4
_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_INTEGERS = {kind.id: (kind.bit_width // 8, 1 << (kind.bit_width - 1)) for kind in _SIGNED} | {
    kind.id: (kind.bit_width // 8, 0) for kind in _UNSIGNED
}
"""Type to (bytes, what is added so that the order of bytes is that of values)."""
_TEXTS = (pa.string().id, pa.binary().id)


def whole(columns: Sequence[pa.Array]) -> list[bytes] | None:
    """Each row's key in full; None for more rows, and for types that are not common."""
    if len(columns[0]) > ROWS_MAX:
        return None
    keys = [b""] * len(columns[0])
    for number, column in enumerate(columns, 1):
        kind = column.type.id
        integer = _INTEGERS.get(kind)
        if column.null_count or (integer is None and kind not in _TEXTS):
            return None
        for row, value in enumerate(column.to_pylist()):
            if integer is not None:
                keys[row] += (value + integer[1]).to_bytes(integer[0], "big")
                continue
            raw = value.encode() if isinstance(value, str) else value
            keys[row] += raw if number == len(columns) else raw.replace(b"\0", b"\0\xff") + b"\0\0"
    return keys
