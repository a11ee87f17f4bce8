"""Counts of the requests to an S3 store, by kind and by the library that sent them.

An `HttpProxy` hands every request to `StoreRequests.note`. A request that a client repeats counts again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

PUT, CREATE, HEAD, GET, LIST, DELETE, MULTIPART = "put", "create", "head", "get", "list", "delete", "multipart"
"""Kinds. `create` is a put-if-absent; `multipart` is each call of an upload in parts."""
_AGENTS = {"object_store": "obstore", "aws-sdk-java": "java", "aws-sdk-cpp": "arrow", "duckdb": "duckdb"}


class Request(NamedTuple):
    """One request."""

    kind: str
    key: str
    """Bucket and key."""
    library: str


class StoreRequests:
    """Requests since the last `take`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._noted: list[Request] = []

    def note(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Count one request of a client."""
        parts = urlsplit(path)
        agent = headers.get("User-Agent", "") or ""
        library = next((name for mark, name in _AGENTS.items() if mark in agent), agent)
        with self._lock:
            self._noted.append(Request(kind_of(method, path, headers), unquote(parts.path).lstrip("/"), library))

    def take(self) -> list[Request]:
        """The requests since the last call, in order."""
        with self._lock:
            taken, self._noted = self._noted, []
        return taken


def kind_of(method: str, path: str, headers: Mapping[str, str]) -> str:
    """The kind of a request."""
    parts = urlsplit(path)
    asked = dict(parse_qsl(parts.query, keep_blank_values=True))
    is_object = bool(unquote(parts.path).strip("/").partition("/")[2])
    if "uploads" in asked or "uploadId" in asked:
        return MULTIPART
    if method == "GET" and not is_object:
        return LIST
    if method == "DELETE" or (method == "POST" and "delete" in asked):
        return DELETE
    if method == "PUT":
        return CREATE if headers.get("If-None-Match") == "*" else PUT
    return method.lower()


def by_kind(requests: list[Request]) -> dict[str, int]:
    """Number of requests of each kind."""
    return dict(Counter(request.kind for request in requests))
