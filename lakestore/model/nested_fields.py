"""Fields inside columns, by path: `address.zip`, `items.element.count`, `prices.value.currency`.

A column has one type text and one id for each field inside it, depth first. Here both are one tree, which a step of
`lakestore.evolution` changes at one place. Ids never change and are never reused, as with columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from itertools import count

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model import types
from lakestore.model.columns import Column
from lakestore.model.table import Table

LIST, MAP = "list", "map"
STRUCT = "struct"
SCALAR = ""


@dataclass(frozen=True, slots=True)
class NestedField:
    """A column or a field inside one, with the fields inside it."""

    id: int
    name: str
    required: bool
    scalar: pa.DataType | None
    """The type; None if there are fields inside."""
    shape: str = SCALAR
    """`STRUCT`, `LIST`, `MAP` or `SCALAR`."""
    parts: tuple[NestedField, ...] = ()

    @property
    def kind(self) -> pa.DataType:
        """The Arrow type."""
        if self.shape == STRUCT:
            return pa.struct([pa.field(part.name, part.kind, nullable=not part.required) for part in self.parts])
        if self.shape == LIST:
            return types.list_of(self.parts[0].kind, required=self.parts[0].required)
        if self.shape == MAP:
            key, value = self.parts
            return types.map_of(key.kind, value.kind, required=value.required)
        return self.scalar

    def inside(self) -> Iterator[NestedField]:
        """All fields inside it, depth first."""
        for part in self.parts:
            yield part
            yield from part.inside()

    def with_paths(self, path: str = "") -> Iterator[tuple[str, NestedField]]:
        """The column and all fields inside it, each with its path."""
        path = path or self.name
        yield path, self
        for part in self.parts:
            yield from part.with_paths(f"{path}.{part.name}")


@dataclass(frozen=True, slots=True)
class FieldPath:
    """The place of a field: its column, and the names from there."""

    column: Column
    names: tuple[str, ...]
    text: str


def tree(column: Column) -> NestedField:
    """A column with the fields inside it."""
    return _tree(column.id, column.name, column.required, column.arrow.type, iter(column.nested))


def tree_of(kind: pa.DataType, name: str) -> NestedField:
    """A wanted type as a tree, without ids that mean anything."""
    return _tree(0, name, False, kind, count(1))


def _tree(number: int, name: str, required: bool, kind: pa.DataType, ids: Iterator[int]) -> NestedField:
    parts = types.parts(kind)
    if not parts:
        return NestedField(number, name, required, kind)
    shape = STRUCT if pa.types.is_struct(kind) else LIST if pa.types.is_list(kind) else MAP
    inner = [_tree(next(ids), part.name, not part.nullable, part.type, ids) for part in parts]
    return NestedField(number, name, required, None, shape, tuple(inner))


def path_of(table: Table, text: str) -> FieldPath | None:
    """The place that a text with dots names; None if it names a column, or nothing inside one. The name of a column
    may have dots too, so the shortest name of a nested column counts."""
    if any(column.name == text for column in table.columns):
        return None
    for column in sorted(table.columns, key=lambda column: len(column.name)):
        if text.startswith(f"{column.name}.") and column.nested:
            return FieldPath(column, tuple(text[len(column.name) + 1 :].split(".")), text)
    return None


class Editor:
    """Changes the fields inside one column of a table."""

    def __init__(self, table: Table, path: FieldPath) -> None:
        self._table, self._path = table, path

    def add(self, type_text: str, *, first: bool, after: str) -> Table:
        """The table with a new field, which is optional."""
        ids = iter(
            range(self._table.last_column_id + 2, self._table.last_column_id + 2 + types.nested_count(type_text))
        )
        number = self._table.last_column_id + 1
        new = _tree(number, self._path.names[-1], False, types.arrow_type(type_text), ids)

        def added(struct: NestedField, name: str) -> tuple[NestedField, ...]:
            self._check_free(struct, name)
            return _placed(struct.parts, new, self._place(struct, first=first, after=after))

        highest = max((number, *(part.id for part in new.inside())))
        return replace(self._changed(added), last_column_id=highest)

    def drop(self) -> Table:
        def dropped(struct: NestedField, name: str) -> tuple[NestedField, ...]:
            gone = self._part(struct, name)
            if len(struct.parts) == 1:
                raise self._refused("is the only field of its struct and cannot be dropped: drop the struct")
            return tuple(part for part in struct.parts if part is not gone)

        return self._changed(dropped)

    def rename(self, to: str) -> Table:
        if "." in to:
            raise self._refused(f"is renamed by its last name alone: say {to.rpartition('.')[2]!r}, not {to!r}")

        def renamed(struct: NestedField, name: str) -> tuple[NestedField, ...]:
            if to.lower() != name.lower():
                self._check_free(struct, to)
            return self._with(struct, replace(self._part(struct, name), name=to))

        return self._changed(renamed)

    def move(self, *, first: bool, after: str) -> Table:
        def moved(struct: NestedField, name: str) -> tuple[NestedField, ...]:
            part = self._part(struct, name)
            if after == name:
                raise self._refused("has two places: say first, or after which other field")
            others = replace(struct, parts=tuple(other for other in struct.parts if other is not part))
            return _placed(others.parts, part, self._place(others, first=first, after=after))

        return self._changed(moved)

    def widen(self, kind: pa.DataType, widens: Callable[[str, str], bool]) -> Table:
        def widened(parent: NestedField, name: str) -> tuple[NestedField, ...]:
            part = self._part(parent, name, anywhere=True)
            if part.kind == kind:
                return parent.parts
            old, new = types.type_name(part.kind, self._path.text), types.type_name(kind, self._path.text)
            if part.parts or not widens(old, new):
                raise self._refused(f"is {old}, which cannot be widened to {new}")
            return self._with(parent, replace(part, scalar=kind))

        return self._changed(widened, anywhere=True)

    def make_optional(self) -> Table:
        def optional(parent: NestedField, name: str) -> tuple[NestedField, ...]:
            return self._with(parent, replace(self._part(parent, name, anywhere=True), required=False))

        return self._changed(optional, anywhere=True)

    def _changed(
        self, change: Callable[[NestedField, str], tuple[NestedField, ...]], *, anywhere: bool = False
    ) -> Table:
        column = self._path.column
        if column.default is not None or column.initial is not None:
            raise self._refused("is inside a column with a default, and fields inside such a column do not change")
        changed = self._at(tree(column), self._path.names, change, anywhere)
        ids = tuple(part.id for part in changed.inside())
        made = replace(column, type=types.type_name(changed.kind, column.name), nested=ids)
        return replace(self._table, columns=tuple(made if each is column else each for each in self._table.columns))

    def _at(
        self,
        parent: NestedField,
        names: tuple[str, ...],
        change: Callable[[NestedField, str], tuple[NestedField, ...]],
        anywhere: bool,
    ) -> NestedField:
        if len(names) > 1:
            part = self._part(parent, names[0], anywhere=True)
            return replace(parent, parts=self._with(parent, self._at(part, names[1:], change, anywhere)))
        if parent.shape != STRUCT and not anywhere:
            raise self._refused(f"is not a field of a struct: {parent.name!r} is none")
        return replace(parent, parts=change(parent, names[0]))

    def _part(self, parent: NestedField, name: str, *, anywhere: bool = False) -> NestedField:
        """The field of a name; of a map only its value changes, because equal keys must stay equal."""
        part = next((part for part in parent.parts if part.name == name), None)
        if part is None:
            known = ", ".join(part.name for part in parent.parts) or "none"
            raise self._refused(f"is not there: fields inside {parent.name!r} are {known}")
        if anywhere and parent.shape == MAP and name == "key":
            raise self._refused("is the key of a map and does not change")
        return part

    @staticmethod
    def _with(parent: NestedField, made: NestedField) -> tuple[NestedField, ...]:
        return tuple(made if part.id == made.id else part for part in parent.parts)

    def _check_free(self, struct: NestedField, name: str) -> None:
        if name.lower() in [part.name.lower() for part in struct.parts]:
            raise self._refused(f"cannot be called {name!r}: another field of its struct is")

    def _place(self, struct: NestedField, *, first: bool, after: str) -> int:
        if first and after:
            raise self._refused("has two places: say first, or after which other field")
        if first or not after:
            return 0 if first else len(struct.parts)
        return struct.parts.index(self._part(struct, after)) + 1

    def _refused(self, rule: str) -> Invalid:
        return Invalid(f"table {self._table.name}: field {self._path.text!r} {rule}")


def _placed(parts: tuple[NestedField, ...], new: NestedField, place: int) -> tuple[NestedField, ...]:
    return (*parts[:place], new, *parts[place:])


def is_same_inside(old: Column, new: Column) -> bool:
    """Whether values of two versions of a column need no conversion."""
    return old.nested == new.nested and old.arrow.type == new.arrow.type


def dropped_fields(old: Column, kept: Collection[int]) -> list[str]:
    """The paths of fields in an older version of a column that are not among the ids."""
    return [path for path, part in tree(old).with_paths() if part.id != old.id and part.id not in kept]
