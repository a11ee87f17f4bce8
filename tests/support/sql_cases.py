"""Random conditions of every kind that ours take, and DuckDB's answer to them on the same rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("i", pa.int32()),
        ("big", pa.int64()),
        ("small", pa.int8()),
        ("u", pa.uint16()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("d", pa.decimal128(12, 2)),
        ("e", pa.decimal128(20, 6)),
        ("s", pa.string()),
        ("s2", pa.string()),
        ("b", pa.bool_()),
        ("day", pa.date32()),
        ("n", pa.timestamp("us")),
        ("t", pa.timestamp("us", tz="UTC")),
        ("clock", pa.time64("us")),
        ("bin", pa.binary()),
        ("st", pa.struct([("x", pa.int32()), ("y", pa.string()), ("in", pa.struct([("z", pa.float64())]))])),
        ("tags", pa.list_(pa.string())),
        ("nums", pa.list_(pa.int64())),
        ("props", pa.map_(pa.string(), pa.int64())),
    ]
)
_DAYS = [date(1969, 12, 31), date(2024, 2, 29), date(2025, 1, 31), date(2026, 11, 22), date(1900, 3, 1)]
_TIMES = [
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(2024, 2, 29, 12, 30, 15, 500000),
    datetime(2025, 1, 31),
    datetime(2026, 11, 22, 6, 7, 8),
    datetime(1900, 3, 1, 1),
]
_NUMBERS: dict[str, list[Any]] = {
    "i": [0, 1, -1, 2, 7, 2**31 - 1, -(2**31)],
    "big": [0, 1, -1, 5, 2**63 - 1, -(2**63), 2**53 + 1, 10**12],
    "small": [0, 1, -128, 127, 3],
    "u": [0, 1, 65535, 9],
    "f": [0.0, -0.0, 1.5, -2.5, float("nan"), float("inf"), float("-inf"), 1e300, 0.1],
    "g": [0.0, -0.0, 1.5, -2.5, float("nan"), float("inf"), 16777216.0, 0.10000000149011612],
    "d": [Decimal("0.00"), Decimal("1.25"), Decimal("-1.25"), Decimal("2.50"), Decimal("9999999999.99")],
    "e": [Decimal("0.000000"), Decimal("1.250000"), Decimal("-3.000001"), Decimal("12345678.123456")],
}
_VALUES: dict[str, list[Any]] = _NUMBERS | {
    "s": ["", "a", "Ab", "abc", " b ", "ÄÖ", "a%b", "a_b", "a\\b", "xäx", "12", "1.5"],
    "s2": ["", "a", "b", "Abc", "%"],
    "b": [True, False],
    "day": _DAYS,
    "n": _TIMES,
    "t": [each.replace(tzinfo=UTC) for each in _TIMES],
    "clock": [time(0), time(10, 30, 1, 500), time(23, 59, 59, 999999)],
    "bin": [b"", b"a", b"\x00\xff"],
    "st": [
        {"x": 1, "y": "a", "in": {"z": 1.5}},
        {"x": None, "y": "Ab", "in": None},
        {"x": -3, "y": None, "in": {"z": float("nan")}},
    ],
    "tags": [[], ["a"], ["b", None, "a"], ["x", "y", "z", "a"]],
    "nums": [[], [1], [5, -1, None]],
    "props": [[], [("k", 1)], [("k", None), ("l", 7)]],
}
_SIGNS = ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]
_PATTERNS = ["a%", "%b%", "_b_", "%", "", "A%", "a\\%b", "ä%", "%ä%"]
_INTERVALS = ["INTERVAL 1 DAY", "INTERVAL '2 months'", "INTERVAL (3) HOUR", "INTERVAL '1 year 2 days 3 seconds'"]
_PARTS = "year month day quarter week dow isodow doy hour minute second millisecond epoch isoyear"
_PLAIN = ["b", "i > 0", "s = 'a'", "f IS NULL", "NOT b", "d > 1"]
_OF_NUMBERS = [
    "(#N [+|-|*|/] #N)", "abs(#N)", "round(#N)", "round(#N, [0|1|2])", "(- [i|big|f|g|d|e])", "floor(#N)", "ceil(#N)",
    "coalesce(#N, #N)", "greatest(#N, #N)", "least(#N, #N)", "nullif(#N, #N)", "length(#T)", "year(#M)",
    f"extract([{_PARTS.replace(' ', '|')}] FROM [day|n|t])", "CAST(#N AS DOUBLE)", "CAST(i AS BIGINT)",
    "CASE WHEN #C THEN #N END", "CASE WHEN #C THEN #N ELSE #N END", "([i|u|small|big] % 3)",
    "([i|u|small] // [i|u|0|3])",
    "([f|g] % 2)", "sign(#N)",
    "round([f|g|d|e|(i % 100)], [-1|-2])",
]  # fmt: skip
_OF_TEXTS = [
    "lower(#T)", "upper(#T)", "trim(#T)", "ltrim(#T, 'a')", "rtrim(#T)", "substr(#T, [1|2|0|-1|5])",
    "left(#T, [1|0|-1|9])", "right(#T, [1|0|-1|9])", "substring(#T, [1|2|0|-1], [1|2|0|-1|9])",
    "replace(#T, 'a', 'zz')", "(#T || 'b')", "concat(#T, #T)", "coalesce(#T, #T)", "CAST(i AS VARCHAR)",
    "CAST(d AS VARCHAR)", "CAST(day AS VARCHAR)", "CASE WHEN #C THEN #T END",
]  # fmt: skip
_OF_MOMENTS = [
    "date_trunc('[year|quarter|month|week|day|hour|minute]', #M)", "coalesce(#M, #M)", "(day + 3)",
    f"(#M [+|-] [{'|'.join(_INTERVALS)}])",
]  # fmt: skip


def rows(random: Random, count: int) -> pa.RecordBatch:
    """Rows of the ends of types, NaN, negative zero and nulls."""
    made = [
        {"id": place, **{name: random.choice([None, *values]) for name, values in _VALUES.items()}}
        for place in range(count)
    ]
    return pa.RecordBatch.from_pylist(made, schema=SCHEMA)


class Conditions:
    """Conditions as texts, by one source of chance."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def one(self, depth: int = 3) -> str:
        """A condition of at most so many levels."""
        pick = self._random.choice
        kind = self._random.randrange(14) if depth else self._random.randrange(2, 14)
        if kind == 0:
            return f"({self.one(depth - 1)}) {pick(['AND', 'OR'])} ({self.one(depth - 1)})"
        if kind == 1:
            return f"NOT ({self.one(depth - 1)})"
        leaves = [
            lambda: f"{self.number(2)} {pick(_SIGNS)} {self.number(2)}",
            lambda: f"{self.text(2)} {pick(_SIGNS)} {self.text(2)}",
            lambda: f"{self.moment(2)} {pick(_SIGNS)} {self.moment(2)}",
            lambda: f"{self.number(1)} {pick(['', 'NOT '])}BETWEEN {self.number(1)} AND {self.number(1)}",
            lambda: f"{self.number(1)} {pick(['', 'NOT '])}IN ({self.number(0)}, {self.number(0)}, 3)",
            lambda: f"{self.text(1)} {pick(['', 'NOT '])}{pick(['LIKE', 'ILIKE'])} '{pick(_PATTERNS)}'",
            lambda: f"{self.text(1)} {pick(['', 'NOT '])}LIKE 'a$%%' ESCAPE '$'",
            lambda: f"{pick([self.number, self.text, self.moment])(2)} IS {pick(['', 'NOT '])}NULL",
            lambda: pick(["b", "NOT b", "b IS TRUE", "b IS NOT FALSE", "b = 'yes'", "b IS DISTINCT FROM (i > 0)"]),
            lambda: f"{pick(['starts_with', 'contains', 'ends_with'])}({self.text(1)}, '{pick(['a', 'b', ''])}')",
            lambda: f"coalesce({self.number(1)} > 0, {self.text(1)} = 'a')",
            self.other,
        ]
        return leaves[kind - 2]()

    def other(self) -> str:
        """A condition on texts that stand for values, on nested values, or on lengths of time."""
        return self._random.choice(
            [
                "d = '1.25'", "d = '1.249'", "i = '7'", "i >= '1.5'", "day > '2025-01-01'", "clock < '12:00'",
                "t >= '2025-01-31 00:00:00+00'", "bin = '\\x00\\xFF'", "bin = 'a'", "f < '1.5'", "g = 0.1", "f = 0.1",
                "i IN ('1', '7')", "tags[1] = 'a'", "tags[-1] = 'a'", "tags[0] IS NULL", "len(tags) > 1",
                "st['y'] = 'a'", "st.x + 1 > 0", "st['in'].z > 1", "st['in']['z'] IS NOT NULL", "nums[1] * 2 > 1",
                "props['k'] = 1", "props['l'] > 1", "list_contains(tags, 'a')", "list_contains(nums, 5)",
                "n - n = INTERVAL 0 DAY", "n - TIMESTAMP '2025-01-01' > INTERVAL 1 DAY", "day - DATE '2025-01-01' > 3",
                "coalesce(b, i > 0)", "(i > 0) = b", "b > (i > 0)", "length(s) % 2 = 0", "i = NULL OR b",
                "i // 2 = 0", "i / 0 > 1", "big % 7 = 1", "f % 2 > 0", "sign(d) = -1", "i IN (1, NULL)",
                "i NOT IN (1, NULL)", "NULLIF(i, 1) IS NULL", "st.y || s = 'aa'", "concat(s, i, s2) = 'a1'",
                "1 = 1", "1 > 2 OR b", "lower('A') = s", "n::DATE = DATE '2024-02-29'", "t::DATE > day",
                "CAST(n AS VARCHAR) LIKE '%.5'", "t::VARCHAR LIKE '%00'", "clock::VARCHAR = '00:00:00'",
            ]
        )  # fmt: skip

    def _filled(self, template: str, depth: int) -> str:
        """A template with values in place of #N, #T, #M and #C, and one of the words in each [a|b]."""
        said = re.sub(r"\[([^\[\]]*\|[^\[\]]*)\]", lambda found: self._random.choice(found[1].split("|")), template)
        makers: dict[str, Callable[[int], str]] = {
            "#N": self.number,
            "#T": self.text,
            "#M": self.moment,
            "#C": lambda _: self._random.choice(_PLAIN),
        }
        return re.sub("#[NTMC]", lambda found: makers[found[0]](depth - 1), said)

    def number(self, depth: int) -> str:
        """A number."""
        if not depth or self._random.random() < 0.4:
            return self._random.choice([*_NUMBERS, "0", "1", "-1", "2.5", "1e0", "3", "0.1", "1.25", "-7"])
        return self._filled(self._random.choice(_OF_NUMBERS), depth)

    def text(self, depth: int) -> str:
        """A text."""
        if not depth or self._random.random() < 0.4:
            return self._random.choice(["s", "s2", "st.y", "'a'", "'Ab'", "''", "'b'"])
        return self._filled(self._random.choice(_OF_TEXTS), depth)

    def moment(self, depth: int) -> str:
        """A date, or a timestamp without a zone."""
        if not depth or self._random.random() < 0.4:
            return self._random.choice(["n", "day", "TIMESTAMP '2025-01-31 00:00:00'", "DATE '2024-02-29'"])
        return self._filled(self._random.choice(_OF_MOMENTS), depth)
