"""Parameters of a statement: bytes of the client in text or binary as values with Arrow types.

- A type that the client names decides the form. Without one (oid 0 or `unknown`) the statement's own type decides.
- `BadText` and `BadBinary` have the SQLSTATE of a Postgres server and a sentence that names value and type.
- A text may have any form that Postgres itself writes, and the ISO 8601 forms that drivers send.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model.outside_values import excerpt
from lakestore_server.queries.parameter import Parameter
from lakestore_server.queries.postgres import types
from lakestore_server.queries.postgres.binaries import DAYS_TO_2000

UTC = "UTC"
_DAY_US = 86_400_000_000
_US_TO_2000 = DAYS_TO_2000 * _DAY_US
_YEAR_1, _YEAR_1_US = datetime(1, 1, 1), -719_162 * _DAY_US
_INT32_MAX, _INT64_MAX, _INT64_MIN = (1 << 31) - 1, (1 << 63) - 1, -(1 << 63)
_DIGITS_MAX = 38
_ELEMENTS_MAX = 1 << 20
_INTEGER_LIMITS = {types.INT2: 1 << 15, types.INT4: 1 << 31, types.INT8: 1 << 63}
_STRINGS = frozenset({types.TEXT, types.VARCHAR, types.BPCHAR})
"""Types whose Python values Arrow takes without a conversion, as it takes integers."""
_SPACE = " \t\n\r\v\f"
_BOOLS = {"t": True, "f": False, "true": True, "false": False, "y": True, "n": False, "yes": True, "no": False}
_BOOLS |= {"on": True, "off": False, "1": True, "0": False}
_FLOAT = re.compile(r"[+-]?(\d+\.?\d*(e[+-]?\d+)?|\.\d+(e[+-]?\d+)?|inf(inity)?|nan)", re.IGNORECASE | re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,40}", re.ASCII)
_DATE = r"(?P<year>\d{4,7})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.(?P<part>\d{1,9}))?)?"
_OFFSET = r"(?P<sign>[+-])(?P<zone_hour>\d{1,2}):?(?P<zone_minute>\d{2})?:?(?P<zone_second>\d{2})?"
_ZONE = rf"(?:\s*(?:{_OFFSET}|(?P<named>(?!BC\b)[A-Za-z][A-Za-z0-9_+/-]*)))?"
_MOMENT = re.compile(rf"{_DATE}(?:[T\s]\s*{_CLOCK})?{_ZONE}(?P<era>\s+BC)?", re.IGNORECASE | re.ASCII)
_TIME = re.compile(rf"{_CLOCK}{_ZONE}", re.IGNORECASE | re.ASCII)
_LONG_CLOCK = _CLOCK.replace(r"\d{1,2}", r"\d{1,10}", 1)
_SPAN = re.compile(
    rf"(?P<minus>[+-])?{_LONG_CLOCK}|(?P<number>[+-]?\d*\.?\d+)\s*(?P<unit>[a-z]+)", re.IGNORECASE | re.ASCII
)
_ISO_SPAN = re.compile(r"(?P<number>-?\d*\.?\d+)(?P<unit>[YMWDHS])", re.ASCII)
_MONTHS = {"year": 12, "decade": 120, "century": 1200, "centurie": 1200, "mon": 1, "month": 1, "y": 12, "yr": 12}
_DAYS = {"day": 1, "d": 1, "week": 7, "w": 7}
_MICROSECONDS = {"microsecond": 1, "us": 1, "usec": 1, "millisecond": 1_000, "m": 60_000_000, "msec": 1_000}
_MICROSECONDS |= {"second": 1_000_000, "sec": 1_000_000, "minute": 60_000_000, "min": 60_000_000}
_MICROSECONDS |= {"hour": 3_600_000_000, "h": 3_600_000_000, "hr": 3_600_000_000}


class BadText(Invalid):
    """A parameter in text that is no value of its type."""

    sqlstate = "22P02"


class BadBinary(Invalid):
    """A parameter in binary that is no value of its type."""

    sqlstate = "22P03"


class ValueOutOfRange(Invalid):
    """A parameter that its Arrow type cannot hold."""

    def __init__(self, message: str, sqlstate: str = "22003") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class FieldOverflow(ValueError):
    """A text with the form of a date or time, and a field that no calendar or clock has."""


def parameter(
    oid: int, is_binary: bool, data: bytes | memoryview | None, wanted: pa.DataType | None = None, zone: str = UTC
) -> Parameter:
    """The parameter of these bytes; `data` is None for NULL.

    `wanted` is the statement's type of the parameter, for a client that names none. `zone` is the session's TimeZone,
    for a timestamptz whose text has none. Raises `BadText`, `BadBinary` and `ValueOutOfRange`.
    """
    if oid in (0, types.UNKNOWN):
        oid = types.TEXT if wanted is None else types.postgres_type(pa.field("a parameter", wanted)).oid
    kind = types.arrow_type(oid)
    if kind is None:
        raise BadText(f"parameters of the type with oid {oid} are not supported; cast a text: $1::text::…")
    if data is None:
        return Parameter(kind if wanted is None or types.opaque_name(wanted) else wanted)
    value = _from_binary(oid, bytes(data)) if is_binary else _from_text(oid, _decoded(oid, bytes(data)), zone)
    limit = _INTEGER_LIMITS.get(oid)
    if limit is not None and not -limit <= value < limit:
        raise _out_of_range(oid)
    if limit is not None or oid in _STRINGS:
        return Parameter(kind, value)
    element = types.ELEMENTS.get(oid)
    if element is None:
        return Parameter.of(_column([value], oid))
    elements = _column(value, element)
    return Parameter.of(pa.ListArray.from_arrays(pa.array([0, len(elements)], pa.int32()), elements))


def _column(values: list[Any], oid: int) -> pa.Array:
    """Values as a column. Dates and times are the integers that Arrow stores."""
    kind = types.arrow_type(oid)
    if oid == types.NUMERIC:
        return _decimals(values)
    if oid == types.DATE:
        return pa.array(values, pa.int32()).cast(kind)
    if oid in (types.TIME, types.TIMESTAMP, types.TIMESTAMPTZ):
        return pa.array(values, pa.int64()).cast(kind)
    try:
        return pa.array(values, kind)
    except (OverflowError, pa.ArrowInvalid) as error:
        raise _out_of_range(oid) from error


def _out_of_range(oid: int) -> ValueOutOfRange:
    return ValueOutOfRange(f"a parameter is out of range for type {types.type_name(oid)}")


def _decimals(values: list[Decimal | None]) -> pa.Array:
    """Decimals with the digits that the values have."""
    parts = [value.as_tuple() for value in values if value is not None]
    scale = max((max(-int(part.exponent), 0) for part in parts), default=0)
    whole = max((max(len(part.digits) + int(part.exponent), 0) for part in parts), default=0)
    if whole + scale > _DIGITS_MAX:
        raise ValueOutOfRange(f"a numeric parameter has more than {_DIGITS_MAX} digits; pass it as float8 or text")
    return pa.array(values, pa.decimal128(max(whole + scale, 1), scale))


def _bad_text(oid: int, text: str, error: Exception | None = None) -> BadText:
    failure = BadText(f"invalid input syntax for type {types.type_name(oid)}: {excerpt(text)}")
    failure.sqlstate = "22008" if isinstance(error, FieldOverflow) else _SYNTAX_STATES.get(oid, "22P02")
    return failure


def _decoded(oid: int, data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadText(f"a parameter of type {types.type_name(oid)} is not UTF-8") from error
    if "\0" in text:
        raise BadText("a parameter has the character 0x00, which Postgres does not have")
    return text


def _from_text(oid: int, text: str, zone: str) -> Any:
    if oid in types.ELEMENTS:
        element = types.ELEMENTS[oid]
        return [None if part is None else _from_text(element, part, zone) for part in _array_parts(oid, text)]
    if oid in (types.TIMESTAMPTZ, types.TIMESTAMP, types.DATE):
        return _moment(oid, text, zone)
    try:
        return _TEXTS[oid](text)
    except (ValueError, InvalidOperation, OverflowError, RecursionError) as error:
        raise _bad_text(oid, text, error) from error


def _from_binary(oid: int, data: bytes) -> Any:
    try:
        if oid in types.ELEMENTS:
            return _array_values(oid, data)
        return _BINARIES[oid](data)
    except (ValueError, struct.error, RecursionError) as error:
        detail = str(error) if type(error) is ValueError else f"{len(data)} bytes"
        raise BadBinary(f"incorrect binary data for type {types.type_name(oid)}: {detail}") from error


_TIMES = (types.DATE, types.TIME, types.TIMESTAMP, types.TIMESTAMPTZ, types.INTERVAL)
_SYNTAX_STATES = {types.BYTEA: "22023", **dict.fromkeys(_TIMES, "22007")}
"""SQLSTATEs of texts of another form than the type's, where a Postgres server has another one than 22P02."""


