"""Reads JSON records one by one and gives a reason for every record that is refused.

Numbers keep their written form until the type of their field is known, so nothing is rounded.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lakestore.model.decimals import fit_type
from lakestore.model.types import integer_bounds
from lakestore.rows.scalar_casts import INTEGER, NUMBER

DEPTH_MAX = 500
"""Depth of objects and lists; deeper records are refused."""
SHOWN_CHARS = 60
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_WORD = re.compile(rb'"(?:[^"\\]|\\.)*"|\bInf(?:inity)?\b', re.DOTALL)
_INTEGER, _NUMBER = re.compile(INTEGER), re.compile(NUMBER)
_ODD_FLOATS = ("NaN", "Infinity", "-Infinity")
_BOM = b"\xef\xbb\xbf"
_PLAIN_DIGITS = 18
"""A number of at most this many characters fits into int64 and float64."""
_DIGITS_MAX = 80
"""Digits before the point; a longer number fits no type."""


class RefusedRecord(Exception):
    """A record that cannot be taken."""

    def __init__(self, code: str, why: str, path: str = "") -> None:
        super().__init__(why)
        self.code, self.why, self.path = code, why, path


class Number(str):
    """A number as written."""

    __slots__ = ()


class Constant(str):
    """NaN, Infinity or -Infinity, which are not JSON."""

    __slots__ = ()


@dataclass(slots=True)
class DuplicateName:
    """An object with a duplicate name."""

    held: dict[str, Any]
    names: frozenset[str]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | DuplicateName:
    held = dict(pairs)
    if len(held) == len(pairs):
        return held
    counts = Counter(name for name, _ in pairs)
    return DuplicateName(held, frozenset(name for name, count in counts.items() if count > 1))


_READER = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=Number, parse_int=Number, parse_constant=Constant, strict=True
)


def depth(raw: bytes) -> int:
    """The deepest nesting of brackets outside texts; 0 for records with few brackets."""
    if raw.count(b"{") + raw.count(b"[") <= DEPTH_MAX:
        return 0
    now = deepest = 0
    for token in _TOKEN.finditer(raw):
        mark = raw[token.start()]
        if mark in b"[{":
            now += 1
            deepest = max(deepest, now)
        elif mark in b"]}":
            now -= 1
    return deepest


def parse_object(raw: bytes) -> dict[str, Any] | DuplicateName:
    """Parse a record to an object. Raises `RefusedRecord`."""
    raw = raw.removeprefix(_BOM)
    if not raw.strip(b" \t\r\n"):
        raise RefusedRecord("empty", "the record is empty, and not a JSON object")
    if depth(raw) > DEPTH_MAX:
        raise RefusedRecord("too-deep", f"the record nests deeper than {DEPTH_MAX}")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise RefusedRecord("bad-utf8", f"byte {error.start} of the record is not UTF-8") from error
    try:
        found = _read(text)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")  # some sentences of the library end in " at"
        raise RefusedRecord("bad-json", f"the record is not JSON: {what} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise RefusedRecord("too-deep", "the record nests too deep") from error
    if not isinstance(found, dict | DuplicateName):
        raise RefusedRecord("not-an-object", f"the record is {short_text(found)}, and not a JSON object")
    return found


def _read(text: str) -> Any:
    """Parse a JSON text. Arrow's reader accepts Inf for Infinity, so this reader does too; it is refused later."""
    try:
        return _READER.decode(text)
    except json.JSONDecodeError:
        if "Inf" not in text:
            raise
        raw = _WORD.sub(lambda word: b"Infinity" if word[0][:1] == b"I" else word[0], text.encode())
        return _READER.decode(raw.decode())


