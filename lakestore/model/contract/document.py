"""A contract's document as entries that know their line.

- A document is YAML or JSON of bounded size, without duplicate keys.
- `Entry` wraps a value of the document. Its errors begin with the line and the path of the value.
- Properties `lakestore.*` of a table stand in the table's entry of `schema`, or else in the whole document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from lakestore.errors import Invalid
from lakestore.model import outside_values, yaml_text
from lakestore.model.names import suggestion
from lakestore.model.outside_values import excerpt

DOCUMENT_CHARS_MAX = 256 << 10
"""Characters of a document. Each version of a table's definition has one."""
WHY_CHARS_MAX = 1_000
"""Characters of the reason of a change."""
SHAPE = outside_values.record(
    {
        "document": outside_values.text(DOCUMENT_CHARS_MAX, empty=False),
        "object": outside_values.text(256, empty=False),
        "version": outside_values.integer(0),
        "by": outside_values.text(256),
        "at_us": outside_values.integer(0),
        "why": outside_values.text(WHY_CHARS_MAX),
        "bound": outside_values.mapping(outside_values.integer(1), 256, 100_000),
    },
    required=("document", "object"),
)
"""The form of a stored contract."""
VERSIONS = ("v3.0.0", "v3.0.1", "v3.0.2", "v3.1.0", "v3.2.0")
"""Versions of the standard that are read; 3.2 only adds to the others."""
PREFIX = "lakestore."
PROPERTIES = (
    "lakestore.table",
    "lakestore.eventTime",
    "lakestore.lateData",
    "lakestore.deletes",
    "lakestore.onViolation",
    "lakestore.owner",
    "lakestore.schemaChanges",
    "lakestore.budget",
    "lakestore.column",
)
"""The properties of Lakestore; docs/internals/contracts.md has their values."""
COLUMN_PROPERTIES = ("lakestore.column", "lakestore.onViolation")
"""The properties of a column."""
TABLE_PROPERTIES = tuple(name for name in PROPERTIES if name != "lakestore.column")
"""The properties of a table, or of the whole document."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A value of a document with its line."""

    value: Any
    node: yaml.Node
    path: str = ""

    @property
    def line(self) -> int:
        return int(self.node.start_mark.line) + 1

    def error(self, rule: str) -> Invalid:
        """The error of this value: line, path and rule."""
        return Invalid(f"line {self.line}: {self.path or 'the contract'} {rule}")

    def field(self, name: str) -> Entry | None:
        """The value of a key; None if the key is absent or its value is null. Raises `Invalid` for a value that is no
        object.
        """
        if not isinstance(self.value, dict):
            raise self.error(f"is an object, not {excerpt(self.value)}")
        if self.value.get(name) is None:
            return None
        node = next((value for key, value in self.node.value if key.value == name), self.node)
        return Entry(self.value[name], node, f"{self.path}.{name}" if self.path else name)

    def fields(self) -> Iterator[tuple[str, Entry]]:
        """The keys of an object that are texts, with their values that are not null, in one pass."""
        for key, node in self.node.value if isinstance(self.value, dict) else ():
            if self.value.get(key.value) is not None:
                name = str(key.value)
                yield name, Entry(self.value[name], node, f"{self.path}.{name}" if self.path else name)

    def keys(self) -> Iterator[Entry]:
        """The keys of an object as entries, in the order of the document."""
        if not isinstance(self.value, dict):
            raise self.error(f"is an object, not {excerpt(self.value)}")
        for key, _ in self.node.value:
            yield Entry(key.value, key, self.path)

    def entries(self) -> list[Entry]:
        """The entries of a list. Raises `Invalid` for a value that is no list."""
        if not isinstance(self.value, list):
            raise self.error(f"is a list, not {excerpt(self.value)}")
        pairs = zip(self.value, self.node.value, strict=True)
        return [Entry(value, node, f"{self.path}[{at}]") for at, (value, node) in enumerate(pairs)]

    def listed(self, name: str) -> list[Entry]:
        """The entries of the list under a key; empty if the key is absent."""
        found = self.field(name)
        return found.entries() if found else []

    def text(self, name: str, default: str = "") -> str:
        """The text under a key."""
        found = self.field(name)
        if found is None:
            return default
        if not isinstance(found.value, str):
            raise found.error(f"is a text, not {excerpt(found.value)}: put it into quotes")
        return found.value

    def check_keys(self, *known: str) -> None:
        """Refuse a key of an object that is not known."""
        for key in self.keys():
            if key.value not in known:
                hint = suggestion(str(key.value), known) or f"; known are {', '.join(known)}"
                raise key.error(f"says {excerpt(key.value)}, which is not known{hint}")