# ---- texts


def _bool(text: str) -> bool:
    value = _BOOLS.get(text.strip(_SPACE).lower())
    if value is None:
        raise ValueError(text)
    return value


def _integer(text: str) -> int:
    text = text.strip(_SPACE)
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _float(text: str) -> float:
    text = text.strip(_SPACE)
    if not _FLOAT.fullmatch(text):
        raise ValueError(text)
    return float(text)


def _numeric(text: str) -> Decimal:
    text = text.strip(_SPACE)
    if not _FLOAT.fullmatch(text):
        raise ValueError(text)
    value = Decimal(text)
    if not value.is_finite():
        raise ValueOutOfRange(f"a numeric parameter is {text}, which DECIMAL does not have; pass it as float8")
    return value


def _bytea(text: str) -> bytes:
    if text.startswith("\\x"):
        return bytes.fromhex(text[2:])
    found = bytearray()
    for part in re.split(r"(\\\\|\\[0-3][0-7]{2})", text):
        if part == "\\\\":
            found += b"\\"
        elif part.startswith("\\"):
            found.append(int(part[1:], 8))
        else:
            found += part.encode()
    return bytes(found)


def _json(text: str) -> str:
    json.loads(text)
    return text


def _time(text: str) -> int:
    match = _TIME.fullmatch(text.strip(_SPACE))
    if match is None:
        raise ValueError(text)
    return _clock(match)


