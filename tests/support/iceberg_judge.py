"""Iceberg's own Java library as the judge of metadata: one JVM for each test process, started at the first question."""

from __future__ import annotations

import atexit
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest import mock

import orjson
import pyspark

from jepsen.system.jvm import SHORT_LIVED
from lakestore.java import java
from lakestore_demo.ivy import fetch
from lakestore_server.catalog.metadata_store import MetadataStore, StoredMetadata
from lakestore_server.catalog.schemas import Json
from lakestore_spark.session import RUNTIME
from tests.support.java_source import compiled

_SOURCE = Path(__file__).with_name("IcebergJudge.java")


class _Judge:
    """The process. It ends with this one."""

    def __init__(self) -> None:
        iceberg = fetch("iceberg", RUNTIME.rpartition(":")[2], (RUNTIME,), transitive=False)
        spark = Path(pyspark.__file__).parent / "jars"
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [java(), *SHORT_LIVED, "-Xmx256m", "-cp", compiled(_SOURCE, iceberg, spark), _SOURCE.stem],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        atexit.register(self._process.communicate)

    def answer(self, verb: str, document: bytes) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(verb.encode() + b" " + document + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline().decode().strip()
        if not line:
            self._log.seek(0)
            raise RuntimeError(f"the Java judge ended: {self._log.read().decode()[-2000:]}")
        return line


@cache
def _judge() -> _Judge:
    return _Judge()


def refusal(document: Json | bytes) -> str:
    """Java's reason to refuse to load metadata; empty if it loads."""
    return _refusal("load", document)


def build_refusal(document: Json | bytes) -> str:
    """Java's reason to refuse the names of the schema or a manifest by the default spec; empty if it takes them."""
    return _refusal("build", document)


@contextmanager
def judged() -> Iterator[None]:
    """Have Java load every document that a catalog of this process stores in the block, at the end of the block."""
    stored: dict[bytes, str] = {}
    save = MetadataStore.save

    def recorded(store: MetadataStore, location: str, doc: Json) -> StoredMetadata:
        made = save(store, location, doc)
        stored.setdefault(made.data, location)
        return made

    with mock.patch.object(MetadataStore, "save", recorded):
        yield
    refusals = {location: why for data, location in stored.items() if (why := refusal(data))}
    assert not refusals, f"the catalog stored metadata that Iceberg's Java refuses: {refusals}"


def _refusal(verb: str, document: Json | bytes) -> str:
    data = document if isinstance(document, bytes) else orjson.dumps(document)
    answer = _judge().answer(verb, data)
    return "" if answer == "ok" else answer
