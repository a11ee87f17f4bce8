"""`table.alter(…)`: what a user writes, as steps; and which version a user's rows are meant for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.evolution import (
    OPTIONS,
    AddColumn,
    DropColumn,
    MakeOptional,
    MoveColumn,
    SetDefault,
    SetOptions,
    Step,
    WidenColumn,
    renames,
)
from lakestore.model.table import Table
from lakestore.model.types import type_name
from lakestore.rows import user

if TYPE_CHECKING:
    from lakestore.client.lake import Lake


def steps_of(
    *,
    drop: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    add: Mapping[str, pa.DataType | pa.Field] | None = None,
    widen: Mapping[str, pa.DataType] | None = None,
    optional: Sequence[str] = (),
    default: Mapping[str, Any] | None = None,
    new_rows_only: bool = False,
    order: Sequence[str] = (),
    lake: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[Step]:
    """The steps, in the order of the arguments here; all but the first two use names as they are after a rename.

    `options` are of `evolution.OPTIONS`; another merge engine is refused in words.
    """
    for name, value in {"drop": drop, "optional": optional, "order": order}.items():
        if isinstance(value, str):
            raise Invalid(f"{name}= takes a list of column names, not the text {value!r}")
    defaults = dict(default or {})
    steps: list[Step] = [DropColumn(name) for name in drop]
    steps += renames(rename or {})
    for name, kind in (add or {}).items():
        steps.append(_added(name, kind, defaults.pop(name, None), new_rows_only))
    steps += [WidenColumn(name, type_name(kind, name)) for name, kind in (widen or {}).items()]
    steps += [MakeOptional(name) for name in optional]
    steps += [SetDefault(name, value) for name, value in defaults.items()]
    steps += [MoveColumn(name, first=not i, after=order[i - 1] if i else "") for i, name in enumerate(order)]
    for name in options:
        if name not in OPTIONS and name != "merge":
            raise Invalid(f"alter takes no {name!r}; options of a table are {', '.join(OPTIONS)}")
    if drop and "ttl" in options:
        steps.insert(0, SetOptions(ttl=None))  # the column that it used may go
    if lake or options:
        steps.append(SetOptions(dict(lake or {}), **options))
    return steps


def _added(name: str, kind: pa.DataType | pa.Field, default: Any, new_rows_only: bool) -> AddColumn:
    if isinstance(kind, pa.Field):
        return AddColumn(name, type_name(kind.type, name), not kind.nullable, default, new_rows_only)
    if not isinstance(kind, pa.DataType):
        raise Invalid(f"column {name!r} is to be added as {kind!r}, which is no pyarrow type")
    return AddColumn(name, type_name(kind, name), default=default, new_rows_only=new_rows_only)


def fitting(lake: Lake, definition: Table, data: Any) -> tuple[Table, pa.RecordBatch]:
    """A user's rows, and the version whose names they use: a name that is not known has the table looked at anew."""
    data = user.readable_again(data)
    batch = user.from_user(data, definition.schema)
    if {column.name for column in definition.columns}.issuperset(batch.schema.names):
        return definition, batch
    newest = lake.table(definition.name).definition
    if newest == definition:
        return definition, batch
    return newest, user.from_user(data, newest.schema)


def fitting_parts(lake: Lake, definition: Table, data: Any) -> list[tuple[Table, pa.RecordBatch]]:
    """As `fitting`, in parts that name the same columns where the merge engine asks for it."""
    return [fitting(lake, definition, part) for part in user.by_columns(data, definition)]
