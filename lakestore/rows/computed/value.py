"""A typed value of every row of a batch, computed by Arrow's functions on whole columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakestore.errors import Invalid

Mask = npt.NDArray[np.bool_]
Datum = Any
"""A pyarrow array of the batch's length, or a scalar."""
CONSTANT_BYTES_MAX = 64 << 10
"""Bytes of a constant that is computed of others: a condition has many of them, and is kept."""
_ONE_ROW = pa.RecordBatch.from_arrays([pa.nulls(1)], names=[""])


@dataclass(frozen=True, slots=True)
class Value:
    """A value of each row."""

    type: pa.DataType
    rows: Callable[[pa.RecordBatch], Datum]
    """The values of a batch; Arrow's error where one fails."""
    constant: pa.Scalar | None = None
    """The value, if it is the same for every row."""
    fails: bool = False
    """Whether a row may fail."""
    literal: bool = False
    """Written as a text or a number, whose type is the other side's."""

    def array(self, batch: pa.RecordBatch) -> pa.Array:
        """The values of a batch as an array."""
        found = self.rows(batch)
        if isinstance(found, pa.Scalar):
            return pa.repeat(found, batch.num_rows)
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

    def chosen(self, batch: pa.RecordBatch, mask: Mask) -> pa.Array:
        """The values of the rows that the mask names, null elsewhere; others are not computed if one might fail."""
        if not self.fails or mask.all():
            return self.array(batch)
        some = self.array(batch.filter(pa.array(mask)))
        places = pa.array(np.cumsum(mask) - 1, pa.int64(), mask=~mask)
        return some.take(places)


def constant(scalar: pa.Scalar, *, literal: bool = False) -> Value:
    """A value that is the same for every row."""
    return Value(scalar.type, lambda batch: scalar, scalar, literal=literal)


def made(
    kind: pa.DataType, parts: Sequence[Value], step: Callable[..., Datum], *, fails: bool = False, text: str = ""
) -> Value:
    """A value computed of others by one step over their data; of constants at once."""

    def rows(batch: pa.RecordBatch) -> Datum:
        return step(*(part.rows(batch) for part in parts))

    return folded(Value(kind, rows, fails=fails or any(part.fails for part in parts)), parts, text)


def folded(value: Value, parts: Sequence[Value], text: str = "") -> Value:
    """The value; a constant if all that it is computed of is constant."""
    if any(part.constant is None for part in parts):
        return value
    try:
        made = value.array(_ONE_ROW)
        if made.nbytes > CONSTANT_BYTES_MAX:
            raise pa.ArrowCapacityError(f"it is longer than {CONSTANT_BYTES_MAX:,} bytes")
        return constant(made[0].cast(value.type))
    except (pa.ArrowException, ArithmeticError, ValueError) as error:
        raise Invalid(f"{text or 'a constant'} has no value: {str(error).splitlines()[0]}") from error


def is_true(array: pa.Array) -> Mask:
    """The rows where a boolean is true, and not null."""
    return np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)
