"""A schema registry in a process of its own: Apicurio by its Maven coordinates, and a small server for faults."""

from __future__ import annotations

import json
import subprocess
import tarfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from jepsen.system.jvm import SHORT_LIVED
from jepsen.system.server import free_port
from lakestore.java import java
from lakestore_demo.ivy import fetch

VERSION = "2.6.13.Final"
START_SECONDS = 180.0
_ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
_JSON = "application/vnd.schemaregistry.v1+json"


def jar() -> Path:
    """The registry's jar, with its libraries beside it."""
    folder = fetch("registry", VERSION, (_ARTIFACT,), transitive=False, prepare=_unpack)
    return folder / f"apicurio-registry-app-{VERSION}-runner.jar"


def _unpack(folder: Path) -> None:
    packed = next(folder.glob("*.tar.gz"))
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    packed.unlink()


class RegistryProcess:
    """One registry that keeps its schemas in memory."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        self._log = (folder / "registry.log").open("w")
        settings = {"quarkus.http.port": port, "quarkus.http.host": "127.0.0.1"}
        options = [f"-D{name}={value}" for name, value in settings.items()]
        command = [java(), "-Xmx256m", *SHORT_LIVED, *options, "-jar", str(jar())]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, cwd=folder)
        self._wait(folder)

    def register(
        self, subject: str, schema: Any, kind: str = "AVRO", references: Sequence[tuple[str, str, int]] = ()
    ) -> int:
        """The number of a schema that is now a subject's newest version. References: name, subject, version."""
        told = [{"name": name, "subject": other, "version": version} for name, other, version in references]
        text = schema if isinstance(schema, str) else json.dumps(schema)
        body = {"schema": text, "schemaType": kind, "references": told}
        return int(self.call("POST", f"/subjects/{subject}/versions", body)["id"])

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """An answer of the registry."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": _JSON}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def _wait(self, folder: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the registry did not start: see {folder / 'registry.log'}")
            try:
                self.call("GET", "/subjects")
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise RuntimeError("the registry did not answer in time")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()


class FaultyRegistry:
    """A server that answers as it is told: a status and a body, by path; or nothing for a while."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        """The end of a path to the status and body; a status of 0 hangs up in the middle."""
        self.asked: list[str] = []
        self.seconds = 0.0
        """Time before each answer."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: tests have their own words."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        self.asked.append(path)
        time.sleep(self.seconds)
        unknown = (404, b'{"error_code": 40403, "message": "Schema not found"}')
        status, body = next((answer for end, answer in self.answers.items() if path.endswith(end)), unknown)
        request.send_response(status or 200)
        request.send_header("Content-Length", str(len(body) + (100 if not status else 0)))
        request.end_headers()
        request.wfile.write(body)
        request.close_connection = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)
