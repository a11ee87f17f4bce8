"""Declared types: each name with its Arrow type and its type in the lake.

A name is a scalar such as `int64`, `decimal(12,2)` or `fixed(16)`, or nested: `list<int64 not null>`, `struct<a: int64
not null, b: list<string>>`, `map<string, float64>`. Inner values are nullable unless declared `not null`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.limits import DEFAULT, FIXED_BYTES_MAX, TYPE_CHARS_MAX, TYPES_KEPT, WIDEST, Limits
from lakestore.model.names import nearest


def user_type(kind: Any, column: str) -> pa.DataType:
    """A type from pyarrow or a name as in tables.yaml. Raises `Invalid`."""
    if isinstance(kind, str):
        return arrow_type(kind)
    if not isinstance(kind, pa.DataType):
        raise Invalid(f"column {column!r}: {kind!r} is no type: say one of pyarrow, or its name, such as 'int64'")
    return kind


def schema_of(schema: Any) -> pa.Schema:
    """A pyarrow schema, from itself or from a dict of column name to type."""
    if isinstance(schema, pa.Schema):
        return schema
    if not isinstance(schema, Mapping):
        raise Invalid("schema= is a pyarrow schema, or a dict of column name to type, such as {'id': 'int64'}")
    return pa.schema(
        [
            kind.with_name(name) if isinstance(kind, pa.Field) else pa.field(name, user_type(kind, name))
            for name, kind in schema.items()
        ]
    )


_SIMPLE: dict[str, tuple[pa.DataType, str]] = {
    "bool": (pa.bool_(), "boolean"),
    "int8": (pa.int8(), "int"),
    "int16": (pa.int16(), "int"),
    "int32": (pa.int32(), "int"),
    "int64": (pa.int64(), "long"),
    "uint8": (pa.uint8(), "int"),
    "uint16": (pa.uint16(), "int"),
    "uint32": (pa.uint32(), "long"),
    "float32": (pa.float32(), "float"),
    "float64": (pa.float64(), "double"),
    "string": (pa.string(), "string"),
    "binary": (pa.binary(), "binary"),
    "date": (pa.date32(), "date"),
    # Spark cannot read Iceberg's `time`, so the lake stores microseconds of the day.
    "time": (pa.time64("us"), "long"),
    "timestamp": (pa.timestamp("us"), "timestamp"),
    "timestamptz": (pa.timestamp("us", tz="UTC"), "timestamptz"),
}
NAMES = tuple(_SIMPLE)
"""Types that are a plain name."""
_BY_ARROW = {arrow: name for name, (arrow, _) in _SIMPLE.items()}
DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,9})\s*,\s*([0-9]{1,9})\s*\)")
"""A decimal's text; groups: precision and scale."""
_FIXED = re.compile(r"fixed\(\s*([0-9]{1,9})\s*\)")
_TOKEN = re.compile(r"\s*(\w+\s*\([\d\s,]*\)|\w+|`(?:[^`]|``)+`|[<>,:])")
_PLAIN = re.compile(r"[A-Za-z_]\w*")
EXTENSIONS = ("arrow.uuid", "arrow.json")
"""Extension types that are accepted as their storage type."""
_ELSEWHERE = {
    "boolean": "bool",
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "integer": "int32",
    "long": "int64",
    "bigint": "int64",
    "float": "float32",
    "real": "float32",
    "double": "float64",
    "str": "string",
    "text": "string",
    "varchar": "string",
    "bytes": "binary",
    "date32": "date",
    "array": "list",
    "row": "struct",
}
"""Names of our types in other systems."""
_UINT64 = "uint64 has no type in the lake that holds it: use decimal(20,0), which keeps every value, or int64"


@lru_cache(maxsize=TYPES_KEPT)
def arrow_type(name: str) -> pa.DataType:
    """The Arrow type of a declared type, everywhere."""
    if name in _SIMPLE:
        return _SIMPLE[name][0]
    if type(name) is not str or len(name) > TYPE_CHARS_MAX:
        raise Invalid(f"a type is a text of at most {TYPE_CHARS_MAX} characters")
    return _Parser(name).whole()


