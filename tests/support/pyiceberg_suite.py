"""PyIceberg's own integration tests of REST catalogs, from its source release, fetched once for this environment."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

from tests.support import pyiceberg_suite_plugin

ADDRESS = "LAKESTORE_SUITE_CATALOG"
"""The variable with the address of our catalog, which the plugin reads."""
_PACKAGES = (
    "pytest-lazy-fixtures==1.4.1",
    "moto==5.2.5",
    "boto3==1.44.8",
    "botocore==1.44.8",
    "jmespath==1.1.0",
    "responses==0.26.3",
    "s3transfer==0.19.3",
    "thrift==0.25.0",
    "werkzeug==3.1.9",
    "xmltodict==1.0.4",
)
"""Packages that the suite imports and this environment lacks."""


def fetched() -> Path:
    """The folder with the package `tests` of the suite, our plugin, and `packages`."""
    release = version("pyiceberg")
    folder = Path(sys.prefix) / "pyiceberg-suite" / release
    if not (folder / "packages").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as place:
            made = Path(place, "suite")
            _pip("download", "--no-binary", ":all:", "--no-build-isolation", "-d", place, f"pyiceberg=={release}")
            with tarfile.open(next(Path(place).glob("pyiceberg-*.tar.gz"))) as archive:
                below = f"pyiceberg-{release}/tests/"
                for member in archive.getmembers():
                    if member.name.startswith(below):
                        member.name = member.name.removeprefix(f"pyiceberg-{release}/")
                        archive.extract(member, made, filter="data")
            _pip("install", "--target", str(made / "packages"), *_PACKAGES)
            made.rename(folder)
    plugin = Path(pyiceberg_suite_plugin.__file__)
    (folder / "lakestore_suite.py").write_bytes(plugin.read_bytes())
    return folder


def _pip(verb: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", verb, "-q", "--disable-pip-version-check", "--no-deps", *arguments]
    subprocess.run(command, check=True)
