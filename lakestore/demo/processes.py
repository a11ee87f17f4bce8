"""The processes of the demo: started with their output in a file, ended by their id."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lakestore.errors import Unavailable

END_SECONDS = 20
TAIL_LINES = 5


class Process:
    """One `lakestore` command in the background."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name, self.log = name, log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lakestore", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def check(self) -> None:
        """`Unavailable` with the process's last lines if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise Unavailable(f"the {self.name} ended with code {code}; its last lines: {self.tail()}")

    def tail(self) -> str:
        """The last lines of its output."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-TAIL_LINES:]) or "none"

    def stop(self) -> None:
        """Ask the process to end; kill it and its children after a while."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nothing listens on at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
