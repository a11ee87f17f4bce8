"""The console's files, read once and sent to everybody: they hold nothing of this server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

from lakestore_server.edge import http_errors

INDEX = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
"""The page runs and loads its own files alone, makes no markup out of texts, and stands in nobody's frame."""


@dataclass(frozen=True, slots=True)
class File:
    """One file."""

    data: bytes
    media_type: str
    etag: str


def read() -> dict[str, File]:
    """The files by name."""
    found = {}
    for entry in resources.files("lakestore_server.edge.console.static").iterdir():
        kind = entry.name.rpartition(".")[2]
        if kind in _TYPES:
            data = entry.read_bytes()
            found[entry.name] = File(data, _TYPES[kind], f'"{hashlib.sha256(data).hexdigest()[:32]}"')
    return found


class Files:
    """The endpoints of the files."""

    def __init__(self) -> None:
        self._files = read()

    def index(self, request: Request) -> Response:
        """The page."""
        return self._sent(request, self._files[INDEX])

    def file(self, request: Request) -> Response:
        """One of its parts."""
        name = request.path_params["file"]
        if name not in self._files:
            status, body = http_errors.no_such_call(404, f"{request.method} {request.url.path}")
            return Response(body, status, media_type="application/json")
        return self._sent(request, self._files[name])

    @staticmethod
    def _sent(request: Request, file: File) -> Response:
        headers = HEADERS | {"etag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.data, headers=headers, media_type=file.media_type)
