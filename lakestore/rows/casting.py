"""Arrow arrays of any layout, cast losslessly to exactly one of our types, or refused by column, row and rule.

Layouts are large, view, dictionary, fixed-size list and sliced ones, at any depth; fields of structs are found by name.
Arrays that unfold (dictionaries, views, nulls) are paid for from a budget before they are made: a small message must
not become a large array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.limits import DEFAULT, Limits
from lakestore.model.decimals import misfit
from lakestore.model.typed import shown
from lakestore.model.types import EXTENSIONS, is_listlike, parts, type_name
from lakestore.rows import row_hash

Place = Callable[[int], int]
"""From an index of an array to its row in the batch."""
Floats = npt.NDArray[np.float64]
_VIEWS = (pa.types.is_list_view, pa.types.is_large_list_view)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A type to cast to, with what the fields inside it must be."""

    kind: pa.DataType
    parts: tuple[Part, ...]
    strict: bool
    """Whether values inside must be checked even if the type is right: required fields, keys of maps."""

    @staticmethod
    def of(kind: pa.DataType, ids: Iterator[int] | None = None) -> Wanted:
        """The tree of a type of ours; ids are its column's `nested`."""
        numbers = repeat(0) if ids is None else ids
        inner = tuple(Part(field, next(numbers), Wanted.of(field.type, numbers)) for field in parts(kind))
        strict = pa.types.is_map(kind) or any(not part.field.nullable or part.want.strict for part in inner)
        return Wanted(kind, inner, bool(strict))


@dataclass(frozen=True, slots=True)
class Part:
    """A field inside a nested type."""

    field: pa.Field
    id: int
    want: Wanted


