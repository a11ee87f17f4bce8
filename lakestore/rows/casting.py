"""The cast engine: casts a column of any layout and source to exactly one of our types.

- `refuse` raises `Invalid` for the first value that does not fit, and names column, row and value. `mask` returns null
  for each misfit and marks its row; the loader and the bridge make dead letters of the marked rows.
- Both modes are one walk over the column. The walk follows the wanted type and matches fields of structs by name. The
  `Rules` of the source cast the values that are not nested; docs/internals/casts.md lists them.
- Dictionaries, views and nulls take memory when they unfold. A budget is charged before an array is made, because a
  small message must not become a large array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.limits import Limits
from lakestore.model.outside_values import excerpt
from lakestore.model.types import EXTENSIONS, is_listlike, parts, type_name
from lakestore.rows import row_hash, scalar_casts
from lakestore.rows.scalar_casts import Leaf, Mask, Misfits, Times

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_TAKEN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
"""Types of dictionaries that Arrow takes no values of, and their types without views."""
_VIEWS = (pa.types.is_list_view, pa.types.is_large_list_view)


@dataclass(frozen=True, slots=True)
class TargetType:
    """The type to cast to, as a tree with its nested fields."""

    kind: pa.DataType
    parts: tuple[Part, ...]
    strict: bool
    """True if values inside must be checked even if the type is right: required fields, keys of maps."""

    @staticmethod
    def of(kind: pa.DataType, ids: Iterator[int] | None = None) -> TargetType:
        """The tree of one of our types. `ids` are the column's `nested`."""
        numbers = repeat(0) if ids is None else ids
        inner = tuple(Part(field, next(numbers), TargetType.of(field.type, numbers)) for field in parts(kind))
        strict = pa.types.is_map(kind) or any(not part.field.nullable or part.want.strict for part in inner)
        return TargetType(kind, inner, bool(strict))


@dataclass(frozen=True, slots=True)
class Part:
    """A field inside a nested type."""

    field: pa.Field
    id: int
    want: TargetType


Places = Callable[[pa.StructType, TargetType], list[int | None]]
"""Maps a struct type of a source to the indices of the wanted fields in it; None for a missing field."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one source of values."""

    leaf: Leaf
    times: Times = field(default_factory=Times)
    by_kind: bool = True
    """True if each value is judged by itself: nulls fit every type. False if the types must match even for nulls."""
    drops_fields: bool = False
    """True if unknown fields of structs are left out. Otherwise they are refused."""
    checked: bool = True
    """True if required fields and the keys of maps are checked."""
    places: Places | None = None
    """Finds fields of structs. None: by name."""

    def read_as(self, unit: str, zone: str) -> Rules:
        """The rules with another unit and zone of times."""
        return replace(self, times=Times(unit, zone)) if unit or zone else self


ROWS = Rules(scalar_casts.of_rows, by_kind=False)
"""Arrow rows: rows that users write, Parquet and Arrow files."""
RECORDS = Rules(scalar_casts.of_record, drops_fields=True)
"""Decoded records of Kafka."""
JSON = Rules(scalar_casts.of_json)
"""Values of JSON files."""
CSV = Rules(scalar_casts.of_csv)
"""Texts of CSV files."""
ARROW = Rules(scalar_casts.plain)
"""Values that Arrow's own cast accepts."""


