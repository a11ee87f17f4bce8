"""Types by which Arrow's reader of JSON is told to read the fields that columns want, learned from what records send.

A reader of fixed types refuses a block in which numbers come as texts, or times as numbers. So a few records tell how
a field comes, it is read as that, and cast where nothing is lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from lakestore.connectors.bridge.casting import casts
from lakestore.connectors.bridge.casting.cast_rules import Rule
from lakestore.connectors.bridge.formats.json import json_one
from lakestore.connectors.bridge.formats.json.json_maps import Path, map_paths
from lakestore.connectors.bridge.formats.json.json_one import Number
from lakestore.connectors.bridge.framing.wire import Part
from lakestore.connectors.bridge.unread_fields import Tree, tree_of
from lakestore.model.types import parts

_FRACTION = pa.decimal128(38, 9)
_ELEMENTS_SEEN = 4
_WHOLE_CHARS = 18


@dataclass(slots=True)
class Shape:
    """The reading of a wanted schema."""

    wanted: pa.Schema
    texts: pa.StructType
    """The types of values read one by one: times as texts."""
    by_hand: bool
    """Whether a type is wanted that Arrow's reader does not know."""
    reader: json_one.Reader
    """The reading of one record."""
    tree: Tree
    """The fields that are read."""
    maps: tuple[Path, ...] = ()
    """The paths of maps, which Arrow's reader takes as lists of entries."""
    learned: dict[str, pa.DataType] = field(default_factory=dict)
    """Path of a field to the type in which records send it, where that is not the usual one."""
    has_extra: bool = False
    """Whether records are known to have fields that no column reads."""
    _parse: pa.Schema | None = None
    _told: pa.StructType | None = None

    @staticmethod
    def of(wanted: pa.Schema, part: Part) -> Shape:
        """Nothing is learned yet."""
        reader = json_one.Reader(pa.struct(list(wanted)), part)
        maps = map_paths(wanted)
        by_hand = maps is None or any(_by_hand(each.type) for each in wanted)
        return Shape(wanted, _loose(wanted), by_hand, reader, tree_of(wanted), tuple(maps or ()))

    @property
    def parse(self) -> pa.Schema:
        """The schema for Arrow's reader."""
        if self._parse is None:
            self._parse = pa.schema([self._part(part, "", times_only=False) for part in self.wanted])
        return self._parse

    @property
    def has_decimals(self) -> bool:
        """Whether Arrow's reader is told to read decimals."""
        return any(_has_decimals(part.type) for part in self.parse)

    def told(self, rows: pa.StructArray) -> pa.StructArray | None:
        """Rows that were read, in the types that are wanted, with times as they came; None where one does not fit."""
        if self._told is None:
            self._told = pa.struct([self._part(part, "", times_only=True) for part in self.wanted])
        if rows.type == self._told:
            return rows
        made, bad = casts.cast(rows, Rule(self._told))
        return None if bad is not None and bad.any() else made

    def learn(self, samples: Sequence[object]) -> bool:
        """See how fields are sent; whether that is news."""
        seen: dict[str, list[object]] = {}
        kinds: dict[str, pa.DataType] = {}
        for sample in samples:
            _see_fields(sample, self.wanted, "", seen, kinds)
        found = {path: kind for path, values in seen.items() if (kind := _sent(values, kinds[path])) is not None}
        if found == self.learned:
            return False
        self.learned, self._parse, self._told = found, None, None
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
    seen: dict[str, list[object]],
    kinds: dict[str, pa.DataType],
) -> None:
    """Collect the values of each field that is no object and no list."""
    for part in fields:
        value = held.get(part.name) if isinstance(held, dict) else None
        _see(value, part.type, f"{path}.{part.name}", seen, kinds)


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
    """The type in which values are sent; None for the usual one, and where they are sent in several."""
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
    """The type as records read one by one have it: times as texts, float32 as float64."""
    if pa.types.is_struct(kind):
        return _loose(kind)
    if pa.types.is_list(kind):
        return pa.list_(_texts(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_texts(kind.key_type), _texts(kind.item_type))
    if pa.types.is_temporal(kind):
        return pa.string()
    return pa.float64() if pa.types.is_floating(kind) else kind


def _has_decimals(kind: pa.DataType) -> bool:
    inside = parts(kind)
    return bool(pa.types.is_decimal(kind)) or any(_has_decimals(part.type) for part in inside)


def _by_hand(kind: pa.DataType) -> bool:
    """Whether Arrow's reader of JSON does not know a type, or not in the form that is read here."""
    t = pa.types
    if t.is_struct(kind):
        return any(_by_hand(part.type) for part in kind)
    if t.is_list(kind):
        return _by_hand(kind.value_type)
    if t.is_map(kind):
        return _by_hand(kind.item_type)
    return bool(t.is_binary(kind) or (t.is_fixed_size_binary(kind) and not t.is_decimal(kind)))
