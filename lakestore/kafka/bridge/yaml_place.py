"""Strict access to a YAML file. Every refusal names the file, the line and the place.

Duplicate keys, unknown keys and values of a wrong type are refused. Merge keys (`<<: *name`) are followed.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import yaml

from lakestore.errors import Invalid, LakestoreError
from lakestore.model.outside_values import excerpt, is_unicode
from lakestore.model.settings import MASK
from lakestore.model.yaml_text import problem_of

CHARS_MAX = 4 << 20
DEPTH_MAX = 32
NODES_MAX = 100_000
"""Most values in a file; an alias counts its values again."""
_TAG = "tag:yaml.org,2002:"
_TAGS = {_TAG + name for name in ("str", "int", "float", "bool", "null", "timestamp", "binary", "merge", "value")}
Choice = TypeVar("Choice", bound=str)


def document(text: str, file: str) -> Place:
    """Parse a file. Raises `Invalid` if it is not YAML of a bounded size."""
    if len(text) > CHARS_MAX:
        raise Invalid(f"{file} has {len(text):,} characters, and {CHARS_MAX:,} at most are read: is it the right file?")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise Invalid(f"{file} is not YAML: {problem_of(error)}") from error
    except (RecursionError, ValueError) as error:
        raise Invalid(f"{file} is not YAML that can be read: it nests too deep, or holds an odd number") from error
    if node is None:
        raise Invalid(f"{file} is empty")
    found = Place(file, node, "")
    _check_size(found)
    return found


def _check_size(place: Place) -> None:
    count, todo = 0, [(place.node, 0)]
    while todo:
        node, depth = todo.pop()
        count += 1
        if depth > DEPTH_MAX:
            raise place.refusal(f"nests deeper than {DEPTH_MAX} levels", node)
        if count > NODES_MAX:
            raise place.refusal(f"holds more than {NODES_MAX:,} values, aliases counted", node)
        if isinstance(node, yaml.MappingNode):
            todo += [(part, depth + 1) for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            todo += [(part, depth + 1) for part in node.value]


@dataclass(frozen=True, slots=True)
class Place:
    """A value in the file."""

    file: str
    node: yaml.Node
    path: str
    """Keys and indexes from the top, such as topics[0].columns[2].type; empty for the whole file."""
    secret: bool = False
    """True if values at and below this place are never shown."""

    @property
    def line(self) -> int:
        return int(self.node.start_mark.line) + 1

    def refusal(self, sentence: str, node: yaml.Node | None = None) -> Invalid:
        """An `Invalid` that begins with the place: `bridge.yaml, line 4: topics[0].start …`."""
        line = int((node or self.node).start_mark.line) + 1
        return Invalid(f"{self.file}, line {line}: {f'{self.path} ' if self.path else ''}{sentence}")

    def because(self, error: LakestoreError) -> Invalid:
        return Invalid(f"{self.file}, line {self.line}: {error.message}")

    @property
    def shown(self) -> str:
        """The written value, shortened. A secret or a structure is described."""
        if self.secret:
            return MASK
        if isinstance(self.node, yaml.ScalarNode):
            return excerpt(self.node.value)
        return "a list" if isinstance(self.node, yaml.SequenceNode) else "keys with values"

    @property
    def is_text(self) -> bool:
        return isinstance(self.node, yaml.ScalarNode)

    @property
    def is_list(self) -> bool:
        return isinstance(self.node, yaml.SequenceNode)

    def as_secret(self) -> Place:
        return Place(self.file, self.node, self.path, secret=True)

    def keys(self, known: Collection[str], required: Collection[str] = ()) -> dict[str, Place]:
        """Key to value. Raises `Invalid` for an unknown key and for a missing required key."""
        found = self.entries()
        for key, (place, at) in found.items():
            if key not in known:
                close = difflib.get_close_matches(key, known, 1)
                hint = f" (did you mean {close[0]}?)" if close else ""
                told = f"has {excerpt(key)}, which is not known{hint}: known are {', '.join(known)}"
                raise self.refusal(told if self.path else f"the file {told}", at)
            if place.is_null:
                raise place.refusal("has no value: give one, or leave the key out")
        for key in required:
            if key not in found:
                raise self.refusal(f"lacks {key!r}" if self.path else f"the file lacks {key!r}")
        return {key: place for key, (place, _) in found.items()}

    def entries(self) -> dict[str, tuple[Place, yaml.Node]]:
        """Any key to its value and the key's node."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.refusal(f"takes keys with values, not {self.shown}")
        own: dict[str, tuple[Place, yaml.Node]] = {}
        merged: dict[str, tuple[Place, yaml.Node]] = {}
        for key, value in self.node.value:
            if key.tag == _TAG + "merge":
                merged = self._merged(value) | merged
                continue
            if not isinstance(key, yaml.ScalarNode) or not is_unicode(key.value):
                raise self.refusal("has a key that is no text", key)
            if key.value in own:
                raise self.refusal(f"says {excerpt(key.value)} twice", key)
            path = f"{self.path}.{key.value}" if self.path else key.value
            own[key.value] = Place(self.file, value, path, self.secret), key
        return merged | own

    def _merged(self, value: yaml.Node) -> dict[str, tuple[Place, yaml.Node]]:
        found: dict[str, tuple[Place, yaml.Node]] = {}
        for each in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            found = Place(self.file, each, self.path, self.secret).entries() | found
        return found

    @property
    def is_null(self) -> bool:
        return bool(self.node.tag == _TAG + "null")

    def items(self) -> list[Place]:
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.refusal(f"takes a list, not {self.shown}")
        return [Place(self.file, part, f"{self.path}[{i}]", self.secret) for i, part in enumerate(self.node.value)]

    def text(self) -> str:
        """A text that is not empty. Numbers and times are returned as written."""
        if not isinstance(self.node, yaml.ScalarNode) or not self.node.value or self.is_null:
            raise self.refusal(f"takes a text, not {self.shown}")
        if not is_unicode(self.node.value) or "\0" in self.node.value:
            raise self.refusal("holds half of a character, or a zero byte")
        return str(self.node.value)

    def texts(self) -> tuple[str, ...]:
        found = tuple(part.text() for part in self.items())
        for text in found:
            if found.count(text) > 1:
                raise self.refusal(f"names {excerpt(text)} twice")
        return found

    def flag(self) -> bool:
        value = self.value()
        if not isinstance(value, bool):
            raise self.refusal(f"is true or false, not {self.shown}")
        return value

    def whole(self, low: int, high: int) -> int:
        value = self.value()
        if type(value) is not int or not low <= value <= high:
            raise self.refusal(f"is a whole number from {low:,} to {high:,}, not {self.shown}")
        return value

    def one_of(self, known: Collection[Choice]) -> Choice:
        if not self.is_text or self.node.value not in known:
            raise self.refusal(f"is one of {', '.join(known)}, not {self.shown}")
        return cast("Choice", self.node.value)

    def value(self) -> Any:
        if isinstance(self.node, yaml.MappingNode):
            return {key: place.value() for key, (place, _) in self.entries().items()}
        if isinstance(self.node, yaml.SequenceNode):
            return [part.value() for part in self.items()]
        if self.node.tag not in _TAGS:
            raise self.refusal(f"has the tag {excerpt(self.node.tag)}, which is not taken")
        try:
            return yaml.SafeLoader("").construct_object(self.node)
        except (yaml.YAMLError, ValueError, OverflowError, KeyError, IndexError) as error:
            raise self.refusal(f"is written as {self.shown}, which is not a value of its type") from error