def _clock(match: re.Match[str]) -> int:
    """Microseconds since midnight."""
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    part = round(int((match["part"] or "0").ljust(9, "0")) / 1000)
    clock = ((hour * 60 + minute) * 60 + second) * 1_000_000 + part
    if minute > 59 or second > 60 or clock > _DAY_US:
        raise FieldOverflow("no time of a day")
    return clock


def _moment(oid: int, text: str, zone: str) -> int:
    """Days or microseconds since 1970."""
    stripped = text.strip(_SPACE)
    word = stripped.lower()
    if word in ("infinity", "-infinity"):
        return (_INT32_MAX if oid == types.DATE else _INT64_MAX) * (-1 if word.startswith("-") else 1)
    match = _MOMENT.fullmatch(stripped)
    try:
        if match is None:
            raise ValueError(text)
        days = _days(int(match["year"]), int(match["month"]), int(match["day"]), is_bc=match["era"] is not None)
        if oid == types.DATE:
            return days
        moment = days * _DAY_US + (_clock(match) if match["hour"] else 0)
        if oid == types.TIMESTAMPTZ:
            moment -= _east(match, moment, zone)
    except (ValueError, KeyError, OverflowError) as error:
        raise _bad_text(oid, text, error) from error
    if not _INT64_MIN < moment < _INT64_MAX:
        raise ValueOutOfRange(f"timestamp out of range: {excerpt(text)}", "22008")
    return moment


