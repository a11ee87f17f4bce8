"""Types of computed values: the common type of two values, and casts, by DuckDB's rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Invalid
from lakestore.model.outside_values import first_line
from lakestore.model.types import is_bytes
from lakestore.rows.literals import cast_scalar, short

Mask = npt.NDArray[np.bool_]
Datum = Any
"""A pyarrow array of the batch's length, or a scalar."""
CONSTANT_BYTES_MAX = 64 << 10
"""Most bytes of a computed constant. A condition may have many, and stays in memory."""
_ONE_ROW = pa.RecordBatch.from_arrays([pa.nulls(1)], names=[""])


@dataclass(frozen=True, slots=True)
class Value:
    """A typed value that is computed for each row."""

    type: pa.DataType
    rows: Callable[[pa.RecordBatch], Datum]
    """Computes the values of a batch. Raises Arrow's error if one fails."""
    constant: pa.Scalar | None = None
    """The value if it is the same for every row."""
    fails: bool = False
    """True if a row may fail."""
    literal: bool = False
    """True for a text or number in the condition. It takes the type of the other side."""

    def array(self, batch: pa.RecordBatch) -> pa.Array:
        """The values of a batch as an array."""
        found = self.rows(batch)
        if isinstance(found, pa.Scalar):
            return pa.repeat(found, batch.num_rows)
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

    def chosen(self, batch: pa.RecordBatch, mask: Mask) -> pa.Array:
        """The values of the rows in the mask, and null elsewhere. Other rows are not computed if one may fail."""
        if not self.fails or mask.all():
            return self.array(batch)
        some = self.array(batch.filter(pa.array(mask)))
        places = pa.array(np.cumsum(mask) - 1, pa.int64(), mask=~mask)
        return some.take(places)


def constant(scalar: pa.Scalar, *, literal: bool = False) -> Value:
    """A value that is the same for every row."""
    return Value(scalar.type, lambda batch: scalar, scalar, literal=literal)


def build_value(
    kind: pa.DataType, parts: Sequence[Value], step: Callable[..., Datum], *, fails: bool = False, text: str = ""
) -> Value:
    """A value that `step` computes from other values. A value of constants is computed at once."""

    def rows(batch: pa.RecordBatch) -> Datum:
        return step(*(part.rows(batch) for part in parts))

    return folded(Value(kind, rows, fails=fails or any(part.fails for part in parts)), parts, text)


def folded(value: Value, parts: Sequence[Value], text: str = "") -> Value:
    """The value, as a constant if all its parts are constant."""
    if any(part.constant is None for part in parts):
        return value
    try:
        made = value.array(_ONE_ROW)
        if made.nbytes > CONSTANT_BYTES_MAX:
            raise pa.ArrowCapacityError(f"it is longer than {CONSTANT_BYTES_MAX:,} bytes")
        return constant(made[0].cast(value.type))
    except (pa.ArrowException, ArithmeticError, ValueError) as error:
        raise Invalid(f"{text or 'a constant'} has no value: {first_line(error)}") from error


def is_true(array: pa.Array) -> Mask:
    """Mask of the rows where a boolean is true and not null."""
    return np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)


_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}
_EXACT = 1 << 53
INTERVAL = pa.month_day_nano_interval()
DURATION = pa.duration("us")
_WHOLE = pa.decimal128(38, 0)
DAY_US = 86_400_000_000
UTC = pa.timestamp("us", tz="UTC")


def is_number(kind: pa.DataType) -> bool:
    """True for integers, decimals and floats."""
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_floating(kind))


def is_text(kind: pa.DataType) -> bool:
    """True for texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def digits(kind: pa.DataType) -> tuple[int, int]:
    """The most digits before and after the point of a decimal or an integer."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    return _DIGITS[kind.bit_width], 0


def decimal(whole: int, scale: int) -> pa.DataType:
    """A decimal type with `whole` digits before the point, limited to the widest type."""
    return pa.decimal128(whole + scale, scale) if whole + scale <= 38 else pa.decimal256(min(whole + scale, 76), scale)


def common(kinds: list[pa.DataType]) -> pa.DataType | None:
    """The type that holds values of all these types; None if there is none."""
    known = [kind for kind in kinds if not pa.types.is_null(kind)]
    return reduce(_common, known) if known else pa.null()


def _common(a: pa.DataType | None, b: pa.DataType | None) -> pa.DataType | None:
    if a is None or b is None or a == b:
        return a if b is not None else None
    if is_number(a) and is_number(b):
        return _number(a, b)
    if {a, b} == {pa.date32(), pa.timestamp("us")}:
        return pa.timestamp("us")
    if {a, b} == {pa.date32(), UTC}:
        return UTC
    if all(is_bytes(kind) for kind in (a, b)):
        return pa.binary()
    if {a, b} == {DURATION, INTERVAL}:
        return DURATION
    return None


