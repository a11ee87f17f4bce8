"""The value of a parameter, `$1` of a text: a Python value for a look-up, a column of one row for a query process.

Each form is made from the other when it is asked for. Making a column of an integer takes as long as a look-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa


class Parameter:
    """One value and its type."""

    __slots__ = ("_column", "_value", "kind")

    def __init__(self, kind: pa.DataType, value: Any = None, column: pa.Array | None = None) -> None:
        """`column` is given for a value that `pa.array` does not make from Python's."""
        self.kind, self._value, self._column = kind, value, column

    @classmethod
    def of(cls, column: pa.Array) -> Parameter:
        """The only value of a column."""
        return cls(column.type, column=column)

    @property
    def value(self) -> Any:
        """The value as Arrow gives it to Python; None for NULL. Raises `ValueError` for a time beyond Python's."""
        return self._value if self._column is None else self._column[0].as_py()

    @property
    def column(self) -> pa.Array:
        """The value as a column of one row."""
        if self._column is not None:
            return self._column
        return pa.nulls(1, self.kind) if self._value is None else pa.array([self._value], self.kind)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parameter) and self.column.equals(other.column)

    def __hash__(self) -> int:
        return hash(self.kind)


def row_of(parameters: Sequence[Parameter]) -> pa.RecordBatch:
    """The parameters as one row; column n is `$n`."""
    names = [str(number) for number in range(1, len(parameters) + 1)]
    return pa.RecordBatch.from_arrays([parameter.column for parameter in parameters], names=names)


def parameters_of(row: pa.RecordBatch) -> tuple[Parameter, ...]:
    """The parameters of one row."""
    return tuple(map(Parameter.of, row.columns))
