"""`table.alter(…)`: the arguments as steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
from lakestore.model.named_types import typed
from lakestore.model.types import type_name


def steps_of(
    *,
    drop: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    add: Mapping[str, pa.DataType | pa.Field | str] | None = None,
    widen: Mapping[str, pa.DataType | str] | None = None,
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
    steps += [WidenColumn(name, type_name(typed(kind, name), name)) for name, kind in (widen or {}).items()]
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


def _added(name: str, kind: pa.DataType | pa.Field | str, default: Any, new_rows_only: bool) -> AddColumn:
    if isinstance(kind, pa.Field):
        return AddColumn(name, type_name(kind.type, name), not kind.nullable, default, new_rows_only)
    return AddColumn(name, type_name(typed(kind, name), name), default=default, new_rows_only=new_rows_only)
