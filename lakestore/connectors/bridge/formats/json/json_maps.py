"""Maps in JSON for Arrow's reader, which takes lists of entries and no objects: `{"a": 1}` becomes
`[{"key": "a", "value": 1}]`.

A text of many objects is rewritten at once. Brackets, commas and colons outside of texts are found with their depths;
the objects at the paths of maps are those behind the names of the path. Whatever is in doubt is not rewritten, and an
object that is no JSON is none afterwards: so the reader refuses it, and it is read by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
    """The paths of maps with text keys in fields, through structs; None where a map is elsewhere, or has others."""
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
    """Brackets, commas and colons outside of texts, in their order."""

    data: Bytes
    at: Ints
    sign: Bytes
    depth: Ints
    """Brackets that are open behind each."""
    quotes: Ints
    """The quotes that begin and end texts."""
    quoted: Ints
    """Quotes before each."""
    slashes: Ints

    def above(self, depth: int) -> tuple[Ints, Ints]:
        """Numbers of the marks that open a bracket of a depth; and of each mark, which of them came last (-1: none)."""
        is_open = (self.depth == depth) & (_STEPS[self.sign] == 1)
        return np.flatnonzero(is_open), np.cumsum(is_open, dtype=np.int32) - 1

    def keys(self, colons: Ints) -> tuple[Ints, Ints, Bools]:
        """(first quote, last quote, whether the text lies right behind the mark before) of the keys of colons."""
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
    """A type with lists of entries in place of maps, in structs too."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(entry_lists(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
    return kind


def as_maps(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Values of `entry_lists` of a type in the type."""
    if array.type == kind:
        return array
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        children = [as_maps(array.field(at), field.type) for at, field in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)
    keys, values = array.values.flatten()
    return pa.MapArray.from_arrays(array.offsets, keys, values, type=kind, mask=mask)


def has_keys_once(array: pa.MapArray) -> bool:
    """Whether no map has a key twice."""
    offsets = array.offsets.to_numpy()
    codes = array.keys.dictionary_encode()
    maps = np.repeat(np.arange(len(array)), np.diff(offsets)) * max(len(codes.dictionary), 1)
    entries = maps + codes.indices.to_numpy()[offsets[0] : offsets[-1]]
    entries.sort()
    return not bool((np.diff(entries) == 0).any())


def entries_as_lists(data: Any, paths: Sequence[Path]) -> bytes | None:
    """The text of objects on a line each, its maps as lists; None where that is not certain."""
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
    """Whether no text and no bracket is open at some places."""
    before = np.searchsorted(marks.at, starts)
    open_ = np.where(before > 0, marks.depth[np.maximum(before - 1, 0)], 0)
    return not (open_.any() or (np.searchsorted(marks.quotes, starts) % 2).any())


def _has_escaped_list(marks: _Marks) -> bool:
    """Whether a list is the value of an escaped name, which may be that of a map: the reader would take it for one."""
    if not len(marks.slashes):
        return False
    begin, end, is_key = marks.keys(np.maximum(np.flatnonzero(marks.sign == ord("[")) - 1, 0))
    return bool((is_key & (np.searchsorted(marks.slashes, begin) < np.searchsorted(marks.slashes, end))).any())


def _edits(marks: _Marks, path: Path) -> list[tuple[Ints, Ints, bytes]] | None:
    """(places, bytes that are taken away there, bytes in their place) for the maps at a path."""
    opens, last = marks.above(1)
    is_meant = np.ones(len(opens), np.bool_)
    for depth, name in enumerate(path, start=1):
        inner, of_inner = marks.above(depth + 1)
        found = _named(marks, inner, name)
        parent = last[np.maximum(inner - 1, 0)]
        found &= (parent >= 0) & is_meant[np.maximum(parent, 0)] if len(opens) else False
        if (marks.sign[inner[found]] != _OPEN).any():
            return None  # a list in place of the object
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
    """Which brackets are the value of a name."""
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
    """The data with places replaced; no place is edited twice."""
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
