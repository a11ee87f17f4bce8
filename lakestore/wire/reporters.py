"""Reporters: the names under which processes beside the server report, and the thing that several of them work at."""

from __future__ import annotations

import re

BRIDGE = "bridge"
_PROCESS = re.compile(r"/[^/]+/[0-9]+\Z")


def name_of(kind: str, name: str, host: str, pid: int) -> str:
    """The name of one process at work on a thing of some kind."""
    return f"{kind}/{name}/{host}/{pid}"


def thing_of(reporter: str) -> str:
    """A reporter's name without host and process: the same for all processes, one after the other or together."""
    return _PROCESS.sub("", reporter)