def canonical(name: str) -> str:
    """The canonical spelling of a declared type."""
    return type_name(arrow_type(name), "")


def is_nested(name: str) -> bool:
    """True for a list, struct or map."""
    return bool(pa.types.is_nested(arrow_type(name)))


def parts(kind: pa.DataType) -> list[pa.Field]:
    """The fields directly inside an Arrow type, named as in the lake."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_list(kind):
        return [kind.value_field.with_name("element")]
    if pa.types.is_map(kind):
        return [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
    return []


def map_parts(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A nested type with its direct parts changed."""
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(change(part.type)) for part in kind])
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(change(key.type)), item.with_type(change(item.type)))
    return pa.list_(kind.value_field.with_type(change(kind.value_type)))


def optional(kind: pa.DataType) -> pa.DataType:
    """The type with all nested fields nullable: Parquet's writer refuses required fields of null structs."""
    if not pa.types.is_nested(kind):
        return kind
    loose = map_parts(kind, optional)
    if pa.types.is_struct(loose):
        return pa.struct([part.with_nullable(True) for part in loose])
    if pa.types.is_map(loose):
        return pa.map_(loose.key_field, loose.item_field.with_nullable(True))
    return pa.list_(loose.value_field.with_nullable(True))


def has_offsets(kind: pa.DataType) -> bool:
    """True for types with 32-bit offsets into bytes: texts, and bytes of any length."""
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """True for bytes of any length and bytes of a fixed length."""
    return bool(pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind))


def integer_bounds(kind: pa.DataType) -> tuple[int, int]:
    """The least and the greatest integer of a type."""
    bits = kind.bit_width
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if pa.types.is_signed_integer(kind) else (0, (1 << bits) - 1)


def nested_count(name: str) -> int:
    """Number of fields inside a declared type at any depth; each needs an id."""
    return _count(arrow_type(name))


def _count(kind: pa.DataType) -> int:
    return sum(1 + _count(part.type) for part in parts(kind))


def list_of(element: pa.DataType, *, required: bool) -> pa.DataType:
    """The Arrow type of a list."""
    return pa.list_(pa.field("item", element, nullable=not required))


def map_of(key: pa.DataType, value: pa.DataType, *, required: bool) -> pa.DataType:
    """The Arrow type of a map. Keys are never null."""
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value, nullable=not required))


