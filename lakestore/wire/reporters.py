"""Reporters: the names under which processes beside the server report, and the thing that several of them work at."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

BRIDGE = "bridge"
_PROCESS = re.compile(r"/[^/]+/[0-9]+\Z")


def name_of(kind: str, name: str, host: str, pid: int) -> str:
    """The name of one process at work on a thing of some kind."""
    return f"{kind}/{name}/{host}/{pid}"


def thing_of(reporter: str) -> str:
    """A reporter's name without host and process: the same for all processes, one after the other or together."""
    return _PROCESS.sub("", reporter)


def detail_of(value: Any) -> dict[str, Any]:
    """The fields of a report's detail that have their types; none of a value that is no object."""
    if not isinstance(value, Mapping):
        return {}
    return {name: value[name] for name, fits in DETAIL.items() if name in value and fits(value[name])}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _by_name(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(fits(each) for each in value.values())


DETAIL: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("records", "bytes", "commits"), _is_count),
    **dict.fromkeys(("rows", "rejected", "passed", "unread", "lag"), _by_name(_is_count)),
    "waiting": _is_text,
    "halted": _by_name(_is_text),
}
"""Field of a detail to the check of its type."""
