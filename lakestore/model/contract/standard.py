"""The Open Data Contract Standard 3.2 as rules over entries: each fault is told with its line.

- `faults` finds what the JSON schema of the standard refuses; tests compare both. A null counts as an absent field.
- Fields of a server are checked for its name and type only, because forty types have fields of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from lakestore.errors import Invalid
from lakestore.model.contract.document import Entry
from lakestore.model.names import suggestion
from lakestore.model.outside_values import excerpt

Check = Callable[[Entry], Iterator[Invalid]]
"""Gives the faults of an entry."""
_ID = re.compile(r"[A-Za-z0-9_-]+")
_SHORT = r"[A-Za-z_][A-Za-z0-9_\-]*(\.[A-Za-z_][A-Za-z0-9_\-]*)+"
_FULL = (
    r"(?:(?:https?://)?[A-Za-z0-9._\-/]+\.ya?ml#)?/?[A-Za-z_][A-Za-z0-9_]*/[A-Za-z0-9_-]+"
    r"(?:/[A-Za-z_][A-Za-z0-9_]*/[A-Za-z0-9_-]+)*"
)
_REFERENCE = re.compile(f"(?:{_SHORT}|{_FULL})")


def faults(root: Entry) -> list[str]:
    """The faults of a document by the standard, in the order of their lines."""
    found = {(_line_of(error), error.message) for error in _CONTRACT(root)}
    return [message for _, message in sorted(found)]


def _line_of(error: Invalid) -> int:
    match = re.match(r"line (\d+):", error.message)
    return int(match[1]) if match else 0


def _text(entry: Entry) -> Iterator[Invalid]:
    if not isinstance(entry.value, str):
        yield entry.error(f"is a text, not {excerpt(entry.value)}: put it into quotes")


def _flag(entry: Entry) -> Iterator[Invalid]:
    if not isinstance(entry.value, bool):
        yield entry.error(f"is true or false, not {excerpt(entry.value)}")


def _number(entry: Entry) -> Iterator[Invalid]:
    if isinstance(entry.value, bool) or not isinstance(entry.value, int | float):
        yield entry.error(f"is a number, not {excerpt(entry.value)}")


def _whole(entry: Entry) -> Iterator[Invalid]:
    value = entry.value
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        yield entry.error(f"is a whole number, not {excerpt(value)}")


def _count(least: int) -> Check:
    def check(entry: Entry) -> Iterator[Invalid]:
        yield from (told := list(_whole(entry)))
        if not told and entry.value < least:
            yield entry.error(f"is {least} or more, not {entry.value}")

    return check


def _any(_: Entry) -> Iterator[Invalid]:
    return iter(())


def _single(entry: Entry) -> Iterator[Invalid]:
    if isinstance(entry.value, dict | list):
        yield entry.error("is a single value, neither a list nor an object")


def _plain_object(entry: Entry) -> Iterator[Invalid]:
    if not isinstance(entry.value, dict):
        yield entry.error(f"is an object, not {excerpt(entry.value)}")


def _id(entry: Entry) -> Iterator[Invalid]:
    yield from (told := list(_text(entry)))
    if not told and not _ID.fullmatch(entry.value):
        yield entry.error(f"is of the letters a-z and A-Z, digits, - and _, not {excerpt(entry.value)}")


def _one_of(*names: str) -> Check:
    def check(entry: Entry) -> Iterator[Invalid]:
        if entry.value not in names or not isinstance(entry.value, str):
            hint = suggestion(str(entry.value), names) or f"; it is one of {', '.join(names)}"
            yield entry.error(f"is {excerpt(entry.value)}{hint}")

    return check


def _list(check: Check, least: int = 0, most: int | None = None, *, distinct: bool = False) -> Check:
    def checked(entry: Entry) -> Iterator[Invalid]:
        if not isinstance(entry.value, list):
            yield entry.error(f"is a list, not {excerpt(entry.value)}")
            return
        if len(entry.value) < least or (most is not None and len(entry.value) > most):
            yield entry.error(f"has {least if most == least else f'{least} or more'} values, not {len(entry.value)}")
        if distinct and any(value in entry.value[:at] for at, value in enumerate(entry.value)):
            yield entry.error("has a value twice")
        for item in entry.entries():
            yield from check(item)

    return checked


def _object(
    fields: Mapping[str, Check], needed: tuple[str, ...] = (), more: Check | None = None, *, open_keys: bool = False
) -> Check:
    def check(entry: Entry) -> Iterator[Invalid]:
        if not isinstance(entry.value, dict):
            yield entry.error(f"is an object, not {excerpt(entry.value)}")
            return
        for name in needed:
            if name not in entry.value:
                yield entry.error(f"has no {name}")
        if not open_keys:
            yield from _known(entry, fields)
        for name in fields:
            part = entry.field(name)
            if part is not None:
                yield from fields[name](part)
        if more is not None:
            yield from more(entry)

    return check


def _known(entry: Entry, fields: Mapping[str, Check]) -> Iterator[Invalid]:
    for key in entry.keys():
        # `<<` merges another object, whose keys are in `fields` of this one.
        if key.value not in fields and key.value != "<<":
            hint = suggestion(str(key.value), fields)
            yield key.error(f"says {excerpt(key.value)}, which the standard does not have there{hint}")


def _either(plain: Check, kind: type, rest: Check) -> Check:
    def check(entry: Entry) -> Iterator[Invalid]:
        return plain(entry) if isinstance(entry.value, kind) else rest(entry)

    return check


def _property(entry: Entry) -> Iterator[Invalid]:
    return _PROPERTY(entry)


def _item(entry: Entry) -> Iterator[Invalid]:
    return _ITEM(entry)


_CUSTOM = _list(
    _object({"id": _id, "property": _text, "value": _any, "description": _text, "vendor": _text}, ("property", "value"))
)
_DEFINITIONS = _list(_object({"id": _id, "url": _text, "type": _text, "description": _text}, ("url", "type")))
_TAGS = _list(_text)
_COMMON = {"authoritativeDefinitions": _DEFINITIONS, "customProperties": _CUSTOM}
_TAGGED = {**_COMMON, "tags": _TAGS}


def _statements(name: str, *others: str) -> Check:
    return _list(_object({"id": _text, name: _text, **dict.fromkeys(others, _text), **_TAGGED}, (name,)))


_CONTEXT = _either(
    _text,
    str,
    _object(
        {
            "instructions": _text,
            "verifiedStatements": _statements("question", "answer"),
            "constraints": _statements("constraint"),
        }
    ),
)
_SYNONYM = _object(
    {"id": _id, **dict.fromkeys(("synonym", "description", "locale", "source", "status"), _text)}
    | {"customProperties": _CUSTOM},
    ("synonym",),
)
_ELEMENT: Mapping[str, Check] = {
    "id": _id,
    "name": _text,
    "physicalType": _text,
    "description": _text,
    "businessName": _text,
    "deprecated": _flag,
    "synonyms": _list(_SYNONYM),
    **_TAGGED,
}


def _reference(entry: Entry) -> Iterator[Invalid]:
    for part in entry.entries() if isinstance(entry.value, list) else [entry]:
        if not isinstance(part.value, str) or not _REFERENCE.fullmatch(part.value):
            yield part.error(f"names no column as table.column, but {excerpt(part.value)}")
    if entry.value == []:
        yield entry.error("names no column")


def _paired(entry: Entry) -> Iterator[Invalid]:
    ends = [entry.value.get(name) for name in ("from", "to")]
    if isinstance(ends[0], list) != isinstance(ends[1], list):
        yield entry.error("has one column at one end and a list of columns at the other")


_LINK = {
    "id": _text,
    "type": _one_of("foreignKey"),
    "from": _reference,
    "to": _reference,
    "customProperties": _CUSTOM,
}
_TABLE_LINKS = _list(_object(_LINK, ("from", "to"), _paired))
_COLUMN_LINKS = _list(_object({name: check for name, check in _LINK.items() if name != "from"}, ("to",)))
_COMPARISONS: Mapping[str, Check] = {
    "mustBe": _any,
    "mustNotBe": _any,
    **dict.fromkeys(("mustBeGreaterThan", "mustBeGreaterOrEqualTo", "mustBeLessThan", "mustBeLessOrEqualTo"), _number),
    **dict.fromkeys(("mustBeBetween", "mustNotBeBetween"), _list(_number, 2, 2, distinct=True)),
}
METRICS = ("nullValues", "missingValues", "invalidValues", "duplicateValues", "rowCount")
"""Metrics of the library of ODCS."""
_RULE_TEXTS = ("businessImpact", "description", "method", "name", "schedule", "scheduler", "severity", "unit")
_RULE: Mapping[str, Check] = {
    "id": _id,
    **dict.fromkeys(_RULE_TEXTS, _text),
    "dimension": _one_of(
        "accuracy", "completeness", "conformity", "consistency", "coverage", "timeliness", "uniqueness"
    ),
    "type": _one_of("text", "library", "sql", "custom"),
    **_TAGGED,
}
_LIBRARY = {"metric": _one_of(*METRICS), "rule": _text, "arguments": _plain_object, **_COMPARISONS}
_SQL = {"query": _text, **_COMPARISONS}
_ENGINE: Mapping[str, Check] = {
    "engine": _text,
    "implementation": _either(_text, str, _plain_object),
}


def _rule(entry: Entry) -> Iterator[Invalid]:
    if not isinstance(entry.value, dict):
        yield from _object(_RULE)(entry)
        return
    kind = entry.value.get("type")
    fields, needed = dict(_RULE), list[str]()
    if kind == "library" or isinstance(entry.value.get("metric"), str):
        fields, needed = fields | _LIBRARY, ["metric"]
    if kind == "sql":
        fields, needed = fields | _SQL, [*needed, "query"]
    if kind == "custom":
        fields, needed = fields | dict(_ENGINE), [*needed, "engine", "implementation"]
    yield from _object(fields, tuple(needed))(entry)
    said = [name for name in _COMPARISONS if name in entry.value]
    if "mustBe" in fields and len(said) != 1:
        yield entry.error(f"has {len(said)} comparisons such as mustBe; it has one")


_BOUNDS = dict.fromkeys(("exclusiveMaximum", "maximum", "exclusiveMinimum", "minimum"), _text)
_LIMITS = dict.fromkeys(("multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"), _number)
_MOMENT = {"format": _text, **_BOUNDS, "timezone": _flag, "defaultTimezone": _text}
_INTEGERS = ("i8", "i16", "i32", "i64", "i128", "u8", "u16", "u32", "u64", "u128")
_OPTIONS: Mapping[str, Check] = {
    "string": _object({"minLength": _count(0), "maxLength": _count(0), "pattern": _text, "format": _text}),
    "date": _object({"format": _text, **_BOUNDS}),
    "timestamp": _object(_MOMENT),
    "time": _object(_MOMENT),
    "integer": _object({**_LIMITS, "format": _one_of(*_INTEGERS)}),
    "number": _object({**_LIMITS, "format": _one_of("f32", "f64")}),
    "object": _object(
        {
            "maxProperties": _count(0),
            "minProperties": _count(0),
            "required": _list(_text, 1, distinct=True),
        }
    ),
    "array": _object({"maxItems": _count(0), "minItems": _count(0), "uniqueItems": _flag}),
    "map": _plain_object,
    "boolean": _plain_object,
    "vector": _object(
        {
            "dimensions": _count(1),
            "elementType": _one_of("bfloat16", "binary", "float16", "float32", "float64", "int8", "uint8"),
            "distanceMetric": _one_of("cosine", "dotProduct", "euclidean", "hamming", "manhattan"),
            "embeddingModel": _text,
            "embeddingModelVersion": _text,
            "normalized": _flag,
        },
        ("dimensions",),
    ),
}
"""The options of each logical type."""
_ENUM_VALUE = _object({"value": _single, "label": _text, "id": _id, "description": _text, **_TAGGED}, ("value",))
_COLUMN: Mapping[str, Check] = {
    **_ELEMENT,
    **dict.fromkeys(("primaryKey", "required", "unique", "partitioned", "criticalDataElement"), _flag),
    **dict.fromkeys(("primaryKeyPosition", "partitionKeyPosition"), _whole),
    **dict.fromkeys(
        ("physicalName", "classification", "encryptedName", "transformLogic", "transformDescription"), _text
    ),
    "logicalType": _one_of(*_OPTIONS),
    "logicalTypeOptions": _plain_object,
    "semanticType": _one_of("column", "measure", "dimension"),
    "transformSourceObjects": _list(_text),
    "examples": _list(_any),
    "enum": _list(_ENUM_VALUE, 1, distinct=True),
    "relationships": _COLUMN_LINKS,
    "quality": _list(_rule),
}
_NESTED: Mapping[str, Mapping[str, Check]] = {
    "object": {"properties": _list(_property)},
    "array": {"items": _item},
    "map": {"map": _object({"key": _item, "value": _item}, ("key", "value"))},
}


def _column(base: Mapping[str, Check], needed: tuple[str, ...]) -> Check:
    def check(entry: Entry) -> Iterator[Invalid]:
        said = entry.value.get("logicalType") if isinstance(entry.value, dict) else None
        kind = said if isinstance(said, str) else ""
        fields = {**base, **(_NESTED.get(kind, {}) if kind else _EVERY_NESTED)}
        yield from _object(fields, (*needed, "map") if kind == "map" else needed)(entry)
        options = entry.field("logicalTypeOptions") if isinstance(entry.value, dict) else None
        if options is not None and kind in _OPTIONS:
            yield from _OPTIONS[kind](options)

    return check


_EVERY_NESTED = {name: check for fields in _NESTED.values() for name, check in fields.items()}
"""Without a logical type all of them may stand there."""
_PROPERTY = _column(_COLUMN, ("name",))
_ITEM = _column({**_COLUMN, "properties": _list(_property)}, ())
_TABLE = _object(
    {
        **_ELEMENT,
        "logicalType": _one_of("object"),
        "physicalName": _text,
        "dataGranularityDescription": _text,
        "properties": _list(_property),
        "relationships": _TABLE_LINKS,
        "quality": _list(_rule),
        "context": _CONTEXT,
    },
    ("name",),
)
_ROLE = _object(
    {
        "id": _id,
        **dict.fromkeys(("role", "description", "access", "firstLevelApprovers", "secondLevelApprovers"), _text),
        "customProperties": _CUSTOM,
    },
    ("role",),
)
_MEMBER_TEXTS = ("username", "name", "description", "role", "dateIn", "dateOut", "replacedByUsername")
_MEMBER = _object({"id": _id, **dict.fromkeys(_MEMBER_TEXTS, _text), **_TAGGED}, ("username",))
_TEAM = _object({"id": _id, "name": _text, "description": _text, "members": _list(_MEMBER), **_TAGGED})
_PROMISE = _object(
    {
        "id": _id,
        **dict.fromkeys(("property", "unit", "element", "driver", "description", "scheduler", "schedule"), _text),
        "value": _single,
        "valueExt": _single,
        **_COMMON,
    },
    ("property", "value"),
)
_SUPPORT = _object(
    {
        "id": _id,
        **dict.fromkeys(("channel", "url", "description", "tool", "scope", "invitationUrl"), _text),
        "customProperties": _CUSTOM,
    },
    ("channel",),
)


def _server(entry: Entry) -> Iterator[Invalid]:
    if not isinstance(entry.value, dict):
        yield entry.error(f"is an object, not {excerpt(entry.value)}")
        return
    for name in ("server", "type"):
        part = entry.field(name)
        if part is None:
            yield entry.error(f"has no {name}")
        else:
            yield from _text(part)


_CONTRACT = _object(
    {
        **dict.fromkeys(
            ("version", "kind", "apiVersion", "id", "name", "tenant", "status", "dataProduct", "domain"), _text
        ),
        **dict.fromkeys(("slaDefaultElement", "contractCreatedTs"), _text),
        **_TAGGED,
        "servers": _list(_server),
        "description": _object(
            {**dict.fromkeys(("usage", "purpose", "limitations"), _text), **_COMMON}, open_keys=True
        ),
        "context": _CONTEXT,
        "schema": _list(_TABLE),
        "support": _list(_SUPPORT),
        "price": _object({"id": _id, "priceAmount": _number, "priceCurrency": _text, "priceUnit": _text}),
        "team": _either(_list(_MEMBER), list, _TEAM),
        "roles": _list(_ROLE),
        "slaProperties": _list(_PROMISE),
    },
    ("version", "apiVersion", "kind", "id"),
)
