"""Spark SQL reads in a process of their own: a line on stdin asks, a line of JSON on stdout answers.

Run as `python -m lakestore_demo.reader SERVER`. Spark's log goes to stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lakestore.errors import Corrupt, Unavailable
from lakestore_demo.kafka import PAYMENTS
from lakestore_demo.processes import QUICK_JAVA
from lakestore_demo.shop import EVENTS, ORDERS

PAUSE_SECONDS = 1.0
END_SECONDS = 20
QUERY = (
    "SELECT o.number, o.amount, e.delta "  # noqa: S608
    f"FROM (SELECT count(*) AS number, sum(amount) AS amount FROM {ORDERS}) o, "
    f"(SELECT sum(delta) AS delta FROM {EVENTS}) e"
)
JOIN = (
    "SELECT count(*) AS number, coalesce(sum(p.amount), 0) AS amount "  # noqa: S608
    f"FROM {PAYMENTS} p JOIN {ORDERS} o ON p.order_id = o.order_id"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one query over two tables at one cut."""

    number: int
    """Number of orders, or of payments."""
    cents: int
    """Sum of the amounts in cents."""


@dataclass(slots=True)
class Reader:
    """Queries the process and compares both tables."""

    server: str
    log: Path
    seconds: list[float] = field(default_factory=list)
    ready: bool = False
    _process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start Spark. Returns when it can read."""
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lakestore_demo.reader", self.server],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **QUICK_JAVA},
                start_new_session=True,
            )
        self._line()
        self.ready = True

    def has_jars(self) -> bool:
        """Whether Spark has fetched its jars: Ivy has said so in the log, or the session is there."""
        return self.ready or (self.log.exists() and b"already retrieved" in self.log.read_bytes())

    def read(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.once()
            stop.wait(PAUSE_SECONDS)

    def once(self) -> Answer:
        """Read once. Raises `Corrupt` if the tables disagree."""
        started = time.perf_counter()
        found = self._ask("read")
        self.seconds.append(time.perf_counter() - started)
        if found["cents"] != found["delta"]:
            raise Corrupt(f"at one cut the orders sum up to {found['cents']} and the events to {found['delta']} cents")
        return Answer(found["number"], found["cents"])

    def join(self) -> Answer:
        found = self._ask("join")
        return Answer(found["number"], found["cents"])

    def _ask(self, question: str) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        return self._line()

    def stop(self) -> None:
        """End Spark by closing its input."""
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
    """Answer questions until the input ends."""
    from lakestore.spark import attach, session

    conf = {"spark.sql.shuffle.partitions": "2", "spark.ui.showConsoleProgress": "false"}
    spark = session(server, master="local[2]", app="lakestore demo: reads", conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    lake = attach(spark, server)
    _say(ready=True)
    for question in sys.stdin:
        row = lake.sql(JOIN if question.strip() == "join" else QUERY).collect()[0].asDict()
        money = {"cents": row["amount"], "delta": row.get("delta", 0)}
        _say(number=row["number"], **{name: int(amount * 100) for name, amount in money.items()})
    lake.close()
    spark.stop()


def _say(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
