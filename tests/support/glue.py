"""A stand-in for AWS Glue: moto's server, in an environment of its own, and PyIceberg's catalog in it.

moto pins packages that are older than ours, so it is installed in a folder beside them, once for this environment. Its
boto3, by which PyIceberg speaks to Glue, is found there too.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Self

from pyiceberg.catalog import Catalog, load_catalog

from jepsen.system.server import free_port
from lakestore_server.settings import Catalog as CatalogSettings

VERSION = "5.2.5"
START_SECONDS = 180.0


def home() -> Path:
    """The folder of moto's environment."""
    folder = Path(sys.prefix) / "moto" / VERSION
    if (folder / ".ready").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, f"moto[glue,server]=={VERSION}"], check=True)
    (folder / ".ready").touch()
    return folder


class GlueServer:
    """One server, whose entries are in its memory. A context manager."""

    def __init__(self) -> None:
        (packages,) = home().glob("lib/*/site-packages")
        if str(packages) not in sys.path:
            sys.path.append(str(packages))  # behind our own packages, which are newer
        self.port, self._log = free_port(), tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [str(home() / "bin" / "moto_server"), "-H", "127.0.0.1", "-p", str(self.port)],
            stdout=self._log,
            stderr=self._log,
        )
        deadline = time.monotonic() + START_SECONDS
        while True:
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/moto-api/", timeout=5).close()
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._log.seek(0)
                raise AssertionError(f"moto did not start: {self._log.read()[-2000:]}")
            time.sleep(0.1)

    @property
    def properties(self) -> dict[str, str]:
        """The settings of PyIceberg."""
        return {
            "glue.endpoint": f"http://127.0.0.1:{self.port}",
            "glue.region": "eu-west-3",
            "glue.access-key-id": "a-key",
            "glue.secret-access-key": "a-secret",
        }

    def settings(self) -> CatalogSettings:
        """A server's settings for it."""
        given = tuple(f"{name}={value}" for name, value in self.properties.items())
        return CatalogSettings(kind="glue", name="prod", check_seconds=3600, options=given)

    def catalog(self) -> Catalog:
        """PyIceberg's view of it."""
        return load_catalog("theirs", type="glue", **self.properties)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(30)
        self._log.close()
