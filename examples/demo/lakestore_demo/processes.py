"""The processes of the demo, with their output in files."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from types import MappingProxyType
from typing import IO

from lakestore.errors import Unavailable

END_SECONDS = 20
TAIL_LINES = 5
PORTS = range(10_000, 12_000)
"""Ports below the ephemeral ranges of Linux, macOS and Windows. A port in those ranges may be taken before the
process opens it.
"""
PORTS_TRIED = 200
QUICK_JAVA = MappingProxyType({"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"})
"""Variables of a short Spark process: one compiler and one collector thread leave the cores to the rest."""


def lakestore(*arguments: str) -> list[str]:
    """The command line of a `lakestore` command in this environment."""
    return [sys.executable, "-m", "lakestore", *arguments]


class Process:
    """A command in the background. `variables` are added to its environment."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, variables: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.name, self.log = name, log
        with log.open("ab") as out:
            self._process = self._spawned(command, out, {"PYTHONUNBUFFERED": "1", **variables})

    def _spawned(self, command: Sequence[str], out: IO[bytes], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
            start_new_session=True,
        )

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process.poll() is None else None

    def check(self) -> None:
        """Raise `Unavailable` with the last lines if the process has ended."""
        code = self._process.poll()
        if code is not None:
            raise Unavailable(f"the {self.name} ended with code {code}; its last lines: {self.tail()}")

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-TAIL_LINES:]) or "none"

    def stop(self) -> None:
        """Ask the process to end. After a while kill it and its children."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on and that no connection gets meanwhile. Raises `OSError`."""
    found: list[int] = []
    for port in SystemRandom().sample(PORTS, PORTS_TRIED):
        if len(found) == count:
            break
        with socket.socket() as each, suppress(OSError):
            each.bind(("127.0.0.1", port))
            found.append(port)
    if len(found) < count:
        raise OSError(f"of {PORTS_TRIED} ports from {PORTS.start} on, {len(found)} are free, but {count} are needed")
    return found
