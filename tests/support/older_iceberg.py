"""Stock Spark 3.5 with Iceberg 1.9.1 in a process of its own. Iceberg has no runtime of 1.9.1 for Spark 4."""

from __future__ import annotations

import subprocess
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


class OlderIceberg:
    """The process. A context manager."""

    def __init__(self, folder: Path, catalog: str) -> None:
        """`catalog` is the address of a REST catalog."""
        runtime = f"org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:{ICEBERG}"
        iceberg = fetch("iceberg-spark-runtime", ICEBERG, (runtime,), transitive=False)
        spark = fetch("spark-sql", SPARK, (f"org.apache.spark:spark-sql_2.12:{SPARK}",))
        self._log = folder / "older-iceberg.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    java(),
                    "-Xmx700m",
                    *SHORT_LIVED,
                    *_OPENED,
                    "-cp",
                    compiled(_SOURCE, iceberg, spark),
                    _SOURCE.stem,
                    catalog,
                ],
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
