"""Infers a schema and candidates for a key from sampled JSON records.

- A field has the narrowest type that holds its samples: integers, floats, decimals where a float would round, booleans,
  ISO 8601 dates and times, texts. Objects are structs, or maps if they have many different names. Otherwise the field
  is text and holds JSON.
- If at least 99 % of the samples have one type, the field has it, and the others are counted because they would become
  dead letters. From 90 % the field is text and the user decides.
- The texts NaN, Infinity and -Infinity are floats in a numeric field, because Kafka Connect writes floats this way.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lakestore.kafka.bridge.decode import json_fallback
from lakestore.kafka.bridge.decode.json_fallback import DuplicateName, Number, RefusedRecord
from lakestore.kafka.bridge.records import Records
from lakestore.model.columns import SYSTEM_PREFIX

DEPTH_MAX = 8
"""Depth of structs and lists; deeper values are text."""
MAP_NAMES_MIN, MAP_SHARE_MAX = 64, 0.2
"""An object with at least this many field names is a map if every name is in less than this share of the samples."""
MOST = 0.9
"""If this share of a field's samples has one type, the user is asked about the rest."""
NEARLY_ALL = 0.99
"""If this share of a field's samples has one type, the field has it."""
FLOATS = ("NaN", "Infinity", "-Infinity")
"""Texts that mean floats."""
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d+)?)?( ?(Z|[+-]\d\d(:?\d\d)?))?")
_DIGITS_MAX = 38
_LEAVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
KEY_KINDS = (pa.types.is_integer, pa.types.is_string, pa.types.is_date, pa.types.is_decimal)


@dataclass(frozen=True, slots=True)
class KeyCandidate:
    """A field that may be the key."""

    field: str
    repeats: float
    """The share of samples whose value occurs in another sample."""
    is_kafka_key: bool
    """True if every record's key is this value, as text or as a JSON object with this field alone."""


@dataclass(frozen=True, slots=True)
class InferredSchema:
    """The schema of samples and facts about its fields."""

    schema: pa.Schema
    records: int
    unread: int
    missing: Mapping[str, int]
    """Field to the number of samples in which it is missing or null, if there are any."""
    keys: Sequence[KeyCandidate]
    mixed: Mapping[str, tuple[pa.DataType, int]]
    """Text field to the type of most of its samples and the number of the others."""
    odd: Mapping[str, tuple[pa.DataType, int]]
    """Typed field (`a.b`) to its type and the number of samples that do not fit."""


def infer_schema(records: Records) -> InferredSchema:
    """Infer the schema of record values. Tombstones are skipped."""
    objects: list[dict[str, Any]] = []
    keys: list[bytes | None] = []
    unread = 0
    for value, key in zip(records.values.to_pylist(), records.keys.to_pylist(), strict=True):
        if value is None:
            continue
        try:
            objects.append(_held(json_fallback.parse_object(value)))
            keys.append(key)
        except RefusedRecord:
            unread += 1
    kinds = _kinds_of(objects, NEARLY_ALL)
    schema = kinds.schema()
    there = Counter(name for held in objects for name, value in held.items() if value is not None)
    missing = {name: len(objects) - there[name] for name in schema.names if there[name] < len(objects)}
    candidates = _candidates(schema, objects, keys, missing, records.topic)
    odd = {path: found for path, found in kinds.odd("") if path.split(".")[0] in schema.names}
    return InferredSchema(schema, len(objects), unread, missing, candidates, _mixed(schema, objects), odd)


def schema_of(objects: Iterable[object]) -> pa.Schema:
    """The schema that holds all objects, without names that no column can have. Names ignore case."""
    return _kinds_of(objects, 1.0).schema()


def _kinds_of(objects: Iterable[object], enough: float) -> _Kinds:
    kinds = _Kinds(enough)
    for held in objects:
        kinds.add(held)
    return kinds


def _mixed(schema: pa.Schema, objects: Sequence[Mapping[str, Any]]) -> dict[str, tuple[pa.DataType, int]]:
    found: dict[str, tuple[pa.DataType, int]] = {}
    for part in schema:
        if not pa.types.is_string(part.type):
            continue
        values = [held[part.name] for held in objects if held.get(part.name) is not None]
        others = [value for value in values if not pa.types.is_string(_kind_of([value]))]
        kind = _kind_of(others)
        if MOST * len(values) <= len(others) < len(values) and not pa.types.is_string(kind):
            found[part.name] = kind, len(values) - len(others)
    return found


def _kind_of(values: Iterable[object]) -> pa.DataType:
    return _kinds_of(values, 1.0).kind(1)


def _held(value: object) -> Any:
    return value.held if isinstance(value, DuplicateName) else value


