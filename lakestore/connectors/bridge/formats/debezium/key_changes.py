"""Changes of a primary key, which are two change events: a delete of the old key, and a row under the new one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.connectors.bridge.records import Ints, Records

NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"
"""Headers: of the delete of an old key, and of the event of the new one."""


def key_changes(
    records: Records, rows: Ints, gone: npt.NDArray[np.bool_], head: pa.StructArray, position: pa.Int64Array
) -> Ints | None:
    """A number for both rows of each change of a primary key: the delete of the old key names the new one in a header,
    the event of the new key names the old one, and both have one `source`."""
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
    """The header of a key change that a record has."""
    for name, _ in headers or ():
        if name in (NEW_KEY, OLD_KEY):
            return name
    return ""


def open_half(records: Records, rows: Ints) -> int | None:
    """Return the last delete of an old key among rows of one partition, if its new key's event is still to come.

    A tombstone may stand behind the delete. In a topic of several partitions the event may be in another one.
    """
    for row in rows[-2:].tolist():
        if records.headers is None or _named(records.headers[row]) != NEW_KEY:
            continue
        is_last = row == rows[-1] or records.values[int(rows[-1])].as_py() is None
        if is_last and _open_halves(records.headers, several=len(rows) < len(records)) > 0:
            return int(row)
    return None


def _open_halves(headers: Sequence[Sequence[tuple[str, bytes | None]] | None], *, several: bool) -> int:
    """Return the deletes of old keys whose new key's event has not come.

    An event without a delete before it, whose delete went with an earlier batch, counts for none; records of `several`
    partitions have no such order.
    """
    open_ = 0
    for each in headers:
        name = _named(each)
        if name == NEW_KEY:
            open_ += 1
        elif name == OLD_KEY and (open_ > 0 or several):
            open_ -= 1
    return open_
