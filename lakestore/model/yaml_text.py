"""YAML texts as plain values: bounded, without duplicate keys, with one error type that has the line.

The safe loader's constructors fail in many ways on odd texts and expand aliases without a bound.
"""

from __future__ import annotations

from typing import Any

import yaml

DEPTH_MAX = 32
NODES_MAX = 2_000_000
"""Values in a text; an alias counts its values again."""
_ODD = (ValueError, AttributeError, TypeError, KeyError, IndexError, OverflowError)
_NULL, _MERGE = (f"tag:yaml.org,2002:{name}" for name in ("null", "merge"))


class Unreadable(ValueError):
    """A text that is not acceptable YAML. The message begins with line and column."""

    def __init__(self, problem: str, mark: Any = None) -> None:
        """`mark` is the parser's position, if there is one."""
        self.line = None if mark is None else int(mark.line) + 1
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        super().__init__(where + " ".join(problem.split()))


def _resolvers(*tags: str) -> dict[str, list[tuple[str, Any]]]:
    every = yaml.SafeLoader.yaml_implicit_resolvers
    return {first: [pair for pair in known if pair[0] in tags] for first, known in every.items()}


class UniqueKeysLoader(yaml.SafeLoader):
    """The safe loader, except that a duplicate key is an error instead of the last one winning."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            name = self.name_of(key)
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{name!r} is written twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)

    def name_of(self, key: yaml.Node) -> str:
        """The name under which keys are compared."""
        return str(key.value)


class TextLoader(UniqueKeysLoader):
    """Keys and values stay texts as written: 1, no, 2024-01-01. A value may be null."""

    yaml_implicit_resolvers = _resolvers(_NULL, _MERGE)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                key.tag = yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG
        return super().construct_mapping(node, deep)


def problem_of(error: yaml.YAMLError) -> Unreadable:
    """The parser's problem and line in one sentence, without its drawing."""
    return Unreadable(getattr(error, "problem", None) or str(error), getattr(error, "problem_mark", None))


def values(text: str, loader: type[yaml.SafeLoader] = UniqueKeysLoader) -> Any:
    """The values of a text; None if it is empty. Raises `Unreadable`."""
    try:
        made = loader(text)
        node = made.get_single_node()
        if node is None:
            return None
        _check_size(node)
        return made.construct_document(node)
    except yaml.YAMLError as error:
        raise problem_of(error) from error
    except RecursionError as error:
        raise Unreadable(f"it nests deeper than {DEPTH_MAX} levels") from error
    except Unreadable:
        raise
    except _ODD as error:
        raise Unreadable(f"it holds a value that is none of its type ({error})") from error


def item_lines(text: str, key: str) -> list[int]:
    """The lines, from 1, where the items of the list under a key begin in a readable text."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        return []
    (items,) = [value for name, value in root.value if name.value == key]
    return [item.start_mark.line + 1 for item in items.value]


def _check_size(root: yaml.Node) -> None:
    count, todo = 0, [(root, 0)]
    while todo:
        node, depth = todo.pop()
        count += 1
        if depth > DEPTH_MAX:
            raise Unreadable(f"it nests deeper than {DEPTH_MAX} levels", node.start_mark)
        if count > NODES_MAX:
            raise Unreadable(f"it holds more than {NODES_MAX:,} values, aliases counted", node.start_mark)
        if isinstance(node, yaml.MappingNode):
            todo += [(part, depth + 1) for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            todo += [(part, depth + 1) for part in node.value]