class _Parser:
    """Parses one declared type."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._at = 0

    def whole(self) -> pa.DataType:
        found = self._type(0)
        if self._at < len(self._tokens):
            raise self._refused(f"{self._tokens[self._at]!r} is too much")
        return found

    def _split(self) -> list[str]:
        tokens, at, text = [], 0, self._text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if not match:
                raise self._refused(f"{text[at : at + 10]!r} is not understood")
            tokens.append(match[1])
            at = match.end()
        return tokens

    def _type(self, depth: int) -> pa.DataType:
        if depth > WIDEST.nesting_depth:
            raise self._refused(f"it nests deeper than {WIDEST.nesting_depth}")
        word = self._next()
        if word == "list":
            self._expect("<")
            element, required = self._part(depth)
            self._expect(">")
            return list_of(element, required=required)
        if word == "map":
            self._expect("<")
            key, _ = self._part(depth)
            self._expect(",")
            value, required = self._part(depth)
            self._expect(">")
            return map_of(key, value, required=required)
        return self._struct(depth) if word == "struct" else self._scalar(word)

    def _struct(self, depth: int) -> pa.DataType:
        self._expect("<")
        fields: list[pa.Field] = []
        while True:
            name = self._name()
            self._expect(":")
            kind, required = self._part(depth)
            fields.append(pa.field(name, kind, nullable=not required))
            if self._peek() != ",":
                break
            self._next()
        self._expect(">")
        return pa.struct(fields)

    def _part(self, depth: int) -> tuple[pa.DataType, bool]:
        kind = self._type(depth + 1)
        if self._peek().lower() == "required":
            self._next()
            return kind, True
        if self._peek().lower() == "not":
            self._next()
            if self._next().lower() != "null":
                raise self._refused("after 'not' comes 'null'")
            return kind, True
        return kind, False

    def _scalar(self, word: str) -> pa.DataType:
        if word in _SIMPLE:
            return _SIMPLE[word][0]
        if match := DECIMAL.fullmatch(word):
            precision, scale = int(match[1]), int(match[2])
            if not (1 <= precision <= 38 and scale <= precision):
                raise self._refused("it needs 1 to 38 digits, and no more digits behind the point than it has")
            return pa.decimal128(precision, scale)
        if match := _FIXED.fullmatch(word):
            if not 1 <= int(match[1]) <= FIXED_BYTES_MAX:
                raise self._refused(f"it has not 1 to {FIXED_BYTES_MAX} bytes")
            return pa.binary(int(match[1]))
        if word == "uint64":
            raise self._refused(_UINT64)
        meant = _ELSEWHERE.get(word.lower()) or nearest(word, _SIMPLE)
        known = f"{', '.join(_SIMPLE)}, decimal(p,s), fixed(n), list<…>, struct<…>, map<…>"
        raise self._refused(f"is not known: {f'did you mean {meant}?' if meant else f'known are {known}'}")

    def _name(self) -> str:
        token = self._next()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not _PLAIN.fullmatch(token):
            raise self._refused(f"{token!r} is not a name; put it in `backticks`")
        return token

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        if not token:
            raise self._refused("it ends too early")
        self._at += 1
        return token

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            raise self._refused(f"{token!r} is expected, not {self._peek() or 'its end'!r}")
        self._at += 1

    def _refused(self, why: str) -> Invalid:
        shown = self._text if len(self._text) <= 100 else self._text[:97] + "..."
        return Invalid(f"type {shown!r} {why}" if why.startswith("is ") else f"type {shown!r}: {why}")


def check(column: str, name: str, limits: Limits = DEFAULT) -> None:
    """Refuse an invalid declared type, naming the column, the place in the type and the rule."""
    kind = arrow_type(name)
    if _count(kind) > limits.nested_fields:
        raise Invalid(f"column {column!r} has {_count(kind)} fields inside, more than {limits.nested_fields}")
    if _depth(kind) > limits.nesting_depth:
        raise Invalid(f"column {column!r} nests deeper than {limits.nesting_depth}")
    _check(column, kind, limits)


def _depth(kind: pa.DataType) -> int:
    return max((1 + _depth(part.type) for part in parts(kind)), default=0)


def _check(path: str, kind: pa.DataType, limits: Limits) -> None:
    if pa.types.is_struct(kind):
        names = [part.name for part in kind]
        if len({name.lower() for name in names}) != len(names):
            raise Invalid(f"column {path!r}: two fields have the same name (upper and lower case are alike)")
        for name in names:
            if not 1 <= len(name) <= limits.name_chars:
                raise Invalid(f"column {path!r}: name {name!r} has not 1 to {limits.name_chars} characters")
    if pa.types.is_map(kind) and (pa.types.is_nested(kind.key_type) or pa.types.is_floating(kind.key_type)):
        raise Invalid(f"column {path!r}: the keys of a map are scalars other than floats, not {kind.key_type}")
    for part in parts(kind):
        _check(f"{path}.{part.name}", part.type, limits)


def iceberg_type(name: str, nested: tuple[int, ...] = ()) -> Any:
    """The Iceberg type of a column: a text, or JSON with the ids of nested fields."""
    ids = iter(nested)
    found = _iceberg(arrow_type(name), ids)
    assert next(ids, None) is None, "more ids than nested fields"
    return found


def _iceberg(kind: pa.DataType, ids: Iterator[int]) -> Any:
    if pa.types.is_struct(kind):
        fields = []
        for part in kind:
            number = next(ids)
            inner = _iceberg(part.type, ids)
            fields.append({"id": number, "name": part.name, "required": not part.nullable, "type": inner})
        return {"type": "struct", "fields": fields}
    if pa.types.is_list(kind):
        number = next(ids)
        element = _iceberg(kind.value_type, ids)
        required = not kind.value_field.nullable
        return {"type": "list", "element-id": number, "element-required": required, "element": element}
    if pa.types.is_map(kind):
        key_id = next(ids)
        key = _iceberg(kind.key_type, ids)
        value_id = next(ids)
        value = _iceberg(kind.item_type, ids)
        required = not kind.item_field.nullable
        held = {"key-id": key_id, "key": key, "value-id": value_id, "value-required": required, "value": value}
        return {"type": "map", **held}
    if kind in _BY_ARROW:
        return _SIMPLE[_BY_ARROW[kind]][1]
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return f"fixed[{kind.byte_width}]"


def type_name(arrow: pa.DataType, column: str) -> str:
    """The declared type of a user's Arrow type. Raises `Invalid`."""
    return _name_of(arrow, column, 0)


