"""Text functions of conditions. They count characters, and cut and compare texts by DuckDB's rules."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakestore.errors import Exhausted, Invalid
from lakestore.rows.expressions import kinds
from lakestore.rows.expressions.kinds import Datum, Value, build_value

Mask = npt.NDArray[np.bool_]
_SPACES = " \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
"""The characters that trim() removes: Unicode's space separators."""
TEXT_BYTES_MAX = 64 << 20
"""Most bytes of text that the functions of a condition may create for one slice; all of them are in memory together."""
SLICE_ROWS, SLICE_BYTES = 16_384, 1 << 20
"""Most rows of a slice, and about its most bytes. A condition is computed slice by slice."""
SLICE_SECONDS, SLICE_GROWTH = 0.25, 8
"""The processor time that a slice should take, and the most growth from one slice to the next."""
CONDITION_SECONDS = 20.0
"""Most processor time of a condition on one batch. It is checked between two slices."""
WILDCARDS_MAX = 32
"""Most single-character wildcards after the first `%` of a pattern. With more, each byte of a text may take long."""
_WILDCARDS_COST = 8
"""With this many wildcards, matching a byte costs as much as creating one."""
_LEFT: ContextVar[list[int] | None] = ContextVar("text bytes left", default=None)
_ESCAPED = re.compile(r"\\.")
_SPECIAL = set("\\.+*?()|[]{}^$")
_ENDS = {"both": pc.utf8_trim, "leading": pc.utf8_ltrim, "trailing": pc.utf8_rtrim}


def changed(part: Value, step: Callable[[Datum], Datum], text: str) -> Value:
    """The text that `step` returns for a text."""
    return build_value(pa.string(), [_text(part, text)], step)


def tested(part: Value, step: Callable[[Datum], Datum], text: str) -> Value:
    """The boolean that `step` returns for a text."""
    return build_value(pa.bool_(), [_text(part, text)], step)


def length(part: Value, text: str) -> Value:
    """The number of characters of a text, or of elements of a list."""
    if pa.types.is_list(part.type):
        return build_value(pa.int64(), [part], lambda data: pc.list_value_length(data).cast(pa.int64()))
    return build_value(pa.int64(), [_text(part, text)], lambda data: pc.utf8_length(data).cast(pa.int64()))


def bytes_of(part: Value, text: str) -> Value:
    """The number of bytes of a text or of bytes."""
    if not kinds.is_text(part.type) and not pa.types.is_binary(part.type):
        raise Invalid(f"{text} takes a text or bytes, not a {part.type}")
    return build_value(pa.int64(), [part], lambda data: pc.binary_length(data).cast(pa.int64()))


def trimmed(part: Value, characters: str | None, end: str, text: str) -> Value:
    """trim(), ltrim() and rtrim()."""
    taken = _SPACES if characters is None else characters
    if not taken:
        return _text(part, text)
    return changed(part, lambda data: _ENDS[end](data, characters=taken), text)


def cut(part: Value, start: int, size: int | None, text: str) -> Value:
    """substring(): `start` counts from 1, or from the end if it is negative. A negative size goes backwards."""
    first = start - 1 if start > 0 else start
    if start == 0 and size is not None:
        begin, end = (0, max(size - 1, 0)) if size >= 0 else (0, 0)
        return changed(part, lambda data: pc.utf8_slice_codeunits(data, begin, end), text)
    if size is None:
        return changed(part, lambda data: pc.utf8_slice_codeunits(data, first if start else 0), text)
    low, high = (first, first + size) if size >= 0 else (first + size, first)
    if start > 0:
        low, high = max(low, 0), max(high, 0)
    elif size >= 0 and high >= 0:
        return changed(part, lambda data: pc.utf8_slice_codeunits(data, low), text)
    return changed(part, lambda data: pc.utf8_slice_codeunits(data, low, high), text)


def side(part: Value, size: int, text: str, *, left: bool) -> Value:
    """left() and right(). A negative size is the number of characters to leave out at the other end."""
    if left:
        return changed(part, lambda data: pc.utf8_slice_codeunits(data, 0, size), text)
    if size == 0:
        return changed(part, lambda data: pc.utf8_slice_codeunits(data, 0, 0), text)
    return changed(part, lambda data: pc.utf8_slice_codeunits(data, -size), text)


def replaced(part: Value, old: str, new: str, text: str) -> Value:
    """replace(): replaces each occurrence of `old`. An empty `old` replaces nothing."""
    if not old:
        return _text(part, text)
    more = max(len(new.encode()) - len(old.encode()), 0)

    def step(data: Datum) -> Datum:
        found = pc.sum(pc.count_substring(_array(data), pattern=old)).as_py() or 0
        _bounded(_bytes(data) + found * more)
        return pc.replace_substring(data, pattern=old, replacement=new)

    return changed(part, step, text)


