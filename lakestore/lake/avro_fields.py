"""The fields of many Avro records at once: where each lies in the records' bytes, and its values as arrays.

A *place* is the first byte of a value; the places of one field in all records are an array, and a step over a type is
made for all of them together. So a manifest costs a few array operations a field, not a loop over its files. Values
that need a Python object each are read one by one, where somebody asks. Bytes that are no values of the schema raise
`ValueError` or `IndexError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_LONG_BITS = 64
_ITEMS_MAX = 1 << 16
"""Items of an array: more than a table has columns, and a file row groups."""
_MAP = "map"
_FIXED_SIZES: Mapping[str, int] = {"null": 0, "boolean": 1, "float": 4, "double": 8}
MARGIN = bytes(16)
"""Zeros that stand behind records' bytes: a number that is cut short ends there."""


def longs(data: Bytes, at: Places) -> tuple[Places, Places]:
    """The numbers of variable length at these places, and the places behind them."""
    byte = data[at]
    after = at + 1
    value = (byte & 0x7F).astype(np.uint64)
    left, shift = np.flatnonzero(byte >= 0x80), 7
    while len(left):
        if shift >= _LONG_BITS:
            raise ValueError("a number has more than 64 bits")
        byte = data[after[left]]
        value[left] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[left] += 1
        left, shift = left[byte >= 0x80], shift + 7
    half = (value >> np.uint64(1)).astype(np.int64)
    return half ^ -(value & np.uint64(1)).astype(np.int64), after


def passed_longs(data: Bytes, at: Places) -> Places:
    """The places behind numbers of variable length."""
    after = at + 1
    left, size = np.flatnonzero(data[at] >= 0x80), 1
    while len(left):
        if (size := size + 1) > 10:
            raise ValueError("a number has more than 64 bits")
        more = data[after[left]] >= 0x80
        after[left] += 1
        left = left[more]
    return after


class Fields:
    """The steps over the fields of one schema's records."""

    def __init__(self, schema: Any) -> None:
        self._known: dict[str, Any] = {}
        self._learn(schema)
        self.fields: tuple[tuple[int, Any], ...] = tuple(self._flat(schema))
        """Id and type of each field in its order; a record among them stands for its own fields."""

    def _flat(self, record: Any) -> Iterator[tuple[int, Any]]:
        for field in record["fields"]:
            kind, number = self._named(field["type"]), field.get("field-id", 0)
            if isinstance(kind, dict) and kind["type"] == "record":
                yield from self._flat(kind)
            else:
                yield number, kind

    def _learn(self, kind: Any) -> None:
        """Note the named types in a type."""
        if isinstance(kind, list):
            for part in kind:
                self._learn(part)
        if not isinstance(kind, dict):
            return
        if kind["type"] in ("fixed", "record"):
            self._known[kind["name"]] = kind
        for field in kind.get("fields", ()):
            self._learn(field["type"])
        for part in (kind["type"], kind.get("items"), kind.get("values")):
            self._learn(part)

    def _named(self, kind: Any) -> Any:
        """A type as it is defined."""
        if isinstance(kind, str):
            return self._known.get(kind, kind)
        if isinstance(kind, dict) and isinstance(kind["type"], list | dict):
            return self._named(kind["type"])
        return kind

    def passed(self, kind: Any, data: Bytes, at: Places) -> Places:
        """The places behind values of a type."""
        if isinstance(kind, list):
            return self._passed_union(kind, data, at)
        if isinstance(kind, dict):
            return self._passed_nested(kind, data, at)
        if kind in ("int", "long"):
            return passed_longs(data, at)
        if kind in ("string", "bytes"):
            return behind(data, *longs(data, at))
        if kind in self._known:
            return self.passed(self._known[kind], data, at)
        if kind not in _FIXED_SIZES:
            raise ValueError(f"its type {kind!r} is not known")
        return at + _FIXED_SIZES[kind]

    def _passed_union(self, kind: list[Any], data: Bytes, at: Places) -> Places:
        inner, held = present(kind, data, at)
        after = at + 1
        if len(held) == len(at):
            return self.passed(inner, data, after)
        if len(held):
            after[held] = self.passed(inner, data, after[held])
        return after

    def _passed_nested(self, kind: Mapping[str, Any], data: Bytes, at: Places) -> Places:
        name = kind["type"]
        if name == "record":
            for field in kind["fields"]:
                at = self.passed(self._named(field["type"]), data, at)
            return at
        if name == "fixed":
            return at + int(kind["size"])
        if name not in ("array", _MAP):
            return self.passed(name, data, at)
        at = at.copy()
        for _, active, places in self.items(kind, data, at):
            at[active] = places
        return at

    def items(self, kind: Mapping[str, Any], data: Bytes, at: Places) -> Iterator[tuple[Places, Places, Places]]:
        """The items of arrays and maps, one of each after the other, and at last the ends of all, without items.

        Each time: places of the items, the numbers of the arrays that have one, the places behind the items.
        """
        parts = ("string", kind["values"]) if kind["type"] == _MAP else (kind["items"],)
        at, active = at.copy(), np.arange(len(at))
        while len(active):
            left, places = longs(data, at[active])
            blocked = left < 0
            if blocked.any():
                places[blocked] = passed_longs(data, places[blocked])
                left = np.abs(left)
            if int(left.max()) > _ITEMS_MAX:
                raise ValueError(f"an array has more than {_ITEMS_MAX:,} items")
            at[active] = places
            open_ = left > 0
            active, left = active[open_], left[open_]
            held = active
            while len(held):
                begin = at[held]
                places = begin
                for part in parts:
                    places = self.passed(self._named(part), data, places)
                at[held] = places
                yield begin, held, places
                left -= 1
                held, left = held[left > 0], left[left > 0]
        yield np.empty(0, np.int64), np.arange(len(at)), at


def present(kind: Any, data: Bytes, at: Places) -> tuple[Any, Places]:
    """The type in a union with null, and the numbers of the places that have a value; of any other type all have."""
    if not isinstance(kind, list):
        return kind, np.arange(len(at))
    if len(kind) != 2 or "null" not in kind:
        raise ValueError("it has a union that Iceberg does not use")
    null = kind.index("null")
    branch = data[at]
    held = branch == 2 - 2 * null
    if not bool(np.all(held | (branch == 2 * null))):
        raise ValueError("a value is of no type of its union")
    return kind[1 - null], np.flatnonzero(held)


def behind(data: Bytes, size: Places, at: Places) -> Places:
    """The places behind so many bytes at these places."""
    after: Places = at + size
    if len(after) and (int(size.min()) < 0 or int(after.max()) > len(data) - len(MARGIN)):
        raise ValueError("it is cut short")
    return after