class Cast:
    """Casts columns of one batch."""

    def __init__(self, table: str, limits: Limits = DEFAULT, claim: Callable[[int], None] | None = None) -> None:
        """`claim` is told of bytes before they are made, and may refuse them too."""
        self._table = table
        self._limits, self._claim = limits, claim
        self._left: float = limits.batch_memory_bytes

    def column(self, array: pa.Array, field: pa.Field) -> pa.Array:
        """The column in the field's type."""
        if array.type == field.type and not pa.types.is_nested(field.type):
            return array
        return self._any(array, Wanted.of(field.type), field.name, lambda index: index)

    def nulls(self, count: int, kind: pa.DataType, path: str) -> pa.Array:
        """Nothing but nulls, paid for."""
        self.pay(count, kind, path)
        return pa.nulls(count, kind)

    def pay(self, count: int, kind: pa.DataType, path: str, each_bytes: int = 0) -> None:
        """Take what so many values will need at least from what one batch may take, or refuse."""
        self._spend(count * max(_width(kind), each_bytes), path)

    def _any(self, array: pa.Array, want: Wanted, path: str, place: Place) -> pa.Array:
        if isinstance(array.type, pa.BaseExtensionType) and array.type.extension_name in EXTENSIONS:
            array = array.storage
        if pa.types.is_dictionary(array.type):
            return self._any(self._unfolded(array, path), want, path, place)
        if pa.types.is_null(array.type):
            return self.nulls(len(array), want.kind, path)
        if not want.strict and array.type.equals(want.kind, check_metadata=True):
            return array
        if pa.types.is_struct(want.kind):
            return self._struct(array, want, path, place)
        if pa.types.is_list(want.kind):
            return self._list(array, want, path, place)
        if pa.types.is_map(want.kind):
            return self._map(array, want, path, place)
        return array if array.type == want.kind else self._scalar(array, want.kind, path, place)

    def _struct(self, array: pa.Array, want: Wanted, path: str, place: Place) -> pa.Array:
        if not pa.types.is_struct(array.type):
            raise self._other_type(array, want.kind, path)
        sources = array.flatten()
        places = self._places(array.type, want, path)
        made: list[pa.Array] = []
        for part, at in zip(want.parts, places, strict=True):
            below = f"{path}.{part.field.name}"
            if at is None:
                made.append(self._absent(part, len(array), below))
                continue
            child = self._any(sources[at], part.want, below, place)
            if not part.field.nullable and child.null_count:
                self._check_present(pc.and_(pc.is_null(child), pc.is_valid(array)), below, place)
            made.append(child)
        mask = pc.is_null(array) if array.null_count else None
        return pa.StructArray.from_arrays(made, fields=list(want.kind), mask=mask)

    def _absent(self, part: Part, count: int, path: str) -> pa.Array:
        """A field that the rows do not have."""
        if not part.field.nullable:
            raise self._refused(path, "is required, but missing")
        return self.nulls(count, part.want.kind, path)

    def _places(self, source: pa.StructType, want: Wanted, path: str) -> list[int | None]:
        """Places of the wanted fields in the source; None for a field that the source lacks."""
        names = [part.name for part in source]
        if len(set(names)) != len(names):
            raise self._refused(path, "has a field twice in the rows")
        known = {part.field.name for part in want.parts}
        for name in names:
            if name not in known:
                raise self._refused(path, f"has no field {name!r}")
        wanted = [part.field.name for part in want.parts]
        return [names.index(name) if name in names else None for name in wanted]

    def _list(self, array: pa.Array, want: Wanted, path: str, place: Place) -> pa.Array:
        if not is_listlike(array.type):
            raise self._other_type(array, want.kind, path)
        part = want.parts[0]
        offsets, child, below = self._children(array, path, place)
        made = self._any(child, part.want, f"{path}.element", below)
        if not part.field.nullable and made.null_count:
            self._check_present(pc.is_null(made), f"{path}.element", below)
        mask = pc.is_null(array) if array.null_count else None
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), made, type=want.kind, mask=mask)

    def _children(self, array: pa.Array, path: str, place: Place) -> tuple[npt.NDArray[np.int64], pa.Array, Place]:
        """Offsets and elements of lists of any layout, without what no list holds, and their rows."""
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        most = self._limits.nested_values
        if offsets[-1] > most:
            raise self._refused(path, f"holds {offsets[-1]} values, more than {most}: send smaller batches")
        if any(is_view(array.type) for is_view in _VIEWS):
            self._spend(float(self._weights(array, path).sum()), path)
        return offsets, array.flatten(), lambda index: place(int(np.searchsorted(offsets, index, side="right")) - 1)

    def _map(self, array: pa.Array, want: Wanted, path: str, place: Place) -> pa.Array:
        entries = array
        if pa.types.is_map(array.type):
            pair = pa.struct([array.type.key_field.with_name("key"), array.type.item_field.with_name("value")])
            entries = array.cast(pa.list_(pair))
        held = entries.type.value_type if is_listlike(entries.type) else None
        if held is None or not pa.types.is_struct(held) or [part.name for part in held] != ["key", "value"]:
            raise self._other_type(array, want.kind, path)
        offsets, child, below = self._children(entries, path, place)
        key, value = want.parts
        keys, values = child.flatten()
        keys = self._any(keys, key.want, f"{path}.key", below)
        self._check_present(pc.is_null(keys), f"{path}.key", below)
        self._check_distinct(keys, offsets, path, place)
        values = self._any(values, value.want, f"{path}.value", below)
        if not value.field.nullable:
            self._check_present(pc.is_null(values), f"{path}.value", below)
        mask = pc.is_null(entries) if entries.null_count else None
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, values, type=want.kind, mask=mask)

    def _check_present(self, missing: pa.Array, path: str, place: Place) -> None:
        index = pc.index(missing, True).as_py()
        if index >= 0:
            raise self._refused(path, f"is required, but null in row {place(index)}")

    def _check_distinct(self, keys: pa.Array, offsets: npt.NDArray[np.int64], path: str, place: Place) -> None:
        """A key twice in one map means one thing to one engine and another to the next."""
        owner = np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
        both = row_hash.hashes([row_hash.column(keys), owner.view(np.uint64)])
        order = np.argsort(both, kind="stable")
        twice = np.flatnonzero(both[order][1:] == both[order][:-1])
        if len(twice):
            index = int(order[1:][twice].min())
            raise self._refused(path, f"has the key {keys[index].as_py()!r} twice in row {place(int(owner[index]))}")

    def _scalar(self, array: pa.Array, kind: pa.DataType, path: str, place: Place) -> pa.Array:
        if not _castable(array.type, kind):
            raise self._other_type(array, kind, path)
        plain = pa.types.is_primitive(array.type)
        self._spend(len(array) * _width(kind) if plain else self._weights(array, path).sum(), path)
        if pa.types.is_fixed_size_binary(kind):
            array = self._sized(array, kind, path, place)
        try:
            cast = array.cast(kind)
        except pa.ArrowException as error:
            first = _first_misfit(array, kind)
            value = _python_value(array[first])
            raise Invalid(
                f"table {self._table}: column {path!r}, row {place(first)}: {shown(value)} is no"
                f" {type_name(kind, path)}{misfit(value, kind)}"
            ) from error
        if pa.types.is_floating(array.type) and array.type.bit_width > kind.bit_width:
            self._check_exact(array, cast, path, place)
        return cast

    def _sized(self, array: pa.Array, kind: pa.DataType, path: str, place: Place) -> pa.Array:
        """Bytes whose length is checked by row before Arrow casts them."""
        array = array.cast(pa.binary())
        lengths = pc.binary_length(array)
        index = pc.index(pc.not_equal(lengths, kind.byte_width), True).as_py()
        if index >= 0:
            row, has = place(index), lengths[index].as_py()
            raise Invalid(f"table {self._table}: column {path!r}, row {row}: {has} bytes are not {kind.byte_width}")
        return array

    def _unfolded(self, array: pa.DictionaryArray, path: str) -> pa.Array:
        """A dictionary's values row by row: a few long ones may be named often."""
        weights, indices = self._weights(array.dictionary, path), array.indices.drop_null().to_numpy()
        self._spend(float(weights[indices].sum()), path)
        return array.dictionary.take(array.indices)

    def _check_exact(self, array: pa.Array, cast: pa.Array, path: str, place: Place) -> None:
        """Arrow narrows floats without a word."""
        wrong = pc.and_(pc.not_equal(cast.cast(array.type), array), pc.invert(pc.is_nan(array)))
        index = pc.index(wrong, True).as_py()
        if index >= 0:
            what = f"{array[index].as_py()} is no exact {cast.type}"
            raise Invalid(f"table {self._table}: column {path!r}, row {place(index)}: {what}")

    def _other_type(self, array: pa.Array, kind: pa.DataType, path: str) -> Invalid:
        return Invalid(f"table {self._table}: column {path!r} is {kind}, not {array.type}")

    def _refused(self, path: str, why: str) -> Invalid:
        return Invalid(f"table {self._table}: column {path!r} {why}")

    def _spend(self, count: float, path: str) -> None:
        """Take bytes that will be made from what one batch may take, or refuse."""
        self._left -= count
        if self._left < 0:
            most = self._limits.batch_memory_bytes
            raise self._refused(path, f"unfolds, with what is before it, to over {most} bytes: send smaller batches")
        if self._claim is not None:
            self._claim(int(count))

    def _weights(self, array: pa.Array, path: str) -> Floats:
        """About how many bytes each value takes once it is unfolded."""
        if len(array) > self._limits.nested_values:
            most = self._limits.nested_values
            raise self._refused(path, f"holds {len(array)} values, more than {most}: send smaller batches")
        kind = array.type
        if pa.types.is_dictionary(kind):
            values = np.append(self._weights(array.dictionary, path), 8.0)
            return np.asarray(values[array.indices.cast(pa.int64()).fill_null(len(values) - 1).to_numpy()])
        if pa.types.is_struct(kind):
            total = np.ones(len(array), dtype=np.float64)
            for i in range(kind.num_fields):
                total += self._weights(array.field(i), path)
            return total
        if any(is_view(kind) for is_view in _VIEWS):
            there = pc.is_valid(array).to_numpy(zero_copy_only=False)
            starts, sizes = array.offsets.to_numpy() * there, array.sizes.to_numpy() * there
            return _sums(self._weights(array.values, path), starts, starts + sizes)
        if pa.types.is_map(kind):
            ends = array.offsets.to_numpy()
            return _sums(self._weights(array.keys, path) + self._weights(array.items, path), ends[:-1], ends[1:])
        if is_listlike(kind):
            lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
            ends = np.cumsum(lengths, dtype=np.int64)
            return _sums(self._weights(array.flatten(), path), ends - lengths, ends)
        return _flat_weights(array)


