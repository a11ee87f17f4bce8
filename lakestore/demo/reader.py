"""Spark SQL reads of the demo, in a process of their own: a line on stdin asks, a line of JSON on stdout answers.

Run as `python -m lakestore.demo.reader SERVER`; what Spark has to say goes to stderr.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lakestore.demo.shop import EVENTS, ORDERS
from lakestore.errors import Corrupt, Unavailable

PAUSE_SECONDS = 1.0
END_SECONDS = 20
QUERY = (
    "SELECT o.number, o.amount, e.delta "  # noqa: S608
    f"FROM (SELECT count(*) AS number, sum(amount) AS amount FROM {ORDERS}) o, "
    f"(SELECT sum(delta) AS delta FROM {EVENTS}) e"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one query over both tables at one cut."""

    number: int
    """Number of orders."""
    cents: int
    """Sum of all orders, in cents."""


@dataclass(slots=True)
class Reader:
    """Asks the process, and checks that both tables tell the same."""

    server: str
    log: Path
    seconds: list[float] = field(default_factory=list)
    ready: bool = False
    _process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start Spark; returns when it can read."""
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lakestore.demo.reader", self.server],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._line()
        self.ready = True

    def read(self, stop: threading.Event) -> None:
        """Read until told to stop."""
        while not stop.is_set():
            self.once()
            stop.wait(PAUSE_SECONDS)

    def once(self) -> Answer:
        """Read once; `Corrupt` if the tables disagree."""
        assert self._process is not None
        assert self._process.stdin is not None
        started = time.perf_counter()
        self._process.stdin.write("read\n")
        self._process.stdin.flush()
        found = self._line()
        self.seconds.append(time.perf_counter() - started)
        if found["cents"] != found["delta"]:
            raise Corrupt(f"at one cut the orders sum up to {found['cents']} and the events to {found['delta']} cents")
        return Answer(found["number"], found["cents"])

    def stop(self) -> None:
        """End Spark: without questions the process ends."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _line(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable(f"the Spark reader ended; see {self.log}")
        found: dict[str, Any] = json.loads(line)
        return found


def main(server: str) -> None:
    """Answer questions until there are no more."""
    from lakestore.spark import attach, session

    conf = {"spark.sql.shuffle.partitions": "2", "spark.ui.showConsoleProgress": "false"}
    spark = session(server, master="local[2]", app="lakestore demo: reads", conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    lake = attach(spark, server)
    _say(ready=True)
    for _ in sys.stdin:
        row = lake.sql(QUERY).collect()[0]
        _say(number=row["number"], cents=int(row["amount"] * 100), delta=int(row["delta"] * 100))
    lake.close()
    spark.stop()


def _say(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