def _days(year: int, month: int, day: int, *, is_bc: bool) -> int:
    """Days since 1970. The calendar repeats after 400 years, and Python's has the years 1 to 9999."""
    if not year:
        raise FieldOverflow("there is no year 0")
    astronomical = 1 - year if is_bc else year
    cycles, rest = divmod(astronomical - 1, 400)
    try:
        return date(rest + 1, month, day).toordinal() - 719_163 + cycles * 146_097
    except ValueError as error:
        raise FieldOverflow("no day of the calendar") from error


def _east(match: re.Match[str], moment: int, zone: str) -> int:
    """Microseconds east of UTC.

    A clock that is set back shows a time twice, and Postgres takes the later one; a time that it never shows counts
    from before the change. Both are the smaller offset.
    """
    if match["sign"]:
        seconds = int(match["zone_hour"]) * 3600 + int(match["zone_minute"] or 0) * 60 + int(match["zone_second"] or 0)
        return (seconds if match["sign"] == "+" else -seconds) * 1_000_000
    named = match["named"]
    if named is not None and named.upper() in ("Z", "UTC", "GMT"):
        return 0
    region = ZoneInfo(zone if named is None else named)
    local = _YEAR_1 + timedelta(microseconds=max(moment - _YEAR_1_US, 0) % (146_097 * _DAY_US * 24))
    offsets = [local.replace(fold=fold, tzinfo=region).utcoffset() or timedelta() for fold in (0, 1)]
    return min(offsets) // timedelta(microseconds=1)


def _interval(text: str) -> tuple[int, int, int]:
    stripped = text.strip(_SPACE)
    if stripped.upper().startswith(("P", "-P")):
        return _iso_interval(stripped.upper())
    sign = -1 if re.search(r"\bago$", stripped, re.IGNORECASE) else 1
    rest = re.sub(r"^@\s*|\s*\bago$", "", stripped, flags=re.IGNORECASE)
    total, place = [Fraction(0)] * 3, 0
    if not rest:
        raise ValueError(text)
    while place < len(rest):
        match = _SPAN.match(rest, place)
        if match is None:
            raise ValueError(text)
        if match["unit"]:
            _add(total, Fraction(match["number"]), match["unit"].lower())
        else:
            whole = (int(match["hour"]) * 60 + int(match["minute"])) * 60 + int(match["second"] or 0)
            clock = whole * 1_000_000 + round(int((match["part"] or "0").ljust(9, "0")) / 1000)
            total[2] += -clock if match["minus"] == "-" else clock
        place = match.end()
        while place < len(rest) and rest[place] in _SPACE:
            place += 1
    return _whole(total, sign)


def _iso_interval(text: str) -> tuple[int, int, int]:
    sign = -1 if text.startswith("-") else 1
    days, _, clock = text.lstrip("-")[1:].partition("T")
    total = [Fraction(0)] * 3
    for part, units in ((days, {"Y": "year", "M": "mon", "W": "week", "D": "day"}), (clock, _ISO_CLOCK)):
        if _ISO_SPAN.sub("", part):
            raise ValueError(text)
        for match in _ISO_SPAN.finditer(part):
            if match["unit"] not in units:
                raise ValueError(text)
            _add(total, Fraction(match["number"]), units[match["unit"]])
    if not days and not clock:
        raise ValueError(text)
    return _whole(total, sign)


_ISO_CLOCK = {"H": "hour", "M": "minute", "S": "second"}


def _add(total: list[Fraction], number: Fraction, unit: str) -> None:
    """Add to (months, days, microseconds). Fractions go down as in Postgres: a month has 30 days."""
    name = unit if unit in ("us", "s") else unit.rstrip("s") or unit
    name = {"s": "second", "m": "min", "µs": "us"}.get(name, name)
    if name in _MONTHS:
        months = number * _MONTHS[name]
        total[0] += int(months)
        _add(total, (months - int(months)) * 30, "day") if months % 1 else None
    elif name in _DAYS:
        days = number * _DAYS[name]
        total[1] += int(days)
        total[2] += (days - int(days)) * _DAY_US
    elif name in _MICROSECONDS:
        total[2] += number * _MICROSECONDS[name]
    else:
        raise ValueError(unit)