@lru_cache(maxsize=256)
def parse(text: str) -> Entry:
    """The root of a document. Raises `Invalid` if it is no ODCS contract of a version that is read."""
    if len(text) > DOCUMENT_CHARS_MAX:
        raise Invalid(f"a contract has at most {DOCUMENT_CHARS_MAX} characters, not {len(text)}")
    try:
        value = yaml_text.values(text, _Loader)
    except yaml_text.Unreadable as error:
        raise Invalid(f"the contract is not YAML: {error}") from error
    if not isinstance(value, dict):
        raise Invalid("line 1: the contract is an object with apiVersion, kind, id, version and schema")
    root = Entry(value, _composed(text))
    if root.text("kind") != "DataContract":
        raise root.error(f"has the kind {excerpt(root.value.get('kind'))}, not 'DataContract'")
    if root.text("apiVersion") not in VERSIONS:
        said = excerpt(root.value.get("apiVersion"))
        raise root.error(f"has the apiVersion {said}, not one of {', '.join(VERSIONS)}")
    for name in ("id", "version"):
        if not root.text(name):
            raise root.error(f"has no {name}")
    return root


def table_entry(root: Entry, name: str) -> Entry:
    """The entry of `schema` with this name. Raises `Invalid`."""
    tables = root.listed("schema")
    for table in tables:
        if table.text("name") == name:
            return table
    names = ", ".join(table.text("name") for table in tables)
    raise root.error(f"has no entry {excerpt(name)} in schema; there are {names or 'none'}")


def properties(root: Entry, table: Entry) -> dict[str, Entry]:
    """The values of the properties of Lakestore for a table, by name. Raises `Invalid` for an unknown one."""
    found: dict[str, Entry] = {}
    for owner in (root, table):  # a property of the table wins
        found |= custom_properties(owner)
    return found


def custom_properties(owner: Entry, known: Sequence[str] = PROPERTIES) -> dict[str, Entry]:
    """The properties of Lakestore in the `customProperties` of one entry, by name. `known` may stand there."""
    found: dict[str, Entry] = {}
    for entry in owner.listed("customProperties"):
        name = entry.text("property")
        if not name.startswith(PREFIX):
            continue
        if name not in known:
            there = (
                f"; known there are {', '.join(known)}" if known else ": it belongs to a table or the whole contract"
            )
            hint = there if name in PROPERTIES else suggestion(name, known) or there
            raise entry.error(f"has the property {excerpt(name)}, which is not known there{hint}")
        if name in found:
            raise entry.error(f"has the property {name!r} once more")
        value = entry.field("value")
        if value is None:
            raise entry.error(f"has no value for {name!r}")
        found[name] = value
    return found


def check_properties(root: Entry) -> None:
    """Refuse every property `lakestore.*` of a document that is not known at its place."""
    places = [(root, "")]
    while places:
        entry, key = places.pop()
        if isinstance(entry.value, list):
            places += [(item, key) for item in entry.entries()]
        elif isinstance(entry.value, dict):
            if entry.field("customProperties"):
                custom_properties(entry, _KNOWN_AT.get(key, ()))
            places += [(part, name) for name, part in entry.fields() if name != "customProperties"]


_KNOWN_AT = {
    "": TABLE_PROPERTIES,
    "schema": TABLE_PROPERTIES,
    "properties": COLUMN_PROPERTIES,
    "items": COLUMN_PROPERTIES,
    "quality": ("lakestore.onViolation",),
}
"""By the key under which an entry stands."""


def column_name(entry: Entry) -> str:
    """The name of a column in the table: `physicalName`, or else `name`."""
    return entry.text("physicalName") or entry.text("name")


def stored_columns(entry: Entry) -> list[Entry]:
    """The properties of a table that are columns. A measure is an aggregate: nobody stores it."""
    return [column for column in entry.listed("properties") if column.text("semanticType") != "measure"]


class _Loader(yaml_text.UniqueKeysLoader):
    """Dates and times stay texts, as in JSON."""

    yaml_implicit_resolvers = {  # noqa: RUF012, a class attribute of the parser
        first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _composed(text: str) -> yaml.Node:
    node = yaml.compose(text, Loader=_Loader)
    assert node is not None  # `values` has read it
    _unfold_merges(node, set())
    return node


def _unfold_merges(node: yaml.Node, done: set[int]) -> None:
    """Put the keys that a YAML merge brings into its object, as the parser does with the values: own keys win, then the
    earlier object of a list."""
    if id(node) in done:
        return
    done.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _unfold_merges(item, done)
    elif isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            _unfold_merges(value, done)
        merged = [value for key, value in node.value if key.tag == _MERGE]
        if merged:
            objects = [each for value in merged for each in _objects(value)]
            own = [pair for pair in node.value if pair[0].tag != _MERGE]
            pairs = {key.value: (key, value) for each in reversed(objects) for key, value in each.value}
            node.value = list((pairs | {key.value: (key, value) for key, value in own}).values())


def _objects(merged: yaml.Node) -> list[yaml.Node]:
    return list(merged.value) if isinstance(merged, yaml.SequenceNode) else [merged]


_MERGE = "tag:yaml.org,2002:merge"
