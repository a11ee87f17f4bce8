"""Fields of records that nothing reads: a tree of the fields that are read, and the others with their rows.

A field counts for a row if it has a value there; a null loses nothing. A field that is read whole has no rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Tree = dict[str, "Tree | None"]
"""Field to the fields inside that are read; None: it is read whole."""


def tree_of(fields: Iterable[pa.Field]) -> Tree:
    """Return the fields that columns of these types take of objects."""
    return {part.name: inside(part.type) for part in fields}


def inside(kind: pa.DataType) -> Tree | None:
    """Return the fields that a column of a type takes of an object; None: all of it."""
    if pa.types.is_list(kind):
        return inside(kind.value_type)
    return tree_of(kind) if pa.types.is_struct(kind) else None


def unread_fields(
    array: pa.Array, tree: Mapping[str, Tree | None], front: str = ""
) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """Yield the fields of rows that the tree lacks, as `a.b`, with the rows that have a value there."""
    if pa.types.is_list(array.type):
        parents = pc.list_parent_indices(array).to_numpy(zero_copy_only=False)
        for name, flags in unread_fields(array.flatten(), tree, front):
            rows = np.zeros(len(array), np.bool_)
            rows[parents[flags]] = True
            yield name, rows
        return
    if not pa.types.is_struct(array.type):
        return
    for at, part in enumerate(array.type):
        below = tree.get(part.name, {})
        if part.name in tree and (below is None or not pa.types.is_nested(part.type)):
            continue
        child = pc.struct_field(array, [at])
        if part.name not in tree:
            flags = np.asarray(child.is_valid().to_numpy(zero_copy_only=False))
            if flags.any():
                yield front + part.name, flags
        elif below is not None:
            yield from unread_fields(child, below, f"{front}{part.name}.")
