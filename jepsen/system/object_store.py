"""An object store that speaks S3, in memory: what Lakestore, PyIceberg, DuckDB and Iceberg's S3FileIO ask of one.

It is ours, because it starts at once, and because a test can look into it and judge each request. Runs on S3Proxy 4.0.0
take its place with `--s3`. Requests are not signed: the store takes any credentials. A put is whole or absent. A put
that wants a new object is refused by 412 if there is one. A list shows every object that was put before it.
"""

from __future__ import annotations

import hashlib
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from jepsen.system.http_server import HttpServer

PAGE = 1_000
"""Keys of one page of a list."""
_XML = "http://s3.amazonaws.com/doc/2006-03-01/"


class Refused(Exception):
    """An answer that says no, with the code that S3 has for it."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class Object:
    """One object. Never changed."""

    data: bytes
    etag: str
    seconds: float


@dataclass(slots=True)
class _Upload:
    key: str
    parts: dict[int, Object] = field(default_factory=dict)


class Objects:
    """All objects of all buckets, by `bucket/key`. Thread-safe."""

    def __init__(self) -> None:
        self._objects: dict[str, Object] = {}
        self._uploads: dict[str, _Upload] = {}
        self._lock = threading.Lock()

    def keys(self, prefix: str = "") -> list[str]:
        """Keys that begin so, in order."""
        with self._lock:
            return sorted(key for key in self._objects if key.startswith(prefix))

    def get(self, key: str) -> Object:
        """An object; 404 if it is not there."""
        with self._lock:
            if key not in self._objects:
                raise Refused(404, "NoSuchKey")
            return self._objects[key]

    def put(self, key: str, data: bytes, wanted: Message) -> Object:
        """Put an object if the conditions (`If-None-Match`, `If-Match`) hold at that moment; else 412."""
        made = _object(data)
        with self._lock:
            self._hold(key, wanted)
            self._objects[key] = made
        return made

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there are no error."""
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)

    def begin(self, key: str) -> str:
        """A new upload in parts."""
        name = uuid.uuid4().hex
        with self._lock:
            self._uploads[name] = _Upload(key)
        return name

    def part(self, upload: str, number: int, data: bytes) -> Object:
        """One part of an upload; a later one of the same number takes its place."""
        made = _object(data)
        with self._lock:
            self._upload(upload).parts[number] = made
        return made

    def finish(self, upload: str, numbers: list[int], wanted: Message) -> Object:
        """The object of an upload's parts. An upload that has been finished is not there any more: 404."""
        with self._lock:
            found = self._upload(upload)
            if any(number not in found.parts for number in numbers):
                raise Refused(400, "InvalidPart")
            self._hold(found.key, wanted)
            made = _object(b"".join(found.parts[number].data for number in numbers))
            self._objects[found.key] = made
            del self._uploads[upload]
        return made

    def abort(self, upload: str) -> None:
        """Forget an upload."""
        with self._lock:
            self._uploads.pop(upload, None)

    def _upload(self, name: str) -> _Upload:
        if name not in self._uploads:
            raise Refused(404, "NoSuchUpload")
        return self._uploads[name]

    def _hold(self, key: str, wanted: Message) -> None:
        there = self._objects.get(key)
        if wanted.get("If-None-Match") == "*" and there is not None:
            raise Refused(412, "PreconditionFailed")
        if (match := wanted.get("If-Match")) and (there is None or match.strip('"') != there.etag):
            raise Refused(412, "PreconditionFailed")


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as it came."""

    method: str
    target: str
    """Path and query."""
    headers: Message
    body: bytes


Guard = Callable[[Call], str | None]
"""Looks at a request before the store does: raises `Refused`, returns an answer of its own, or None to let it pass."""


class ObjectStore:
    """Objects behind a port of this machine. Thread-safe."""

    def __init__(
        self, objects: Objects | None = None, guard: Guard | None = None, tls: tuple[Path, Path] | None = None
    ) -> None:
        """`tls`: certificate and key, for https."""
        self.objects = all_objects = objects or Objects()

        class Handler(_Handler):
            """Requests of this store."""

            kept = all_objects
            guards = () if guard is None else (guard,)

        self._server = HttpServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            # The thread of each connection shakes hands, so that a client that does not stops nobody else.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="object-store", daemon=True).start()

    def close(self) -> None:
        """Stop, and forget everything."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    kept: Objects
    guards: tuple[Guard, ...]

    def _handle(self) -> None:
        body = self._body()
        call = Call(self.command, self.path, self.headers, body)
        if self.headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
            body = b"".join(_unchunked(body))
        parts = urlsplit(self.path)
        key, asked = unquote(parts.path)[1:], dict(parse_qsl(parts.query, keep_blank_values=True))
        try:
            for guard in self.guards:
                if (answer := guard(call)) is not None:
                    self._say(200, answer)
                    return
            self._do(key, asked, body)
        except Refused as no:
            self._say(no.status, f"<Error><Code>{no.code}</Code><Message>{no.code}</Message></Error>")

    def _body(self) -> bytes:
        """The body of the request, also one that comes in chunks, as AWS's C++ library sends it over plain HTTP."""
        if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return b"".join(pieces)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _handle  # noqa: N815 (names of the base)

    def _do(self, key: str, asked: Mapping[str, str], body: bytes) -> None:
        bucket, _, name = key.partition("/")
        match self.command, bool(name):
            case "GET" | "HEAD", True:
                self._show(self.kept.get(key))
            case "GET" | "HEAD", False:
                self._list(bucket, asked)
            case "PUT", True:
                self._put(key, asked, body)
            case "POST", _:
                self._post(key, asked, body)
            case "DELETE", True:
                self.kept.abort(asked["uploadId"]) if "uploadId" in asked else self.kept.delete([key])
                self._say(204)
            case _:
                self._say(200)

    def _put(self, key: str, asked: Mapping[str, str], body: bytes) -> None:
        if "x-amz-copy-source" in self.headers:
            raise Refused(501, "NotImplemented")
        if "uploadId" in asked:
            made = self.kept.part(asked["uploadId"], int(asked["partNumber"]), body)
        else:
            made = self.kept.put(key, body, self.headers)
        self._say(200, headers={"ETag": f'"{made.etag}"'})

    def _post(self, key: str, asked: Mapping[str, str], body: bytes) -> None:
        if "uploads" in asked:
            self._say(200, _told("InitiateMultipartUploadResult", UploadId=self.kept.begin(key)))
        elif "uploadId" in asked:
            numbers = [int(number) for number in _texts(body, "PartNumber")]
            made = self.kept.finish(asked["uploadId"], numbers, self.headers)
            self._say(200, _told("CompleteMultipartUploadResult", ETag=f'"{made.etag}"'))
        elif "delete" in asked:
            keys = _texts(body, "Key")
            self.kept.delete(f"{key.rstrip('/')}/{each}" for each in keys)
            gone = "".join(f"<Deleted><Key>{escape(each)}</Key></Deleted>" for each in keys)
            self._say(200, f'<DeleteResult xmlns="{_XML}">{gone}</DeleteResult>')
        else:
            raise Refused(501, "NotImplemented")

    def _list(self, bucket: str, asked: Mapping[str, str]) -> None:
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        after = asked.get("continuation-token") or asked.get("start-after", "")
        size = min(int(asked.get("max-keys", PAGE)), PAGE)
        found: dict[str, str] = {}
        for whole in self.kept.keys(f"{bucket}/{prefix}"):
            key = whole[len(bucket) + 1 :]
            rest = key[len(prefix) :]
            name = prefix + rest.split(delimiter)[0] + delimiter if delimiter and delimiter in rest else key
            if name > after:
                found.setdefault(name, whole if name == key else "")
        page = list(found.items())[:size]
        said = "".join(self._listed(name, whole) for name, whole in page)
        more = {"NextContinuationToken": page[-1][0]} if len(found) > len(page) > 0 else {}
        told = {"Name": bucket, "Prefix": prefix, "KeyCount": len(page), "MaxKeys": size, **more}
        told["IsTruncated"] = "true" if more else "false"
        self._say(200, _told("ListBucketResult", said, **told))

    def _listed(self, name: str, whole: str) -> str:
        if not whole:
            return f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        try:
            one = self.kept.get(whole)
        except Refused:  # deleted in the meantime
            return ""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(one.seconds))
        return (
            f"<Contents><Key>{escape(name)}</Key><LastModified>{moment}</LastModified><ETag>&quot;{one.etag}&quot;"
            f"</ETag><Size>{len(one.data)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )

    def _show(self, one: Object) -> None:
        headers = {
            "ETag": f'"{one.etag}"',
            "Last-Modified": formatdate(one.seconds, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        data, status, size = one.data, 200, len(one.data)
        if said := self.headers.get("Range", ""):
            first, _, last = said.removeprefix("bytes=").partition("-")
            start = int(first) if first else max(0, size - int(last))
            end = min(int(last), size - 1) if first and last else size - 1
            if start >= size:
                raise Refused(416, "InvalidRange")
            data, status = data[start : end + 1], 206
            headers["Content-Range"] = f"bytes {start}-{end}/{size}"
        self._say(status, data, headers)

    def _say(self, status: int, said: str | bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        data = said.encode() if isinstance(said, str) else said
        self.send_response_only(status)
        for name, value in (headers or {"Content-Type": "application/xml"}).items():
            self.send_header(name, value)
        self.send_header("Date", self.date_time_string())
        self.send_header("x-amz-request-id", quote(uuid.uuid4().hex))
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""


def _object(data: bytes) -> Object:
    return Object(data, hashlib.md5(data, usedforsecurity=False).hexdigest(), time.time())


def _told(name: str, inner: str = "", **values: object) -> str:
    said = "".join(f"<{key}>{escape(str(value))}</{key}>" for key, value in values.items())
    return f'<?xml version="1.0" encoding="UTF-8"?><{name} xmlns="{_XML}">{said}{inner}</{name}>'


def _texts(body: bytes, name: str) -> list[str]:
    """The texts of all elements of a name."""
    every = ElementTree.fromstring(body).iter()
    return [each.text or "" for each in every if each.tag.rpartition("}")[2] == name]


def _unchunked(body: bytes) -> Iterator[bytes]:
    """The pieces of a body in `aws-chunked`, without their sizes, signatures and trailers."""
    at = 0
    while at < len(body):
        line, _, _ = body[at : at + 4_096].partition(b"\r\n")
        size = int(line.split(b";")[0], 16)
        if size == 0:
            return
        start = at + len(line) + 2
        yield body[start : start + size]
        at = start + size + 2
