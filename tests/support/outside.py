"""Outside catalogs for tests: Iceberg's own REST server by its Maven coordinates, and PyIceberg's in PostgreSQL.

Both keep their entries in a place of the test's own, so that they can be ended and started again. `Outside` is one of
them: the settings of a server that uses it, and PyIceberg's catalog as another engine would open it.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Protocol, Self

from pyiceberg.catalog import Catalog, load_catalog

from jepsen.system.jvm import SHORT_LIVED
from jepsen.system.server import free_port
from lakestore.errors import Unavailable
from lakestore.java import java
from lakestore_demo.ivy import fetch
from lakestore_server.settings import Catalog as CatalogSettings
from tests.support.postgres import USER, Postgres

VERSION = "1.10.1"
_TESTS = (
    f"org.apache.iceberg:iceberg-open-api:{VERSION}:jar:test-fixtures",
    f"org.apache.iceberg:iceberg-core:{VERSION}:jar:tests",
    "org.apache.hadoop:hadoop-common:3.4.1",
    "org.eclipse.jetty:jetty-servlet:11.0.25",
    "org.xerial:sqlite-jdbc:3.49.1.0",
    "org.junit.jupiter:junit-jupiter-api:5.12.2",
    "org.assertj:assertj-core:3.27.3",
)
_CORE = (f"org.apache.iceberg:iceberg-core:{VERSION}",)
"""Fetched apart: of two files of one module, Ivy keeps one."""
_STORES = (
    f"org.apache.iceberg:iceberg-aws:{VERSION}",
    f"org.apache.iceberg:iceberg-aws-bundle:{VERSION}",
    "dev.failsafe:failsafe:3.3.2",
)
"""Jars for files in S3. They are named one by one, because Ivy takes minutes for all dependencies of `iceberg-aws`."""
START_SECONDS = 180.0


class Killed(Exception):
    """A server is killed at this moment."""


def kill() -> None:
    """End what runs."""
    raise Killed


def lose(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, whose answer is lost."""

    def lost(*given: Any) -> Any:
        call(*given)
        raise Unavailable("the answer is lost", applied="unknown")

    return lost


class Outside(Protocol):
    """A catalog that a server's tables may live in."""

    def settings(self) -> CatalogSettings:
        """A server's settings for it."""

    def catalog(self) -> Catalog:
        """The catalog as another engine opens it."""


class RestServer:
    """Iceberg's REST server over a file of SQLite. A context manager."""

    def __init__(self, folder: Path, **properties: str) -> None:
        """`properties` are settings of its catalog, such as the address of a store. With one of them it opens S3."""
        self._folder, self._properties = folder, properties
        self.port = free_port()
        self.proxy = LossyProxy(self.port)
        self.start()

    def start(self) -> None:
        """Start it, on the entries that are there."""
        core, tests = fetch("iceberg-core", VERSION, _CORE, transitive=False), fetch("iceberg-rest", VERSION, _TESTS)
        path = f"{core}/*:{tests}/*"
        if self._properties:
            path += f":{fetch('iceberg-aws', VERSION, _STORES, transitive=False)}/*"
        command = [java(), "-Xmx512m", *SHORT_LIVED, "-cp", path]
        variables = {
            **os.environ,
            "CATALOG_REST_PORT": str(self.port),
            "CATALOG_WAREHOUSE": (self._folder / "unused").as_uri(),
            "CATALOG_URI": f"jdbc:sqlite:{self._folder / 'entries.db'}",
            **{f"CATALOG_{_variable(name)}": value for name, value in self._properties.items()},
        }
        with (self._folder / "rest.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "org.apache.iceberg.rest.RESTCatalogServer"], env=variables, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/config", timeout=5).close()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.end()
                raise AssertionError(
                    f"the REST server did not start: {(self._folder / 'rest.log').read_text()[-2000:]}"
                )
            time.sleep(0.1)

    def settings(self) -> CatalogSettings:
        """Through the proxy, which loses answers."""
        return CatalogSettings(kind="rest", name="prod", uri=f"http://127.0.0.1:{self.proxy.port}", check_seconds=3600)

    def catalog(self) -> Catalog:
        """PyIceberg's view of it."""
        return load_catalog("theirs", type="rest", uri=f"http://127.0.0.1:{self.port}")

    def end(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self.proxy.close()


def _variable(name: str) -> str:
    """A property's name as the server has it in the environment."""
    return name.upper().replace("-", "__").replace(".", "_")


class DatabaseCatalog:
    """PyIceberg's catalog in a PostgreSQL server."""

    def __init__(self, postgres: Postgres, **properties: str) -> None:
        """`properties` are more settings of PyIceberg, such as the address of a store."""
        self._properties = properties
        self._opened: Catalog | None = None
        self._uri = f"postgresql://{USER}@127.0.0.1:{postgres.port}/shop"

    def settings(self) -> CatalogSettings:
        """A server's settings for it."""
        given = tuple(f"{name}={value}" for name, value in self._properties.items())
        return CatalogSettings(kind="sql", name="prod", uri=self._uri, check_seconds=3600, options=given)

    def catalog(self) -> Catalog:
        """PyIceberg's view of it."""
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def close(self) -> None:
        """End the connections."""
        if self._opened is not None:
            self._opened.engine.dispose()  # type: ignore[attr-defined]

    def _open(self) -> Catalog:
        uri = self._uri.replace("postgresql://", "postgresql+psycopg://")
        return load_catalog("prod", type="sql", uri=uri, **self._properties)


class LossyProxy:
    """HTTP requests passed on to a port. It can lose the answers of POSTs after they were done, or all requests."""

    def __init__(self, port: int) -> None:
        self.lose_commits = 0
        """The number of answers to commits of a table that the proxy loses next."""
        self.is_away = False
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None: ...

            def _pass(self) -> None:
                if proxy.is_away:
                    self.close_connection = True
                    return
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                way = HTTPConnection("127.0.0.1", port, timeout=30)
                headers = {name: value for name, value in self.headers.items() if name != "Accept-Encoding"}
                with closing(way):
                    way.request(self.command, self.path, body, headers)
                    answer = way.getresponse()
                    content = answer.read()
                if proxy.lose_commits and self.command == "POST" and "/tables/" in self.path:
                    proxy.lose_commits -= 1
                    self.close_connection = True
                    return
                self._answer(answer.status, answer.headers.get("Content-Type", "application/json"), content)

            def _answer(self, status: int, kind: str, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

        for method in ("GET", "POST", "DELETE", "HEAD"):
            setattr(Handler, f"do_{method}", Handler._pass)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
