"""Extensible data notation, in which Jepsen's own checkers read histories."""

from __future__ import annotations

import json
from typing import Any


class Keyword(str):
    """A name that is written with a colon before it."""

    __slots__ = ()


MICRO_OPERATIONS = ("append", "r", "w", "send", "poll")
"""First elements of what transactions do, which others read as keywords."""


def transaction(value: Any) -> Any:
    """A transaction's micro-operations with keywords in front, as Elle reads them; any other value as it is."""
    if not isinstance(value, list) or not all(isinstance(each, list) and each for each in value):
        return value
    if not all(each[0] in MICRO_OPERATIONS for each in value):
        return value
    return [[Keyword(each[0]), *each[1:]] for each in value]


def text(value: Any) -> str:
    """A value in EDN: lists become vectors, keys of maps that are names become keywords."""
    if isinstance(value, Keyword):
        return f":{value}"
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{text(key)} {text(held)}" for key, held in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + " ".join(text(each) for each in value) + "]"
    raise TypeError(f"{type(value).__name__} has no form in EDN")