def joined(parts: list[Value], text: str, *, nulls_empty: bool) -> Value:
    """`a || b`, which is NULL if one part is NULL, or concat(), which skips NULL."""
    handling = {"null_handling": "replace", "null_replacement": ""} if nulls_empty else {"null_handling": "emit_null"}
    read = [kinds.texts(part, text) if not pa.types.is_null(part.type) else _nothing(part) for part in parts]

    def step(*data: Datum) -> Datum:
        rows = max((len(each) for each in data if isinstance(each, pa.Array)), default=1)
        _bounded(sum(_bytes(each) * (1 if isinstance(each, pa.Array) else rows) for each in data))
        return pc.binary_join_element_wise(*data, "", **handling)

    return build_value(pa.string(), read, step)


def _array(data: Datum) -> pa.Array:
    return pa.array([data.as_py()], data.type) if isinstance(data, pa.Scalar) else data


def _bytes(data: Datum) -> int:
    return int(pc.sum(pc.binary_length(_array(data))).as_py() or 0)


def in_slices(test: Callable[[pa.RecordBatch], Mask]) -> Callable[[pa.RecordBatch], Mask]:
    """Run a row test slice by slice. Refuses a condition that takes too many bytes or too much time."""

    def held(batch: pa.RecordBatch) -> Mask:
        masks, at, begin = [], 0, time.thread_time()
        most = max(min(SLICE_ROWS, SLICE_BYTES * batch.num_rows // max(batch.nbytes, 1)), 1)
        step, before = max(most // SLICE_GROWTH, 1), begin
        while at < max(batch.num_rows, 1):
            if before - begin > CONDITION_SECONDS:
                raise Exhausted(
                    f"the condition takes more than {CONDITION_SECONDS:g} s of {batch.num_rows:,} rows: simplify it,"
                    " above all the patterns of its LIKE"
                )
            token = _LEFT.set([TEXT_BYTES_MAX])
            try:
                masks.append(test(batch.slice(at, step)))
            finally:
                _LEFT.reset(token)
            at, now = at + step, time.thread_time()
            step, before = min(_paced(step, now - before), most), now
        return np.concatenate(masks)

    return held


def _paced(rows: int, seconds: float) -> int:
    """The number of rows of the next slice, from the time that the last slice took."""
    return max(int(rows * min(SLICE_SECONDS / max(seconds, 1e-9), SLICE_GROWTH)), 1)


def _bounded(size: int) -> None:
    """Refuse more text than `TEXT_BYTES_MAX` for one slice: a condition may double a text again and again."""
    left = _LEFT.get() or [TEXT_BYTES_MAX]
    left[0] -= size
    if left[0] < 0:
        taken = TEXT_BYTES_MAX - left[0]
        raise pa.ArrowCapacityError(f"texts of {taken:,} bytes for {SLICE_ROWS:,} rows, more than {TEXT_BYTES_MAX:,}")


def _nothing(part: Value) -> Value:
    return kinds.in_type(part, pa.string(), "")


def like(part: Value, pattern: str, escape: str, text: str, *, fold: bool) -> Value:
    """LIKE and ILIKE: `%` is any run of characters, `_` is one. ILIKE compares the lower case of both sides."""
    if fold:
        lowered = pc.utf8_lower(pa.scalar(pattern)).as_py()
        part, pattern = changed(part, pc.utf8_lower, text), lowered
    expression = like_expression(pattern, escape, text)
    wildcards = _wildcards(expression)
    if wildcards > WILDCARDS_MAX:
        raise Invalid(
            f"{text}: a pattern of LIKE has at most {WILDCARDS_MAX} `_` behind its first `%`, not {wildcards}: such a"
            " pattern takes too long"
        )
    is_plain = not escape and "\\" not in pattern

    def step(data: Datum) -> Datum:
        if wildcards:
            _bounded(_bytes(data) * wildcards // _WILDCARDS_COST)
        if is_plain:
            return pc.match_like(data, pattern=pattern)
        return pc.match_substring_regex(data, pattern=expression)

    return tested(part, step, text)


def _wildcards(expression: str) -> int:
    """The number of single-character wildcards after the first `%`. Only there can matches overlap."""
    _, _, behind = _ESCAPED.sub("", expression).partition(".*")
    return behind.replace(".*", "").count(".")


def like_expression(pattern: str, escape: str, text: str) -> str:
    """The regular expression for a LIKE pattern."""
    if len(escape) > 1:
        raise Invalid(f"{text}: ESCAPE takes one character, or none")
    said, taken = [], False
    for character in pattern:
        if not taken and escape and character == escape:
            taken = True
            continue
        plain = taken or character not in "%_"
        said.append(_literally(character) if plain else ".*" if character == "%" else ".")
        taken = False
    if taken:
        raise Invalid(f"{text}: the pattern ends with its ESCAPE character")
    return f"(?s)\\A{''.join(said[:1] + [each for last, each in pairwise(said) if not last == each == '.*'])}\\z"


def _literally(character: str) -> str:
    if character == "\0":
        return "\\x00"
    return f"\\{character}" if character in _SPECIAL else character


def _text(part: Value, text: str) -> Value:
    if pa.types.is_null(part.type):
        return _nothing(part)
    if not kinds.is_text(part.type):
        raise Invalid(f"{text} takes a text, not a {part.type}: cast it")
    return part
