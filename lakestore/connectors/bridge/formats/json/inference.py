"""Samples of JSON records as a schema, and as candidates for a key.

A field has the narrowest type that holds all its samples: whole numbers, floats, decimals where a float would round,
booleans, dates and times of ISO 8601, texts; objects are structs, or maps where their names are many and seldom the
same; what goes together in no other way is text, its JSON.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lakestore.connectors.bridge.formats.json import json_one
from lakestore.connectors.bridge.formats.json.json_one import Number, Refused, Twice
from lakestore.connectors.bridge.records import Records
from lakestore.model.columns import SYSTEM_PREFIX

DEPTH_MAX = 8
"""Structs and lists inside one another; deeper ones are text."""
MAP_NAMES_MIN, MAP_SHARE_MAX = 64, 0.2
"""Names of an object's fields from which it is a map, if each is there in less than this share of them."""
MOST = 0.9
"""The share of a field's samples from which the rest are odd ones."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d+)?)?( ?(Z|[+-]\d\d(:?\d\d)?))?")
_DIGITS_MAX = 38
KEY_KINDS = (pa.types.is_integer, pa.types.is_string, pa.types.is_date, pa.types.is_decimal)


@dataclass(frozen=True, slots=True)
class KeyCandidate:
    """A field that may be the key."""

    field: str
    repeats: float
    """The share of samples whose value another sample has too."""
    is_kafka_key: bool
    """Whether the key of each record is this value, as text or as a JSON object with this field alone."""


@dataclass(frozen=True, slots=True)
class Inferred:
    """The schema of samples, and facts about their fields."""

    schema: pa.Schema
    """Fields of the values, nested as in the records."""
    records: int
    """Samples that are JSON objects."""
    unread: int
    """Samples that are not."""
    missing: Mapping[str, int]
    """Field to the samples that lack it or have null, for fields of which some do."""
    keys: Sequence[KeyCandidate]
    """The likeliest first."""
    mixed: Mapping[str, tuple[pa.DataType, int]]
    """Field that is text for a few odd samples, to the type of the others and their number."""


def inferred(records: Records) -> Inferred:
    """The schema of the records' values, and what is known of their fields. Tombstones are passed over."""
    objects: list[dict[str, Any]] = []
    keys: list[bytes | None] = []
    unread = 0
    for value, key in zip(records.values.to_pylist(), records.keys.to_pylist(), strict=True):
        if value is None:
            continue
        try:
            objects.append(_held(json_one.parsed(value)))
            keys.append(key)
        except Refused:
            unread += 1
    schema = schema_of(objects)
    there = Counter(name for held in objects for name, value in held.items() if value is not None)
    missing = {name: len(objects) - there[name] for name in schema.names if there[name] < len(objects)}
    candidates = _candidates(schema, objects, keys, missing, records.topic)
    return Inferred(schema, len(objects), unread, missing, candidates, _mixed(schema, objects))


def schema_of(objects: Iterable[object]) -> pa.Schema:
    """The schema of parsed objects. Names that no column has, and ones that differ by case alone, are left out."""
    kinds = _Kinds()
    for held in objects:
        kinds.add(held)
    kind = kinds.fields(0)
    return pa.schema([part for part in kind if not part.name.startswith(SYSTEM_PREFIX)])


def _mixed(schema: pa.Schema, objects: Sequence[Mapping[str, Any]]) -> dict[str, tuple[pa.DataType, int]]:
    found: dict[str, tuple[pa.DataType, int]] = {}
    for part in schema:
        if not pa.types.is_string(part.type):
            continue
        values = [held[part.name] for held in objects if held.get(part.name) is not None]
        others = [value for value in values if not pa.types.is_string(_kind_of([value]))]
        kind = _kind_of(others)
        if MOST * len(values) <= len(others) < len(values) and not pa.types.is_string(kind):
            found[part.name] = kind, len(others)
    return found


def _kind_of(values: Iterable[object]) -> pa.DataType:
    kinds = _Kinds()
    for value in values:
        kinds.add(value)
    return kinds.kind(1)


def _held(value: object) -> Any:
    return value.held if isinstance(value, Twice) else value


