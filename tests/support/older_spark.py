"""Stock Spark 3.5 in a process of its own, with a catalog that Spark 4 has no release of."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from jepsen.system.jvm import SHORT_LIVED
from lakestore.java import java
from lakestore_demo.ivy import fetch
from tests.support.java_source import compiled

ICEBERG, SPARK = "1.9.1", "3.5.5"
_SOURCE = Path(__file__).with_name("SparkSql.java")
_PACKAGES = ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "util", "util.concurrent")
_OPENED = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _PACKAGES]
_OPENED += [f"--add-opens=java.base/sun.{name}=ALL-UNNAMED" for name in ("nio.ch", "nio.cs", "util.calendar")]
"""Spark reaches into these packages of Java 17; `spark-submit` gives the same options."""


class Refused(Exception):
    """The statement failed, with the error that Spark shows its user."""


class OlderSpark:
    """The process. A context manager."""

    def __init__(self, folder: Path, runtime: Path, settings: Mapping[str, str], options: Sequence[str]) -> None:
        """`runtime` is the catalog's folder of jars, `options` are Java's. Raises `Unavailable`."""
        spark = fetch("spark-sql", SPARK, (f"org.apache.spark:spark-sql_2.12:{SPARK}",))
        self._log = folder / "older-spark.log"
        command = [java(), *options, *_OPENED, "-cp", compiled(_SOURCE, runtime, spark), _SOURCE.stem]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *(f"{name}={value}" for name, value in settings.items())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                cwd=folder,
            )

    def sql(self, statement: str) -> str:
        """The rows as Spark prints them. Raises `Refused`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(statement, file=self._process.stdin, flush=True)
        verdict, _, text = self._process.stdout.readline().strip().partition(" ")
        if verdict == "ok":
            return text
        assert verdict == "failed", self._log.read_text()[-2_000:]
        raise Refused(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def older_iceberg(folder: Path, catalog: str) -> OlderSpark:
    """Spark with Iceberg 1.9.1, which has no runtime for Spark 4. `catalog` is the address of a REST catalog."""
    runtime = f"org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:{ICEBERG}"
    settings = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "rest",
        "spark.sql.catalog.lake.uri": catalog,
        "spark.sql.catalog.lake.cache-enabled": "false",
    }
    jars = fetch("iceberg-spark-runtime", ICEBERG, (runtime,), transitive=False)
    return OlderSpark(folder, jars, settings, ("-Xmx700m", *SHORT_LIVED))
