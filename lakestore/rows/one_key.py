"""Encodes and decodes the key of one row from Python values, without Arrow arrays.

The bytes equal the bytes of `keys.encode` without a prefix, and have any length. Look-ups of one key send them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mmh3
import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.model.table import Table

_END, _ZERO, _ESCAPED = b"\0\0", b"\0", b"\0\xff"


class _Part(Protocol):
    """The encoding of one column of a key."""

    def of(self, value: Any) -> bytes | None:
        """The bytes of a value. None if the value is not plainly of the column's type."""

    def value(self, raw: bytes) -> Any:
        """The value of the bytes. Raises `ValueError`."""


@dataclass(frozen=True, slots=True)
class _Integer:
    width: int
    bias: int

    def of(self, value: Any) -> bytes | None:
        number = value + self.bias if type(value) is int else -1
        return number.to_bytes(self.width, "big") if 0 <= number < 1 << 8 * self.width else None

    def value(self, raw: bytes) -> Any:
        return int.from_bytes(raw, "big") - self.bias


@dataclass(frozen=True, slots=True)
class _Bytes:
    width: int
    """0: the length varies."""

    def of(self, value: Any) -> bytes | None:
        return value if type(value) is bytes and self.width in (0, len(value)) else None

    def value(self, raw: bytes) -> Any:
        return raw


@dataclass(frozen=True, slots=True)
class _Text:
    width: int = 0

    def of(self, value: Any) -> bytes | None:
        try:
            return value.encode() if type(value) is str else None
        except UnicodeEncodeError:
            return None

    def value(self, raw: bytes) -> Any:
        return raw.decode()


@dataclass(frozen=True, slots=True)
class KeyCode:
    """The encoding of one table's keys."""

    names: tuple[str, ...]
    """The primary key."""
    kinds: tuple[pa.DataType, ...]
    parts: tuple[_Integer | _Bytes | _Text, ...]
    bucket_parts: tuple[int, ...]
    """Indices of the bucket key's columns in the primary key."""
    buckets: int

    @staticmethod
    def of(table: Table) -> KeyCode | None:
        """The code of a table. None if a column's type needs arrays, and for tables without a primary key."""
        kinds = tuple(table.column(name).arrow.type for name in table.primary_key)
        parts = tuple(part for part in map(_part, kinds) if part is not None)
        if not table.keyed or len(parts) < len(kinds):
            return None
        places = tuple(table.primary_key.index(name) for name in table.bucket_key)
        return KeyCode(table.primary_key, kinds, parts, places, table.buckets)

    def key(self, values: Sequence[Any]) -> bytes | None:
        """The key of these values, one a column. None if a value is not plainly of its column's type."""
        found = []
        for part, value in zip(self.parts, values, strict=True):
            raw = part.of(value)
            if raw is None:
                return None
            found.append(raw)
        return found[0] if len(found) == 1 else self._joined(range(len(found)), found)

    def _joined(self, places: Sequence[int], raw: Sequence[bytes]) -> bytes:
        *first, last = places
        before = [raw[at] if self.parts[at].width else raw[at].replace(_ZERO, _ESCAPED) + _END for at in first]
        return b"".join((*before, raw[last]))

    def split(self, key: bytes) -> list[bytes]:
        """Split a key into the bytes of its columns. Raises `Invalid`."""
        found, at, last = [], 0, len(self.parts) - 1
        for number, part in enumerate(self.parts):
            if number == last:
                end = following = len(key)
            elif part.width:
                end = following = at + part.width
            else:
                end, following = _closed(key, at)
            raw = key[at:end]
            if part.width and len(raw) != part.width:
                raise Invalid(f"a key of {len(key)} bytes is none of ({', '.join(self.names)})")
            found.append(raw if part.width or number == last else raw.replace(_ESCAPED, _ZERO))
            at = following
        return found

    def bucket(self, key: bytes, raw: Sequence[bytes]) -> int:
        """The bucket of a key. `raw` are the parts of the key."""
        if self.buckets == 1:
            return 0
        places = self.bucket_parts
        same = len(places) == len(self.parts) and places == tuple(range(len(places)))
        return (mmh3.mmh3_32_uintdigest(key if same else self._joined(places, raw)) & 0x7FFFFFFF) % self.buckets

    def batch(self, raw: Sequence[bytes]) -> pa.RecordBatch:
        """The key as a row. Raises `Invalid`."""
        try:
            values = [part.value(piece) for part, piece in zip(self.parts, raw, strict=True)]
        except ValueError as error:
            raise Invalid(f"a key of ({', '.join(self.names)}) is no text: {error}") from error
        arrays = [pa.array([value], kind) for value, kind in zip(values, self.kinds, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=list(self.names))


def _part(kind: pa.DataType) -> _Integer | _Bytes | _Text | None:
    if pa.types.is_integer(kind):
        return _Integer(kind.bit_width // 8, 1 << (kind.bit_width - 1) if pa.types.is_signed_integer(kind) else 0)
    if pa.types.is_string(kind):
        return _Text()
    if pa.types.is_binary(kind):
        return _Bytes(0)
    if pa.types.is_fixed_size_binary(kind):
        return _Bytes(kind.byte_width)
    return None


def _closed(key: bytes, at: int) -> tuple[int, int]:
    """(end of a variable-length value, end of its two zero bytes). Raises `Invalid`."""
    end = key.find(_ZERO, at)
    while end >= 0 and key[end + 1 : end + 2] != _ZERO:
        if key[end + 1 : end + 2] != b"\xff":
            break
        end = key.find(_ZERO, end + 2)
    if end < 0 or key[end : end + 2] != _END:
        raise Invalid("a part of the key is not ended by two zero bytes")
    return end, end + 2