@dataclass(slots=True)
class _Kinds:
    """The kinds of all samples of one field."""

    count: int = 0
    texts: set[str] = field(default_factory=set)
    """Kinds of texts: date, timestamp, timestamptz, string."""
    booleans: bool = False
    whole: bool = False
    digits: int = 0
    """Digits before the point, at most."""
    scale: int = 0
    """Digits behind the point, at most."""
    fractions: bool = False
    rounds: bool = False
    """Whether a float or an int64 would not hold a number."""
    constants: bool = False
    inside: dict[str, _Kinds] = field(default_factory=dict)
    objects: int = 0
    elements: _Kinds | None = None

    def add(self, value: object) -> None:
        """One more sample."""
        value = _held(value)
        if value is None:
            return
        self.count += 1
        if isinstance(value, bool):
            self.booleans = True
        elif isinstance(value, dict):
            self.objects += 1
            for name, part in value.items():
                self.inside.setdefault(name, _Kinds()).add(part)
        elif isinstance(value, list):
            self.elements = self.elements or _Kinds()
            for part in value:
                self.elements.add(part)
        elif isinstance(value, Number):
            self._number(value)
        elif isinstance(value, json_one.Constant):
            self.constants = True
        else:
            self.texts.add(_text_kind(str(value)))

    def _number(self, text: Number) -> None:
        if not text.lstrip("-").isdigit():
            self.fractions = True
            _, digits, exponent = Decimal(text).as_tuple()
            assert isinstance(exponent, int), "no constant is a number"
            kept = "".join(map(str, digits)).rstrip("0")
            nearest = float(text)
            self.rounds |= math.isinf(nearest) or Decimal(repr(nearest)) != Decimal(text)
            self.scale = max(self.scale, -(exponent + len(digits) - len(kept)) if kept else 0)
            self.digits = max(self.digits, len(digits) + exponent)
            return
        self.whole = True
        self.digits = max(self.digits, len(text.lstrip("-")))
        self.rounds |= not -(2**63) <= int(text[:40]) < 2**63

    def kind(self, depth: int) -> pa.DataType:
        """The type that holds all samples."""
        parts = sum(
            (
                bool(self.texts),
                self.booleans,
                self.whole or self.fractions or self.constants,
                bool(self.objects),
                self.elements is not None,
            )
        )
        if parts != 1 or depth > DEPTH_MAX or (self.constants and not (self.whole or self.fractions)):
            return pa.string()
        if self.objects:
            return self._object(depth)
        if self.elements is not None:
            return pa.list_(self.elements.kind(depth + 1))
        if self.booleans:
            return pa.bool_()
        return self._text() if self.texts else self._numbers()

    def fields(self, depth: int) -> pa.StructType:
        """The fields of objects, each name once whatever its case."""
        found: dict[str, pa.Field] = {}
        for name, kinds in self.inside.items():
            if name:
                found.setdefault(name.lower(), pa.field(name, kinds.kind(depth + 1)))
        return pa.struct(list(found.values()))

    def _object(self, depth: int) -> pa.DataType:
        names = len(self.inside)
        if names >= MAP_NAMES_MIN and sum(k.count for k in self.inside.values()) < MAP_SHARE_MAX * names * self.objects:
            kinds = {kinds.kind(depth + 1) for kinds in self.inside.values() if kinds.count}
            return pa.map_(pa.string(), kinds.pop() if len(kinds) == 1 else pa.string())
        fields = self.fields(depth)
        return fields if len(fields) else pa.string()

    def _text(self) -> pa.DataType:
        if len(self.texts) != 1:
            return pa.string()
        kind = {"date": pa.date32(), "timestamp": pa.timestamp("us"), "timestamptz": pa.timestamp("us", tz="UTC")}
        return kind.get(next(iter(self.texts)), pa.string())

    def _numbers(self) -> pa.DataType:
        if not self.fractions and not self.constants and not self.rounds:
            return pa.int64()
        wide = self.whole and self.digits > 15
        if not self.rounds and not (self.fractions and wide):
            return pa.float64()
        if self.constants or max(self.digits, 1) + self.scale > _DIGITS_MAX:
            return pa.string()
        return pa.decimal128(_DIGITS_MAX, self.scale)


def _text_kind(text: str) -> str:
    if not _DATE.match(text):
        return "string"
    try:
        if _DATE.fullmatch(text):
            datetime.fromisoformat(text)
            return "date"
        if not (found := _TIME.fullmatch(text)):
            return "string"
        datetime.fromisoformat(text[: found.start(4)].rstrip()[:26] if found[4] else text[:26])
    except ValueError:
        return "string"
    return "timestamptz" if found[4] else "timestamp"


def _candidates(
    schema: pa.Schema,
    objects: Sequence[Mapping[str, Any]],
    keys: Sequence[bytes | None],
    missing: Mapping[str, int],
    topic: str,
) -> list[KeyCandidate]:
    """Fields that every sample has, of types that keys are made of."""
    found: list[KeyCandidate] = []
    for part in schema:
        if part.name in missing or not objects or not any(is_one(part.type) for is_one in KEY_KINDS):
            continue
        values = [held[part.name] for held in objects]
        repeats = 1 - len({str(value) for value in values}) / len(values)
        same = all(
            key is not None and _is_key(key, part.name, str(value)) for key, value in zip(keys, values, strict=True)
        )
        found.append(KeyCandidate(part.name, repeats, same))
    last = topic.split(".")[-1].lower()
    return sorted(found, key=lambda each: (not each.is_kafka_key, rank(each.field.lower(), last), each.repeats))


def rank(name: str, topic: str) -> int:
    """The rank of a name among keys: ids of the topic itself first."""
    if name in ("id", "key", "uuid", f"{topic}_id", f"{topic.removesuffix('s')}_id", f"{topic.removesuffix('s')}id"):
        return 0
    return 1 if name.endswith(("_id", "_key", "uuid")) else 2


def _is_key(key: bytes, name: str, value: str) -> bool:
    if key == value.encode():
        return True
    try:
        held = _held(json_one.parsed(key))
    except Refused:
        return key == f'"{value}"'.encode()
    return isinstance(held, dict) and list(held) == [name] and str(held[name]) == value
