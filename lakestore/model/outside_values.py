"""Strict readers of outside values. A reader takes a value and its place and returns a typed value or raises.

- Whole numbers are `int`, never `bool`, within 64 bits or the field's range. Texts are bounded Unicode without
  surrogates.
- Lists and dicts have a declared shape. Unknown keys are refused.
- Stored values are not read by these readers, because older releases were less strict and their folders must open.

`json_of` parses text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from lakestore.errors import Invalid

INT64_MAX = (1 << 63) - 1
JSON_DEPTH_MAX = 64
"""Nesting of outside JSON."""
JSON_CHARS_MAX = 16 << 20
"""Characters of one outside JSON text."""
_SHOWN_CHARS, _NAME_CHARS = 60, 520
T = TypeVar("T")
Reader = Callable[[Any, str], T]
"""From a value and the name of its place to the typed value. Raises `Invalid` with place and rule."""


def excerpt(value: Any, chars: int = _SHOWN_CHARS) -> str:
    """Any value for an error message, shortened."""
    try:
        text = ascii(value) if isinstance(value, str) and not is_unicode(value) else repr(value)
    except (ValueError, RecursionError):  # a huge integer, or a list that contains itself
        text = type(value).__name__
    return text if len(text) <= chars else text[: chars - 3] + "..."


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its type."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def shown_name(name: object) -> str:
    """A name for an error message: complete if it may be a table's, otherwise shortened."""
    return excerpt(name, _NAME_CHARS)


def is_unicode(value: str) -> bool:
    """False if a text contains a surrogate, which UTF-8 cannot encode."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def integer(low: int = -INT64_MAX - 1, high: int = INT64_MAX) -> Reader[int]:
    """Reads whole numbers in a range."""

    def read(value: Any, place: str) -> int:
        if type(value) is not int or not low <= value <= high:
            raise Invalid(f"{place} is a whole number from {low} to {high}, not {excerpt(value)}")
        return value

    return read


def text(chars_max: int, *, empty: bool = True) -> Reader[str]:
    """Reads texts of bounded length."""

    def read(value: Any, place: str) -> str:
        if type(value) is not str:
            raise Invalid(f"{place} is a text, not {excerpt(value)}")
        if len(value) > chars_max or not (value or empty):
            raise Invalid(f"{place} has {'' if empty else '1 to '}{chars_max} characters at most, not {len(value)}")
        if not is_unicode(value):
            raise Invalid(f"{place} {excerpt(value)} holds half of a character (a surrogate): write it as Unicode")
        return value

    return read


def boolean(value: Any, place: str) -> bool:
    """Reads a boolean."""
    if type(value) is not bool:
        raise Invalid(f"{place} is true or false, not {excerpt(value)}")
    return value


def one_of(*known: str) -> Reader[str]:
    """Reads one of the texts in `known`."""

    def read(value: Any, place: str) -> str:
        if type(value) is not str or value not in known:
            raise Invalid(f"{place} is one of {', '.join(known)}, not {excerpt(value)}")
        return value

    return read


def optional(reader: Reader[T]) -> Reader[T | None]:
    """Also accepts None."""
    return lambda value, place: None if value is None else reader(value, place)


def list_of(reader: Reader[T], most: int) -> Reader[list[T]]:
    """Reads lists of bounded length."""

    def read(value: Any, place: str) -> list[T]:
        if type(value) is not list:
            raise Invalid(f"{place} is a list, not {excerpt(value)}")
        if len(value) > most:
            raise Invalid(f"{place} has at most {most} entries, not {len(value)}")
        return [reader(entry, f"{place}[{at}]") for at, entry in enumerate(value)]

    return read


def mapping(reader: Reader[T], chars_max: int, most: int) -> Reader[dict[str, T]]:
    """Reads dicts of any names with values of one kind."""
    name = text(chars_max)

    def read(value: Any, place: str) -> dict[str, T]:
        if type(value) is not dict:
            raise Invalid(f"{place} is an object, not {excerpt(value)}")
        if len(value) > most:
            raise Invalid(f"{place} has at most {most} entries, not {len(value)}")
        return {name(key, f"a name of {place}"): reader(held, f"{place}.{key}") for key, held in value.items()}

    return read


def record(fields: Mapping[str, Reader[Any]], required: Collection[str] = ()) -> Reader[dict[str, Any]]:
    """Reads dicts of declared names."""

    def read(value: Any, place: str) -> dict[str, Any]:
        if type(value) is not dict:
            raise Invalid(f"{place} is an object, not {excerpt(value)}")
        for name in value:
            if name not in fields:
                raise Invalid(f"{place} has {excerpt(name)}, which is not known; known are {', '.join(fields)}")
        for name in required:
            if name not in value:
                raise Invalid(f"{place} lacks {name!r}")
        return {name: fields[name](held, f"{place}.{name}") for name, held in value.items()}

    return read


def scalar(chars_max: int) -> Reader[Any]:
    """Reads null, booleans, 64-bit numbers and texts."""
    number, words = integer(), text(chars_max)

    def read(value: Any, place: str) -> Any:
        if value is None or type(value) is bool:
            return value
        if type(value) is float:
            if not math.isfinite(value):
                raise Invalid(f"{place} is a finite number, not {value}")
            return value
        return number(value, place) if type(value) is int else words(value, place)

    return read


def plain(chars_max: int = JSON_CHARS_MAX, depth_max: int = JSON_DEPTH_MAX) -> Reader[Any]:
    """Reads any JSON of bounded depth, for values whose shape is checked later."""
    single = scalar(chars_max)

    def read(value: Any, place: str, depth: int = 0) -> Any:
        if type(value) not in (list, dict):
            return single(value, place)
        if depth >= depth_max:
            raise Invalid(f"{place} nests deeper than {depth_max} levels")
        if type(value) is dict:
            return {single(key, f"a name of {place}"): read(held, place, depth + 1) for key, held in value.items()}
        return [read(entry, place, depth + 1) for entry in value]

    return read


def json_of(source: str | bytes, place: str, chars_max: int = JSON_CHARS_MAX) -> Any:
    """Parse outside JSON. Raises `Invalid` if it is invalid, too long or too deep."""
    if len(source) > chars_max:
        raise Invalid(f"{place} has at most {chars_max} characters, not {len(source)}")
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        why = "it nests too deep" if isinstance(error, RecursionError) else str(error)
        raise Invalid(f"{place} is not readable: {why}") from error