class Budget:
    """The memory that the casts of one batch may use. Raises `Invalid` for a batch that unfolds to more."""

    def __init__(self, table: str, limits: Limits, claim: Callable[[int], None] | None = None) -> None:
        """`claim` gets the number of bytes before they are allocated, and may raise too."""
        self._table, self._limits, self._claim = table, limits, claim
        self._left: float = limits.batch_memory_bytes

    def pay(self, count: int, kind: pa.DataType, path: str, each_bytes: int = 0) -> None:
        """Charge the least memory that `count` values need."""
        self.spend(count * max(_width(kind), each_bytes), path)

    def spend(self, count: float, path: str) -> None:
        """Charge bytes that will be allocated."""
        self._left -= count
        if self._left < 0:
            most = self._limits.batch_memory_bytes
            raise self._refused(path, f"unfolds, with what is before it, to over {most} bytes: send smaller batches")
        if self._claim is not None:
            self._claim(int(count))

    def check_values(self, count: int, path: str) -> None:
        """Refuse more values in lists than a batch may have."""
        most = self._limits.nested_values
        if count > most:
            raise self._refused(path, f"holds {count} values, more than {most}: send smaller batches")

    def _refused(self, path: str, why: str) -> Invalid:
        return Invalid(f"table {self._table}: column {path!r} {why}")


def refuse(
    array: pa.Array,
    field: pa.Field,
    rules: Rules = ROWS,
    *,
    table: str = "",
    budget: Budget | None = None,
    ids: Iterator[int] | None = None,
) -> pa.Array:
    """Cast a column to the field's type. Raises `Invalid`, which names the first value that does not fit.

    `ids` are the ids of the nested fields, for rules that find fields by id.
    """
    if array.type == field.type and not pa.types.is_nested(field.type):
        return array
    return _Walk(rules, table, budget, None).column(array, TargetType.of(field.type, ids), field.name)


def mask(array: pa.Array, field: pa.Field, rules: Rules) -> tuple[pa.Array, Mask | None]:
    """Cast a column to the field's type. A misfit becomes null and true in the mask; the mask is None if all fit."""
    made, walk = _masked(array, field, rules)
    if walk is None or walk.bad is None or not walk.bad.any():
        return made, None
    return made.take(pa.array(np.arange(len(made)), mask=walk.bad)), walk.bad


def why(value: pa.Array, field: pa.Field, rules: Rules) -> str:
    """The reason why the only value of a column does not fit. It names a nested value: `order.items[3].price: …`."""
    walk = _masked(value, field, rules)[1]
    return "it does not fit" if walk is None or walk.first is None else walk.first()