def _name_of(arrow: pa.DataType, path: str, depth: int) -> str:
    if depth > WIDEST.nesting_depth:
        raise Invalid(f"column {path.split('.')[0]!r} nests deeper than {WIDEST.nesting_depth}")
    t = pa.types
    if isinstance(arrow, pa.BaseExtensionType) and arrow.extension_name in EXTENSIONS:
        return _name_of(arrow.storage_type, path, depth)
    if t.is_dictionary(arrow):
        return _name_of(arrow.value_type, path, depth + 1)
    if t.is_struct(arrow) and arrow.num_fields:
        inner = ((part, _name_of(part.type, f"{path}.{part.name}", depth + 1)) for part in arrow)
        return f"struct<{', '.join(f'{_quoted(part.name)}: {name}{_mark(part)}' for part, name in inner)}>"
    if is_listlike(arrow):
        element = _name_of(arrow.value_type, f"{path}.element", depth + 1)
        return f"list<{element}{_mark(arrow.value_field)}>"
    if t.is_map(arrow):
        key = _name_of(arrow.key_type, f"{path}.key", depth + 1)
        value = _name_of(arrow.item_type, f"{path}.value", depth + 1)
        return f"map<{key}, {value}{_mark(arrow.item_field)}>"
    return _scalar_name(arrow, path)


def _scalar_name(arrow: pa.DataType, path: str) -> str:
    t = pa.types
    if arrow in _BY_ARROW:
        return _BY_ARROW[arrow]
    if t.is_timestamp(arrow):
        return "timestamp" if arrow.tz is None else "timestamptz"
    if t.is_decimal(arrow) and arrow.precision <= 38 and 0 <= arrow.scale <= arrow.precision:
        return f"decimal({arrow.precision},{arrow.scale})"
    if t.is_fixed_size_binary(arrow) and 1 <= arrow.byte_width <= FIXED_BYTES_MAX:
        return f"fixed({arrow.byte_width})"
    if t.is_large_string(arrow) or t.is_string_view(arrow):
        return "string"
    if t.is_large_binary(arrow) or t.is_binary_view(arrow):
        return "binary"
    if t.is_date64(arrow):
        return "date"
    if t.is_time(arrow):
        return "time"
    if t.is_uint64(arrow):
        raise Invalid(f"column {path!r}: {_UINT64}")
    raise Invalid(f"column {path!r} has type {arrow}, which tables do not store")


def is_listlike(kind: pa.DataType) -> bool:
    """True if an Arrow type is a list in any layout."""
    t = pa.types
    return bool(
        t.is_list(kind)
        or t.is_large_list(kind)
        or t.is_fixed_size_list(kind)
        or t.is_list_view(kind)
        or t.is_large_list_view(kind)
    )


def _mark(part: pa.Field) -> str:
    return "" if part.nullable else " not null"


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"
