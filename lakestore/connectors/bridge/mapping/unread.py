"""Fields of records that no column of a table is made of: counted and named, for nothing is dropped in silence.

A field counts for a record if it has a value there; a null loses nothing. A column that takes an object whole reads all
of it: as JSON, as a map, or as a struct of the same fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.connectors.bridge.mapping.columns import MappedColumn
from lakestore.connectors.bridge.mapping.expressions import Expression
from lakestore.connectors.bridge.paths import Path
from lakestore.connectors.bridge.unread_fields import Tree, inside, unread_fields


class ReadFields:
    """The fields of values that a table's columns are made of."""

    def __init__(self, columns: Iterable[MappedColumn]) -> None:
        self._tree: Tree | None = {}
        for column in columns:
            source = column.source
            if isinstance(source, Expression):
                for path in source.paths:
                    self._add(path, None)
            elif source is not None:
                self._add(source, inside(column.rule.kind))

    def _add(self, path: Path, below: Tree | None) -> None:
        if path.root != "value" or self._tree is None:
            return
        if not path.parts:
            self._tree = None
            return
        tree = self._tree
        for part in path.parts[:-1]:
            deeper = tree.setdefault(part, {})
            if deeper is None:
                return
            tree = deeper
        known = tree.get(path.parts[-1], {})
        tree[path.parts[-1]] = None if known is None or below is None else known | below

    def unread(self, values: pa.StructArray) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
        """Yield the fields of rows that nothing reads, as `a.b`, with the rows that have a value there."""
        if self._tree is not None:
            yield from unread_fields(values, self._tree)

    def reads(self, field: str) -> bool:
        """Whether a field, as `a.b`, is read."""
        tree = self._tree
        for part in field.split("."):
            if tree is None:
                return True
            if part not in tree:
                return False
            tree = tree[part]
        return True