def _masked(array: pa.Array, field: pa.Field, rules: Rules) -> tuple[pa.Array, _Walk | None]:
    if array.type == field.type and not pa.types.is_nested(field.type):
        return array, None
    walk = _Walk(rules, "", None, np.zeros(len(array), dtype=np.bool_))
    return walk.column(array, TargetType.of(field.type), field.name), walk


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of an array inside a column."""

    path: str
    """The path of its type: `order.items.element.price`."""
    rows: Callable[[Ints], Ints]
    """Maps indices of the array to rows of the column."""
    name: Callable[[int], str]
    """Maps an index of the array to the path of its value: `order.items[3].price`."""
    is_nested: bool = True

    @staticmethod
    def column(name: str) -> _Place:
        return _Place(name, lambda indices: indices, lambda index: name, is_nested=False)

    def field(self, name: str) -> _Place:
        """The place of a field of structs."""
        return _Place(f"{self.path}.{name}", self.rows, lambda index: f"{self.name(index)}.{name}")

    def inside(self, part: str, offsets: Ints, key: Callable[[int, int], str]) -> _Place:
        """The place of the elements of lists. `key` names the element with an index that begins its list at another."""

        def name(index: int) -> str:
            owner = int(np.searchsorted(offsets, index, side="right")) - 1
            return self.name(owner) + key(index, int(offsets[owner]))

        return _Place(
            f"{self.path}.{part}" if part else self.path,
            lambda indices: self.rows(np.searchsorted(offsets, indices, side="right") - 1),
            name,
        )


class _Walk:
    """One walk over a column, in one of the two modes."""

    def __init__(self, rules: Rules, table: str, budget: Budget | None, bad: Mask | None) -> None:
        self._rules, self._table, self._budget = rules, table, budget
        self.bad = bad
        """The mask of misfits. None: the first misfit is raised."""
        self.first: Callable[[], str] | None = None
        """The reason of the first misfit."""

    def column(self, array: pa.Array, want: TargetType, name: str) -> pa.Array:
        return self._any(array, want, _Place.column(name))

    def _fault(self, wrong: pa.Array | Mask, at: _Place, sentence: Callable[[int, int], str]) -> None:
        """Raise or record the values where `wrong` is true. `sentence` gets the first one's index and row."""
        if isinstance(wrong, pa.Array):
            wrong = wrong.fill_null(False).to_numpy(zero_copy_only=False)
        found = np.flatnonzero(wrong)
        if not len(found):
            return
        rows = at.rows(found)
        first = partial(sentence, int(found[0]), int(rows[0]))
        if self.bad is None:
            raise Invalid(first())
        self.bad[rows] = True
        self.first = self.first or first

    def _predicate_fault(self, wrong: pa.Array | Mask, at: _Place, says: Callable[[int], str]) -> None:
        """Raise or record the values where `wrong` is true. `says` is the end of a sentence about one of them."""

        def sentence(index: int, row: int) -> str:
            if self.bad is not None:
                return f"{at.name(index)} {says(index)}"
            return f"table {self._table}: column {at.path!r} {says(index)} in row {row}"

        self._fault(wrong, at, sentence)

    def _type_fault(self, array: pa.Array, at: _Place, what: str) -> None:
        """Raise or record that a type does not go into the wanted type: its values, or by types the whole column."""
        if self.bad is None:
            raise Invalid(f"table {self._table}: column {at.path!r} {what}")
        if self._rules.by_kind:
            self._fault(array.is_valid(), at, lambda index, row: f"{at.name(index)} {what}")
            return
        self.bad[:] = True
        self.first = self.first or (lambda: f"{at.path} {what}")

    def _any(self, array: pa.Array, want: TargetType, at: _Place) -> pa.Array:
        if isinstance(array.type, pa.BaseExtensionType) and array.type.extension_name in EXTENSIONS:
            array = array.storage
        if pa.types.is_dictionary(array.type):
            return self._any(self._unfolded(array, at), want, at)
        if pa.types.is_null(array.type) or (self._rules.by_kind and array.null_count == len(array)):
            return self._nulls(len(array), want.kind, at.path)
        is_same = array.type.equals(want.kind, check_metadata=True)
        is_by_id = self._rules.places is not None and want.parts  # equal names may be other fields
        if is_same and not is_by_id and not (want.strict and self._rules.checked):
            return array
        if pa.types.is_struct(want.kind):
            return self._struct(array, want, at)
        if pa.types.is_list(want.kind):
            return self._list(array, want, at)
        if pa.types.is_map(want.kind):
            return self._map(array, want, at)
        return array if array.type == want.kind else self._scalar(array, want.kind, at)

    def _nulls(self, count: int, kind: pa.DataType, path: str) -> pa.Array:
        if self._budget is not None:
            self._budget.pay(count, kind, path)
        return pa.nulls(count, kind)

    def _struct(self, array: pa.Array, want: TargetType, at: _Place) -> pa.Array:
        if not pa.types.is_struct(array.type):
            return self._other_type(array, want.kind, at)
        sources = array.flatten()
        find = self._rules.places
        places = self._places(array, want, at) if find is None else find(array.type, want)
        made: list[pa.Array] = []
        for part, number in zip(want.parts, places, strict=True):
            below = at.field(part.field.name)
            needed = self._rules.checked and not part.field.nullable
            if number is None:
                if needed:
                    self._type_fault(array, below, "is required, but missing")
                made.append(self._nulls(len(array), part.want.kind, below.path))
                continue
            child = self._any(sources[number], part.want, below)
            if needed and child.null_count:
                self._check_present(pc.and_(pc.is_null(child), pc.is_valid(array)), below)
            made.append(child)
        return pa.StructArray.from_arrays(made, fields=list(want.kind), mask=null_mask(array))

    def _places(self, array: pa.Array, want: TargetType, at: _Place) -> list[int | None]:
        """The index of each wanted field in a struct, by name; None for a missing field."""
        names = [part.name for part in array.type]
        wanted = [part.field.name for part in want.parts]
        if len(set(names)) != len(names):
            self._type_fault(array, at, "has a field twice in the rows")
        if not self._rules.drops_fields:
            for name in names:
                if name not in wanted:
                    self._type_fault(array, at, f"has no field {name!r}")
        return [names.index(name) if name in names else None for name in wanted]

    def _list(self, array: pa.Array, want: TargetType, at: _Place) -> pa.Array:
        if not is_listlike(array.type):
            return self._other_type(array, want.kind, at)
        part = want.parts[0]
        offsets, child = self._children(array, at.path)
        below = at.inside("element", offsets, lambda index, begin: f"[{index - begin}]")
        made = self._any(child, part.want, below)
        if self._rules.checked and not part.field.nullable and made.null_count:
            self._check_present(pc.is_null(made), below)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), made, type=want.kind, mask=null_mask(array))

    def _children(self, array: pa.Array, path: str) -> tuple[Ints, pa.Array]:
        """Offsets and elements of lists of any layout, without values outside of the lists."""
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        if self._budget is not None:
            self._budget.check_values(int(offsets[-1]), path)
            if any(is_view(array.type) for is_view in _VIEWS):
                self._budget.spend(float(_weights(array, path, self._budget).sum()), path)
        return offsets, array.flatten()

    def _map(self, array: pa.Array, want: TargetType, at: _Place) -> pa.Array:
        entries = array
        if pa.types.is_map(array.type):
            pair = pa.struct([array.type.key_field.with_name("key"), array.type.item_field.with_name("value")])
            entries = array.cast(pa.list_(pair))
        held = entries.type.value_type if is_listlike(entries.type) else None
        if held is None or not pa.types.is_struct(held) or [part.name for part in held] != ["key", "value"]:
            return self._other_type(array, want.kind, at)
        offsets, child = self._children(entries, at.path)
        key, value = want.parts
        sources, values = child.flatten()
        of_keys = at.inside("key", offsets, lambda index, begin: "")
        keys = self._any(sources, key.want, of_keys)
        if keys.null_count and self._rules.checked:
            self._check_present(pc.is_null(keys), of_keys)
            null = np.flatnonzero(pc.is_null(keys).to_numpy(zero_copy_only=False))
            lost = np.diff(np.searchsorted(null, offsets)) > 0
            absent = pc.or_(pa.array(lost), pc.is_null(entries))
            left = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), child, mask=absent)
            return self._map(left, want, at)
        if self._rules.checked:
            self._check_distinct(keys, offsets, at)
        below = at.inside("value", offsets, lambda index, begin: f"[{sources[index].as_py()!r}]")
        values = self._any(values, value.want, below)
        if self._rules.checked and not value.field.nullable:
            self._check_present(pc.is_null(values), below)
        return pa.MapArray.from_arrays(
            pa.array(offsets, pa.int32()), keys, values, type=want.kind, mask=null_mask(entries)
        )

    def _check_present(self, missing: pa.Array, at: _Place) -> None:
        self._predicate_fault(missing, at, lambda index: "is required, but null")

    def _check_distinct(self, keys: pa.Array, offsets: Ints, at: _Place) -> None:
        """Refuse a key that a map has twice: engines disagree about its value."""
        owner = np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
        both = row_hash.hashes([row_hash.column(keys), owner.view(np.uint64)])
        order = np.argsort(both, kind="stable")
        twice = np.zeros(len(keys), dtype=np.bool_)
        twice[order[1:][both[order][1:] == both[order][:-1]]] = True
        maps = at.inside("", offsets, lambda index, begin: "")
        self._predicate_fault(twice, maps, lambda index: f"has the key {keys[index].as_py()!r} twice")

    def _scalar(self, array: pa.Array, kind: pa.DataType, at: _Place) -> pa.Array:
        if not self._rules.by_kind and not scalar_casts.is_castable(array.type, kind):
            return self._other_type(array, kind, at)
        if self._budget is not None:
            plain = pa.types.is_primitive(array.type)
            weights = len(array) * _width(kind) if plain else _weights(array, at.path, self._budget).sum()
            self._budget.spend(float(weights), at.path)
        misfits = Misfits(self._rules.times)
        made = self._rules.leaf(array, kind, misfits)
        if misfits.rows is None:
            return made

        def sentence(index: int, row: int) -> str:
            reason = misfits.reason(index)
            if self.bad is not None:
                return f"{at.name(index)}: {reason}" if at.is_nested else reason
            if self._rules.by_kind:  # a reason of ROWS is a whole predicate
                reason = f"{_no(array, index, kind, at.path)}: {reason}"
            return f"table {self._table}: column {at.path!r}, row {row}: {reason}"

        self._fault(misfits.rows, at, sentence)
        return made

    def _unfolded(self, array: pa.DictionaryArray, at: _Place) -> pa.Array:
        """Unfold a dictionary. The cost is charged by row, because a few long values may be named often."""
        if self._budget is not None:
            weights, indices = _weights(array.dictionary, at.path, self._budget), array.indices.drop_null().to_numpy()
            self._budget.spend(float(weights[indices].sum()), at.path)
        values = array.dictionary
        flat = _TAKEN.get(values.type)
        try:
            return (values if flat is None else values.cast(flat)).take(array.indices)
        except pa.ArrowNotImplementedError:
            self._type_fault(array, at, f"is a dictionary of {values.type}, which no column takes")
            return pa.nulls(len(array))

    def _other_type(self, array: pa.Array, kind: pa.DataType, at: _Place) -> pa.Array:
        self._type_fault(array, at, f"is {kind}, not {array.type}")
        return pa.nulls(len(array), kind)