def short_text(value: Any) -> str:
    """A shortened value for messages."""
    text = _text(value, "") if not isinstance(value, str) or isinstance(value, Number | Constant) else json.dumps(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…"


def convert(value: Any, kind: pa.DataType, path: str) -> Any:
    """Convert a value to a wanted type. Times stay texts, as in JSON. Raises `RefusedRecord`."""
    if value is None:
        return None
    if isinstance(value, Constant) and not pa.types.is_floating(kind):
        raise RefusedRecord("not-finite", f"{path} is {value}, which is not JSON and no {kind}", path)
    for is_one, read in _READERS:
        if is_one(kind):
            return read(value, kind, path)
    raise RefusedRecord("bad-type", f"{path}: {kind} is not read from JSON", path)


def _struct(value: Any, kind: pa.DataType, path: str) -> dict[str, Any]:
    held = value
    if isinstance(value, DuplicateName):
        held = value.held
        for name in sorted(value.names):
            if kind.get_field_index(name) >= 0:
                raise RefusedRecord("duplicate-key", f"{path} has the field {name!r} twice", f"{path}.{name}")
    if not isinstance(held, dict):
        raise _misfit(value, "an object", path, "not-an-object")
    return {field.name: convert(held.get(field.name), field.type, f"{path}.{field.name}") for field in kind}


def _list(value: Any, kind: pa.DataType, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise _misfit(value, "a list", path, "not-a-list")
    return [convert(part, kind.value_type, f"{path}[{at}]") for at, part in enumerate(value)]


def _map(value: Any, kind: pa.DataType, path: str) -> list[tuple[Any, Any]]:
    if isinstance(value, DuplicateName):
        raise RefusedRecord("duplicate-key", f"{path} has the key {min(value.names)!r} twice", path)
    if not isinstance(value, dict):
        raise _misfit(value, "an object", path, "not-an-object")
    return [
        (convert(name, kind.key_type, path), convert(part, kind.item_type, f"{path}.{name}"))
        for name, part in value.items()
    ]


def _boolean(value: Any, kind: pa.DataType, path: str) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false") and not isinstance(value, Number):
        return bool(value == "true")
    raise _misfit(value, "true or false", path, "not-a-boolean")


def _integer(value: Any, kind: pa.DataType, path: str) -> int:
    if isinstance(value, Number):
        exact = Decimal(value)
        if exact and exact.adjusted() > _DIGITS_MAX:
            raise RefusedRecord("out-of-range", f"{path} is {short_text(value)}, beyond {kind}", path)
        if exact.adjusted() < -_DIGITS_MAX * 100 or exact != exact.to_integral_value():
            raise _misfit(value, f"an {kind}", path, "not-an-integer")
        found = int(exact)
    elif isinstance(value, str) and _INTEGER.fullmatch(value):
        found = int(value)
    else:
        raise _misfit(value, f"an {kind}", path, "not-a-number")
    low, high = integer_bounds(kind)
    if not low <= found <= high:
        raise RefusedRecord("out-of-range", f"{path} is {short_text(value)}, beyond {kind}", path)
    return found


def _float(value: Any, kind: pa.DataType, path: str) -> float:
    if isinstance(value, Constant):
        raise RefusedRecord("not-finite", f"{path} is {value}, which JSON does not have: send null, or the text", path)
    if not isinstance(value, str) or (
        not isinstance(value, Number) and value not in _ODD_FLOATS and not _NUMBER.fullmatch(value)
    ):
        raise _misfit(value, "a number", path, "not-a-number")
    found = float(value)
    if math.isinf(found) and value not in _ODD_FLOATS:
        raise RefusedRecord("out-of-range", f"{path} is {short_text(value)}, beyond {kind}", path)
    return found


def _decimal(value: Any, kind: pa.DataType, path: str) -> Decimal:
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        raise _misfit(value, "a decimal number", path, "not-a-number")
    try:
        return fit_type(Decimal(value), kind)
    except ValueError as error:
        raise RefusedRecord(
            "out-of-range", f"{path} is {short_text(value)}, which {kind} does not hold exactly", path
        ) from error


def _text_of(value: Any, kind: pa.DataType, path: str) -> str:
    text = value if isinstance(value, str) and not isinstance(value, Number) else _text(value, path)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RefusedRecord("bad-utf8", f"{path} holds half of a character (a surrogate)", path) from error
    return str(text)


def _text(value: Any, path: str) -> str:
    if isinstance(value, Number | Constant):
        return str(value) if value != "-0" else "0"
    if isinstance(value, DuplicateName):
        if path:
            raise RefusedRecord("duplicate-key", f"{path} has the field {min(value.names)!r} twice", path)
        value = value.held
    if isinstance(value, dict):
        inner = (f"{json.dumps(name, ensure_ascii=False)}:{_text(part, path)}" for name, part in value.items())
        return f"{{{','.join(inner)}}}"
    if isinstance(value, list):
        return f"[{','.join(_text(part, path) for part in value)}]"
    return json.dumps(value, ensure_ascii=False)


def _bytes(value: Any, kind: pa.DataType, path: str) -> bytes:
    if not isinstance(value, str) or isinstance(value, Number):
        raise _misfit(value, "bytes as base64", path, "not-base64")
    try:
        found = base64.b64decode(value, validate=True)
    except ValueError as error:
        raise _misfit(value, "bytes as base64", path, "not-base64") from error
    if pa.types.is_fixed_size_binary(kind) and len(found) != kind.byte_width:
        raise RefusedRecord("out-of-range", f"{path} has {len(found)} bytes, not {kind.byte_width}", path)
    return found


def _time(value: Any, kind: pa.DataType, path: str) -> str:
    if not isinstance(value, str):
        raise _misfit(value, "a time", path, "not-a-time")
    return _text_of(str(value), kind, path)


def _misfit(value: Any, wanted: str, path: str, code: str) -> RefusedRecord:
    return RefusedRecord(code, f"{path} is {short_text(value)}, and not {wanted}", path)


class Reader:
    """Reads one type at one path: common values directly, other values by `convert`."""

    def __init__(self, kind: pa.DataType, path: str) -> None:
        self._kind, self._path = kind, path
        self.fields: dict[str, Reader] = {}
        """Readers of the fields of a struct, or of the structs in a list."""
        if pa.types.is_struct(kind):
            self.fields = {part.name: Reader(part.type, f"{path}.{part.name}") for part in kind}
        self._element = Reader(kind.value_type, path) if pa.types.is_list(kind) else None
        if self._element is not None:
            self.fields = self._element.fields
        self.read = self._chosen()

    def _chosen(self) -> Callable[[Any], Any]:
        t, kind = pa.types, self._kind
        if t.is_struct(kind):
            return self._struct
        if t.is_list(kind):
            return self._list
        if t.is_int64(kind):
            return self._integer
        if t.is_string(kind):
            return self._string
        return self._float if t.is_floating(kind) else self._other

    def _struct(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            convert(None if value is None else value, self._kind, self._path)
            value = value.held if type(value) is DuplicateName else {}
        get = value.get
        return {
            name: None if (part := get(name)) is None else reader.read(part) for name, reader in self.fields.items()
        }

    def _list(self, value: Any) -> Any:
        if type(value) is not list or self._element is None:
            return convert(value, self._kind, self._path)
        read = self._element.read
        try:
            return [None if part is None else read(part) for part in value]
        except RefusedRecord:
            return convert(value, self._kind, self._path)  # raises with the path

    def _integer(self, value: Any) -> Any:
        if type(value) is Number and len(value) <= _PLAIN_DIGITS and value.isdigit():
            return int(value)
        return convert(value, self._kind, self._path)

    def _string(self, value: Any) -> Any:
        return value if type(value) is str and value.isascii() else convert(value, self._kind, self._path)

    def _float(self, value: Any) -> Any:
        if type(value) is Number and len(value) <= _PLAIN_DIGITS and "e" not in value and "E" not in value:
            return float(value)
        return convert(value, self._kind, self._path)

    def _other(self, value: Any) -> Any:
        return convert(value, self._kind, self._path)


_Read = Callable[[Any, pa.DataType, str], Any]
_READERS: tuple[tuple[Callable[[pa.DataType], bool], _Read], ...] = (
    (pa.types.is_string, _text_of),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _float),
    (pa.types.is_boolean, _boolean),
    (pa.types.is_struct, _struct),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_temporal, _time),
    (pa.types.is_list, _list),
    (pa.types.is_map, _map),
    (pa.types.is_binary, _bytes),
    (pa.types.is_fixed_size_binary, _bytes),
)