def _number(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(a) or pa.types.is_floating(b):
        return pa.float64() if pa.float64() in (a, b) else pa.float32()
    if pa.types.is_integer(a) and pa.types.is_integer(b):
        return pa.int64()
    (whole_a, scale_a), (whole_b, scale_b) = digits(a), digits(b)
    return decimal(max(whole_a, whole_b), max(scale_a, scale_b))


def aligned(values: list[Value], text: str) -> tuple[pa.DataType, list[Value]]:
    """The values in one common type. A literal takes the type of the others."""
    typed = [value.type for value in values if not value.literal]
    if all(map(pa.types.is_null, typed)) and any(value.literal for value in values):
        typed = [pa.string()]
    kind = common(typed)
    if kind is None:
        kinds = " and ".join(dict.fromkeys(map(str, typed)))
        raise Invalid(f"{short(text)} puts {kinds} together: cast one of them, or use lake.sql")
    return kind, [in_type(value, kind, text) for value in values]


def in_type(value: Value, kind: pa.DataType, text: str) -> Value:
    """The value in another type. It is exact if the type holds it, otherwise rounded by DuckDB's rules."""
    if value.type == kind or pa.types.is_null(kind):
        return value
    if value.constant is not None:
        return _constant(value.constant, kind, text)
    return build_value(kind, [value], lambda data: cast(data, kind))


def _constant(scalar: pa.Scalar, kind: pa.DataType, text: str) -> Value:
    if not scalar.is_valid:
        return constant(pa.scalar(None, kind))
    try:
        if scalar.type == INTERVAL and kind == DURATION:
            months, days, nanos = scalar.as_py()
            return constant(pa.scalar((months * 30 + days) * DAY_US + nanos // 1000, DURATION))
        return constant(cast_scalar(scalar, kind))
    except (pa.ArrowException, ArithmeticError, ValueError) as error:
        said = first_line(error)
        raise Invalid(f"{short(text)}: {short(repr(scalar.as_py()))} is not a {kind}: {short(said)}") from error


def cast(data: Datum, kind: pa.DataType) -> Datum:
    """The data in another type, rounded by DuckDB's rules."""
    given = data.type
    if given == kind:
        return data
    if pa.types.is_decimal(given) and pa.types.is_floating(kind):
        return _float(data).cast(kind, safe=False)
    if pa.types.is_decimal(given) and pa.types.is_decimal(kind) and kind.scale < given.scale:
        wide = data.cast(pa.decimal256(76, given.scale))
        return pc.round(wide, ndigits=kind.scale, round_mode="half_towards_infinity").cast(kind)
    if pa.types.is_decimal(given) and pa.types.is_integer(kind):
        wide = data.cast(pa.decimal256(76, given.scale))
        return pc.round(wide, ndigits=0, round_mode="half_towards_infinity").cast(_WHOLE).cast(kind)
    if pa.types.is_integer(given) and pa.types.is_decimal(kind):
        return data.cast(pa.decimal256(76, kind.scale)).cast(kind)
    return data.cast(kind, safe=not (pa.types.is_floating(kind) or pa.types.is_date(kind)))


def _float(data: Datum) -> Datum:
    """Decimals as floats: the digits divided by a power of ten if both are exact, otherwise in two parts."""
    kind = data.type
    narrow = kind.precision <= 15
    if narrow:
        scaled = pc.multiply(data, pa.scalar(10**kind.scale, pa.int64())) if kind.scale else data
        whole = scaled.cast(pa.int64(), safe=False)
        return pc.divide(whole.cast(pa.float64()), 10.0**kind.scale)
    return data.cast(pa.float64())


def texts(value: Value, text: str) -> Value:
    """The value as DuckDB's text."""
    kind = value.type
    if is_text(kind):
        return value
    t = pa.types
    if t.is_integer(kind) or t.is_boolean(kind) or t.is_decimal(kind) or t.is_date(kind):
        return build_value(pa.string(), [value], lambda data: data.cast(pa.string()))
    raise Invalid(f"{short(text)} needs a {kind} as a text: name a text, an integer, a decimal, a date or a boolean")


def floats(data: Datum) -> np.ndarray:
    """Floats as a numpy array. Null becomes NaN."""
    found = data.cast(pa.float64())
    if isinstance(found, pa.Scalar):
        return np.asarray([np.nan if not found.is_valid else found.as_py()])
    return np.asarray(found.to_numpy(zero_copy_only=False))
