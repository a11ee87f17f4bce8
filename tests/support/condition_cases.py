"""Random rows of many types with conditions on them, and the plain answer: three-valued, NaN the greatest number."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("i", pa.int32()),
        ("f", pa.float64()),
        ("f4", pa.float32()),
        ("s", pa.string()),
        ("d", pa.decimal128(12, 2)),
        ("t", pa.timestamp("us", tz="UTC")),
        ("n", pa.timestamp("us")),
        ("day", pa.date32()),
        ("b", pa.bool_()),
        ("bin", pa.binary()),
        ("st", pa.struct([("x", pa.int32()), ("y", pa.string())])),
    ]
)
_AT = datetime(2026, 1, 1)
VALUES: Mapping[str, Sequence[Any]] = {
    "i": [-3, 0, 1, 2, 7],
    "f": [math.nan, -math.inf, -1.5, -0.0, 0.0, 2.5, math.inf],
    "f4": [math.nan, -math.inf, -1.5, 0.0, 2.5, math.inf],
    "s": ["", "a", "ab", "abc", "b", "é", "x" * 20, "x" * 19 + "y"],
    "d": [Decimal("-1.50"), Decimal("0.00"), Decimal("2.25"), Decimal("9999999999.99")],
    "t": [(_AT + timedelta(hours=h)).replace(tzinfo=UTC) for h in (-1, 0, 1, 30)],
    "n": [_AT + timedelta(microseconds=us) for us in (-1, 0, 1)],
    "day": [date(2025, 12, 31), date(2026, 1, 1), date(2026, 2, 1)],
    "b": [True, False],
    "bin": [b"", b"\x00a", b"\xff"],
    "st.x": [-1, 0, 5],
    "st.y": ["a", "ab"],
}
_SIGNS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Row = dict[str, Any]
Truth = bool | None


@dataclass(frozen=True)
class Case:
    """A condition in SQL, and its truth for a row; None is unknown."""

    text: str
    holds: Callable[[Row], Truth]


def literal(name: str, value: Any) -> str:
    """A value of a column as SQL."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        return f"CAST('{value}' AS DOUBLE)" if not math.isfinite(value) else f"{value!r}e0"
    if isinstance(value, bytes):
        return "CAST('" + "".join(f"\\x{byte:02x}" for byte in value) + "' AS BLOB)"
    if isinstance(value, datetime):
        return f"TIMESTAMP{'TZ' if value.tzinfo else ''} '{value.isoformat(' ')}'"
    if isinstance(value, date):
        return f"DATE '{value}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


def value_of(row: Row, name: str) -> Any:
    """A column of a row, or a field of a struct in it."""
    outer, _, inner = name.partition(".")
    found = row[outer]
    return found if not inner or found is None else found[inner]


def _ordered(value: Any) -> Any:
    """A value that Python compares as SQL does."""
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value


def _compared(name: str, sign: str, value: Any) -> Case:
    def holds(row: Row) -> Truth:
        found = value_of(row, name)
        return None if found is None else _SIGNS[sign](_ordered(found), _ordered(value))

    return Case(f"{name} {sign} {literal(name, value)}", holds)


def _among(name: str, values: list[Any], negated: bool) -> Case:
    def holds(row: Row) -> Truth:
        found = value_of(row, name)
        return None if found is None else any(_ordered(found) == _ordered(v) for v in values) != negated

    listed = ", ".join(literal(name, value) for value in values)
    return Case(f"{name} {'NOT ' if negated else ''}IN ({listed})", holds)


def _null(name: str, negated: bool) -> Case:
    return Case(f"{name} IS {'NOT ' if negated else ''}NULL", lambda row: (value_of(row, name) is None) != negated)


def _prefix(name: str, prefix: str) -> Case:
    def holds(row: Row) -> Truth:
        found = value_of(row, name)
        return None if found is None else found.startswith(prefix)

    return Case(f"{name} LIKE '{prefix}%'", holds)


def _not(one: Case) -> Case:
    def holds(row: Row) -> Truth:
        found = one.holds(row)
        return None if found is None else not found

    return Case(f"NOT ({one.text})", holds)


def _and(parts: list[Case]) -> Case:
    def holds(row: Row) -> Truth:
        found = [part.holds(row) for part in parts]
        return False if False in found else None if None in found else True

    return Case(" AND ".join(f"({part.text})" for part in parts), holds)


def _or(parts: list[Case]) -> Case:
    def holds(row: Row) -> Truth:
        found = [part.holds(row) for part in parts]
        return True if True in found else None if None in found else False

    return Case(" OR ".join(f"({part.text})" for part in parts), holds)


def _comparisons(name: str) -> st.SearchStrategy[Case]:
    return st.builds(_compared, st.just(name), st.sampled_from(list(_SIGNS)), st.sampled_from(VALUES[name]))


def _lists(name: str) -> st.SearchStrategy[Case]:
    values = st.lists(st.sampled_from(VALUES[name]), min_size=1, max_size=4)
    return st.builds(_among, st.just(name), values, st.booleans())


def _leaves(names: Sequence[str]) -> st.SearchStrategy[Case]:
    name = st.sampled_from(list(names))
    texts = [each for each in names if each in ("s", "st.y")] or ["s"]
    prefixes = st.builds(_prefix, st.sampled_from(texts), st.sampled_from(["a", "ab", "x", "é"]))
    nulls = st.builds(_null, name, st.booleans())
    return st.one_of(name.flatmap(_comparisons), name.flatmap(_lists), nulls, prefixes)


def conditions(names: Sequence[str] = tuple(VALUES)) -> st.SearchStrategy[Case]:
    """Conditions on these columns."""
    return st.recursive(
        _leaves(names),
        lambda inner: st.one_of(
            st.builds(_not, inner),
            st.builds(_and, st.lists(inner, min_size=2, max_size=3)),
            st.builds(_or, st.lists(inner, min_size=2, max_size=3)),
        ),
        max_leaves=5,
    )


def comparisons(name: str) -> list[Case]:
    """Each comparison of a column with each of its values."""
    return [_compared(name, sign, value) for sign in _SIGNS for value in VALUES[name]]


def rows_of(name: str) -> list[Row]:
    """A row for each value of a column, and one without a value."""
    empty: Row = dict.fromkeys(SCHEMA.names)
    outer, _, inner = name.partition(".")
    values = [None, *VALUES[name]]
    return [
        {**empty, "id": place, outer: {"x": None, "y": None, inner: value} if inner else value}
        for place, value in enumerate(values)
    ]


def rows(most: int = 12) -> st.SearchStrategy[list[Row]]:
    """Rows with nulls, NaN and the ends of types; their ids are 0, 1, 2 …"""
    plain = {name: st.none() | st.sampled_from(values) for name, values in VALUES.items() if "." not in name}
    place = st.none() | st.fixed_dictionaries(
        {"x": st.none() | st.sampled_from(VALUES["st.x"]), "y": st.none() | st.sampled_from(VALUES["st.y"])}
    )
    one = st.fixed_dictionaries({**plain, "st": place})
    return st.lists(one, max_size=most).map(lambda made: [{"id": i, **row} for i, row in enumerate(made)])


def narrowed(made: list[Row]) -> pa.RecordBatch:
    """The rows as a batch."""
    return pa.RecordBatch.from_pylist(made, schema=SCHEMA)