def _width(kind: pa.DataType) -> int:
    """The least bytes that one value of a type takes."""
    if pa.types.is_struct(kind):
        return sum(_width(part.type) for part in kind)
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return 1
    try:
        return int(kind.byte_width)
    except ValueError:
        return 8


def _sums(weights: Floats, starts: Any, ends: Any) -> Floats:
    total = np.concatenate([[0.0], np.cumsum(weights)])
    return np.asarray(total[ends] - total[starts] + 8)


def _flat_weights(array: pa.Array) -> Floats:
    t = pa.types
    kind = array.type
    if t.is_string_view(kind) or t.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1] or b"", dtype=np.int32)
        lengths = views[array.offset * 4 : (array.offset + len(array)) * 4 : 4]
        return np.maximum(lengths, 0).astype(np.float64) + 8.0
    if t.is_string(kind) or t.is_binary(kind) or t.is_large_string(kind) or t.is_large_binary(kind):
        return np.asarray(pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False) + 8.0)
    return np.full(len(array), float(_width(kind)))


def _castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast keeps the meaning; whether it keeps each value, the cast itself checks."""
    t = pa.types
    if t.is_timestamp(target):
        return bool(t.is_timestamp(source) and (source.tz is None) == (target.tz is None))
    for same in (t.is_integer, t.is_floating, t.is_decimal, t.is_date, t.is_time):
        if same(target):
            return bool(same(source) or (t.is_integer(source) and t.is_decimal(target)))
    if t.is_string(target):
        return bool(t.is_large_string(source) or t.is_string_view(source))
    bytes_of_any_length = t.is_large_binary(source) or t.is_binary_view(source)
    if t.is_binary(target):
        return bool(bytes_of_any_length or t.is_fixed_size_binary(source))
    if t.is_fixed_size_binary(target):
        return bool(bytes_of_any_length or t.is_binary(source))
    return False


def _python_value(scalar: pa.Scalar) -> Any:
    """The value in Python, or its text: nanoseconds have a Python value only where pandas is installed."""
    if pa.types.is_temporal(scalar.type) and getattr(scalar.type, "unit", "") == "ns":
        return str(scalar.cast(pa.string()))
    return scalar.as_py()


def _first_misfit(array: pa.Array, target: pa.DataType) -> int:
    """The first value that does not fit, by bisection."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            array.slice(low, middle - low).cast(target)
            low = middle
        except pa.ArrowException:
            high = middle
    return low