def _whole(total: list[Fraction], sign: int) -> tuple[int, int, int]:
    months, days, clock = int(total[0]), int(total[1]), round(total[2])
    if abs(months) > _INT32_MAX or abs(days) > _INT32_MAX or abs(clock) * 1000 > _INT64_MAX:
        raise ValueOutOfRange("an interval parameter is out of range", "22015")
    return sign * months, sign * days, sign * clock * 1000


def _array_parts(oid: int, text: str) -> list[str | None]:
    """The elements of an array literal of one dimension."""
    text = text.strip(_SPACE)
    match = re.match(r"\[[+-]?\d+:[+-]?\d+\]\s*=\s*", text)
    body = text[match.end() :] if match else text
    if not body.startswith("{") or not body.endswith("}"):
        raise _bad_text(oid, text)
    parts: list[str | None] = []
    place, end = 1, len(body) - 1
    if not body[1:end].strip(_SPACE):
        return parts
    while True:
        element = _ELEMENT.match(body, place, end)
        if element is None:
            raise _bad_text(oid, text)
        if element["quoted"] is not None:
            parts.append(re.sub(r"\\(.)", r"\1", element["quoted"], flags=re.DOTALL))
        else:
            plain = element["plain"].strip(_SPACE)
            if not plain:
                raise _bad_text(oid, text)
            parts.append(None if plain.lower() == "null" else re.sub(r"\\(.)", r"\1", plain, flags=re.DOTALL))
        place = element.end()
        if place == end:
            return parts
        if body[place] != ",":
            raise _bad_text(oid, text)
        place += 1


_ELEMENT = re.compile(r'\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"\s*|(?P<plain>(?:[^",{}\\]|\\.)+))', re.DOTALL)


# ---- binaries


def _unpacked(form: str) -> Callable[[bytes], Any]:
    reader = struct.Struct(f">{form}")
    return lambda data: reader.unpack(data)[0]


def _binary_bool(data: bytes) -> bool:
    if len(data) != 1:
        raise ValueError(f"{len(data)} bytes")
    return data != b"\0"


def _binary_char(data: bytes) -> str:
    if len(data) > 1:
        raise ValueError(f"{len(data)} bytes")
    return data.replace(b"\0", b"").decode()


def _binary_text(data: bytes) -> str:
    text = data.decode()
    if "\0" in text:
        raise ValueError("the character 0x00")
    return text


def _binary_numeric(data: bytes) -> Decimal:
    count, weight, sign, scale = struct.unpack_from(">HhHH", data)
    digits = struct.unpack(f">{count}H", data[8:])
    if sign in (0xC000, 0xD000, 0xF000):
        raise ValueOutOfRange("a numeric parameter is NaN or infinite, which DECIMAL does not have")
    if sign not in (0, 0x4000) or any(digit > 9_999 for digit in digits) or scale > 0x3FFF:
        raise ValueError("no numeric")
    if abs(weight) > 4 * _DIGITS_MAX or count > 4 * _DIGITS_MAX:
        raise ValueOutOfRange(f"a numeric parameter has more than {_DIGITS_MAX} digits; pass it as float8 or text")
    number = 0
    for digit in digits:
        number = number * 10_000 + digit
    exponent = 4 * (weight - count + 1)
    if exponent < -scale:  # the last digits are zeros behind the scale
        number //= 10 ** (-scale - exponent)
    else:
        number *= 10 ** (exponent + scale)
    return Decimal((int(sign != 0), tuple(map(int, str(number))), -scale))


def _binary_date(data: bytes) -> int:
    days: int = _unpacked("i")(data)
    if days in (_INT32_MAX, -_INT32_MAX - 1):
        return max(days, -_INT32_MAX)
    return days + DAYS_TO_2000