def _no(array: pa.Array, index: int, kind: pa.DataType, path: str) -> str:
    return f"{excerpt(scalar_casts.python_value(array, index))} is no {type_name(kind, path)}"


def null_mask(array: pa.Array) -> pa.BooleanArray | None:
    """The null mask of an array for `from_arrays` of nested types; None without nulls."""
    return pc.is_null(array) if array.null_count else None


def _weights(array: pa.Array, path: str, budget: Budget) -> Floats:
    """About how many bytes each value takes after it is unfolded."""
    budget.check_values(len(array), path)
    kind = array.type
    if pa.types.is_dictionary(kind):
        values = np.append(_weights(array.dictionary, path, budget), 8.0)
        return np.asarray(values[array.indices.cast(pa.int64()).fill_null(len(values) - 1).to_numpy()])
    if pa.types.is_struct(kind):
        total = np.ones(len(array), dtype=np.float64)
        for i in range(kind.num_fields):
            total += _weights(array.field(i), path, budget)
        return total
    if any(is_view(kind) for is_view in _VIEWS):
        there = pc.is_valid(array).to_numpy(zero_copy_only=False)
        starts, sizes = array.offsets.to_numpy() * there, array.sizes.to_numpy() * there
        return _sums(_weights(array.values, path, budget), starts, starts + sizes)
    if pa.types.is_map(kind):
        ends = array.offsets.to_numpy()
        both = _weights(array.keys, path, budget) + _weights(array.items, path, budget)
        return _sums(both, ends[:-1], ends[1:])
    if is_listlike(kind):
        lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        ends = np.cumsum(lengths, dtype=np.int64)
        return _sums(_weights(array.flatten(), path, budget), ends - lengths, ends)
    return _flat_weights(array)


def _width(kind: pa.DataType) -> int:
    """The least number of bytes of one value."""
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