@dataclass(slots=True)
class _Kinds:
    """The kinds of all samples of one field."""

    enough: float
    """The share of samples that decides the type of the field."""
    count: int = 0
    classes: Counter[str] = field(default_factory=Counter)
    """Samples by class: boolean, number, object, list, float (a text that means one), and the kinds of texts: date,
    timestamp, timestamptz, string.
    """
    whole: bool = False
    digits: int = 0
    scale: int = 0
    fractions: bool = False
    rounds: bool = False
    """True if a sample fits neither float64 nor int64 exactly."""
    constants: bool = False
    inside: dict[str, _Kinds] = field(default_factory=dict)
    elements: _Kinds | None = None

    def add(self, value: object) -> None:
        value = _held(value)
        if value is None:
            return
        self.count += 1
        self.classes[self._class(value)] += 1

    def _class(self, value: object) -> str:
        if isinstance(value, bool):
            return "boolean"
        if isinstance(value, dict):
            for name, part in value.items():
                self.inside.setdefault(name, _Kinds(self.enough)).add(part)
            return "object"
        if isinstance(value, list):
            self.elements = self.elements or _Kinds(self.enough)
            for part in value:
                self.elements.add(part)
            return "list"
        if isinstance(value, Number):
            self._number(value)
            return "number"
        if isinstance(value, json_fallback.Constant):
            self.constants = True
            return "number"
        return "float" if value in FLOATS else _text_kind(str(value))

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

    def _main(self) -> tuple[str, int]:
        classes = Counter(self.classes)
        floats = classes.pop("float", 0)
        if floats:
            classes["number" if classes["number"] else "string"] += floats
        main, count = max(classes.items(), key=lambda each: each[1], default=("", 0))
        return (main, self.count - count) if count >= self.enough * self.count else ("", 0)

    def kind(self, depth: int) -> pa.DataType:
        main, _ = self._main()
        if main == "object" and depth <= DEPTH_MAX:
            return self._object(depth)
        if main == "list" and self.elements is not None and depth <= DEPTH_MAX:
            return pa.list_(self.elements.kind(depth + 1))
        if main == "number" and depth <= DEPTH_MAX:
            return self._numbers() if self.whole or self.fractions else pa.string()
        return _LEAVES.get(main, pa.string()) if depth <= DEPTH_MAX else pa.string()

    def odd(self, path: str) -> Iterator[tuple[str, tuple[pa.DataType, int]]]:
        depth = path.count(".") + 1 if path else 0
        kind = self.kind(depth)
        _, others = self._main()
        if path and others and not pa.types.is_string(kind):
            yield path, (kind, others)
        if pa.types.is_struct(kind):
            for name, kinds in self.inside.items():
                yield from kinds.odd(f"{path}.{name}" if path else name)

    def schema(self) -> pa.Schema:
        return pa.schema([part for part in self.fields(0) if not part.name.startswith(SYSTEM_PREFIX)])

    def fields(self, depth: int) -> pa.StructType:
        found: dict[str, pa.Field] = {}
        for name, kinds in self.inside.items():
            if name:
                found.setdefault(name.lower(), pa.field(name, kinds.kind(depth + 1)))
        return pa.struct(list(found.values()))

    def _object(self, depth: int) -> pa.DataType:
        names = len(self.inside)
        if (
            names >= MAP_NAMES_MIN
            and sum(k.count for k in self.inside.values()) < MAP_SHARE_MAX * names * self.classes["object"]
        ):
            kinds = {kinds.kind(depth + 1) for kinds in self.inside.values() if kinds.count}
            return pa.map_(pa.string(), kinds.pop() if len(kinds) == 1 else pa.string())
        fields = self.fields(depth)
        return fields if len(fields) else pa.string()

    def _numbers(self) -> pa.DataType:
        constants = self.constants or bool(self.classes["float"])
        if not self.fractions and not constants and not self.rounds:
            return pa.int64()
        wide = self.whole and self.digits > 15
        if not self.rounds and not (self.fractions and wide):
            return pa.float64()
        if constants or max(self.digits, 1) + self.scale > _DIGITS_MAX:
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
    """Rank of a name among keys: ids of the topic itself rank first."""
    if name in ("id", "key", "uuid", f"{topic}_id", f"{topic.removesuffix('s')}_id", f"{topic.removesuffix('s')}id"):
        return 0
    return 1 if name.endswith(("_id", "_key", "uuid")) else 2


def _is_key(key: bytes, name: str, value: str) -> bool:
    if key == value.encode():
        return True
    try:
        held = _held(json_fallback.parse_object(key))
    except RefusedRecord:
        return key == f'"{value}"'.encode()
    return isinstance(held, dict) and list(held) == [name] and str(held[name]) == value


def storable(schema: pa.Schema, key: Sequence[str] = ()) -> pa.Schema:
    """Fields as columns: optional except the key, and text if the samples have no type."""
    return pa.schema([_storable(each, nullable=each.name not in key) for each in schema])


def _storable(field: pa.Field, *, nullable: bool) -> pa.Field:
    return pa.field(field.name, _typed(field.type), nullable=nullable, metadata=field.metadata)


def _typed(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_dictionary(kind):
        return _typed(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_typed(each.type)) for each in kind]) if len(kind) else pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_typed(kind.value_type)))
    return kind