def _binary_time(data: bytes) -> int:
    clock: int = _unpacked("q")(data)
    if not 0 <= clock <= _DAY_US:
        raise ValueError("no time of a day")
    return clock


def _binary_timestamp(data: bytes) -> int:
    moment: int = _unpacked("q")(data)
    if moment in (_INT64_MAX, _INT64_MIN):
        return max(moment, -_INT64_MAX)
    if moment + _US_TO_2000 >= _INT64_MAX:
        raise ValueOutOfRange("a timestamp parameter is out of range", "22008")
    return moment + _US_TO_2000


def _binary_interval(data: bytes) -> tuple[int, int, int]:
    clock, days, months = struct.unpack(">qii", data)
    if abs(clock) * 1000 > _INT64_MAX:
        raise ValueOutOfRange("an interval parameter is out of range", "22015")
    return months, days, clock * 1000


def _binary_uuid(data: bytes) -> bytes:
    return UUID(bytes=data).bytes


def _binary_jsonb(data: bytes) -> str:
    if data[:1] != b"\x01":
        raise ValueError("no jsonb of version 1")
    return _json(data[1:].decode())


def _array_values(oid: int, data: bytes) -> list[Any]:
    """The elements of an array of one dimension."""
    dimensions, _, element = struct.unpack_from(">iiI", data)
    if element != types.ELEMENTS[oid]:
        raise ValueError(f"elements of type {types.type_name(element)}")
    if not dimensions and len(data) == 12:
        return []
    if dimensions != 1:
        raise ValueError(f"{dimensions} dimensions; one is supported")
    count, place = struct.unpack_from(">i", data, 12)[0], 20
    if not 0 <= count <= _ELEMENTS_MAX:
        raise ValueError(f"{count} elements")
    values: list[Any] = []
    for _ in range(count):
        size = struct.unpack_from(">i", data, place)[0]
        place += 4
        if size < -1 or place + size > len(data):
            raise ValueError("an element outside the value")
        values.append(None if size == -1 else _BINARIES[element](data[place : place + size]))
        place += max(size, 0)
    if place != len(data):
        raise ValueError("bytes behind the last element")
    return values


_TEXTS: dict[int, Callable[[str], Any]] = {
    types.BOOL: _bool,
    types.BYTEA: _bytea,
    **dict.fromkeys((types.INT2, types.INT4, types.INT8, types.OID), _integer),
    **dict.fromkeys((types.FLOAT4, types.FLOAT8), _float),
    **dict.fromkeys((types.TEXT, types.VARCHAR, types.BPCHAR, types.NAME, types.CHAR), str),
    **dict.fromkeys((types.JSON, types.JSONB), _json),
    types.NUMERIC: _numeric,
    types.TIME: _time,
    types.INTERVAL: _interval,
    types.UUID: lambda text: UUID(text.strip(_SPACE)).bytes,
}
_BINARIES: dict[int, Callable[[bytes], Any]] = {
    types.BOOL: _binary_bool,
    types.BYTEA: bytes,
    types.INT2: _unpacked("h"),
    types.INT4: _unpacked("i"),
    types.INT8: _unpacked("q"),
    types.OID: _unpacked("I"),
    types.FLOAT4: _unpacked("f"),
    types.FLOAT8: _unpacked("d"),
    **dict.fromkeys((types.TEXT, types.VARCHAR, types.BPCHAR, types.NAME), _binary_text),
    types.CHAR: _binary_char,
    types.JSON: lambda data: _json(data.decode()),
    types.JSONB: _binary_jsonb,
    types.NUMERIC: _binary_numeric,
    types.DATE: _binary_date,
    types.TIME: _binary_time,
    **dict.fromkeys((types.TIMESTAMP, types.TIMESTAMPTZ), _binary_timestamp),
    types.INTERVAL: _binary_interval,
    types.UUID: _binary_uuid,
}
