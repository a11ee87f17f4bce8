"""A consumer process of a shared subscription, that can be killed and paused, and what it says of its work.

Run as a module: `python -m tests.support.consumer ADDRESS TABLE MEMBER FILE`. Each line of the file is one batch:
`["got", time, rows]` before it is acknowledged, `["acked", time, buckets that did not count, buckets that may have
counted]` after it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import lakestore as ls
from lakestore.errors import Fenced

SUBSCRIPTION = "work"


@dataclass(frozen=True)
class Row:
    """One change as a consumer had it."""

    bucket: int
    offset: int
    key: int
    n: int


@dataclass(frozen=True)
class Done:
    """A row that a consumer acknowledged, or may have: it was killed before it could say so, or was not told."""

    row: Row
    member: str
    time: float
    """Of its processing, on the machine's clock."""
    sure: bool


class ConsumerProcess:
    """One worker."""

    def __init__(self, address: str, table: str, member: str, file: Path) -> None:
        self.member, self._file = member, file
        command = [sys.executable, "-m", "tests.support.consumer", address, table, member, str(file)]
        self._process = subprocess.Popen(command)

    def signal(self, number: int) -> None:
        """Stop, go on or end."""
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """kill -9, also of one that is paused."""
        self._process.kill()
        self._process.wait(30)

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def done(self) -> list[Done]:
        """What it has acknowledged, in its order."""
        found: list[Done] = []
        rows: list[Row] = []
        at = 0.0
        text = self._file.read_text() if self._file.exists() else ""
        for line in text.splitlines():
            if not line.endswith("]"):
                break  # cut short by the kill, before it was acknowledged
            kind, moment, *told = json.loads(line)
            if kind == "got":
                rows, at = [Row(*row) for row in told[0]], moment
                continue
            lost, unknown = told
            found += [Done(row, self.member, at, row.bucket not in unknown) for row in rows if row.bucket not in lost]
            rows = []
        return found + [Done(row, self.member, at, sure=False) for row in rows]


def main(address: str, table: str, member: str, file: str) -> None:
    """Read, write down, acknowledge, until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    with ls.connect(address) as lake, Path(file).open("a") as out:

        def say(*told: object) -> None:
            out.write(json.dumps(told, separators=(",", ":")) + "\n")
            out.flush()

        for batch in lake.table(table).changes(subscription=SUBSCRIPTION, shared=True, member=member):
            rows = batch.to_arrow()
            columns = [rows[name].to_pylist() for name in ("__bucket", "__offset", "id", "n")]
            say("got", time.monotonic(), list(zip(*columns, strict=True)))
            lost: list[int] = []
            unknown: list[int] = []
            try:
                batch.ack()
            except Fenced as error:
                named = lost if error.applied == "no" else unknown
                named += [number for _, number in error.buckets]
                if not named:
                    raise
            say("acked", time.monotonic(), lost, unknown)


if __name__ == "__main__":
    main(*sys.argv[1:])
