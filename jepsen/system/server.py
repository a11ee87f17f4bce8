"""The server's process."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

START_SECONDS = 60.0
STOP_SECONDS = 60.0


class NotStarted(RuntimeError):
    """The server ended, or said nothing, before it served."""


class Server:
    """`lakestore serve` on one folder and always the same ports. Every life appends to one log file."""

    def __init__(self, folder: Path, environment: Mapping[str, str], program: Sequence[str] = ()) -> None:
        """`program`: what runs in place of `python -m lakestore`."""
        self.data, self._log = folder / "data", folder / "server.log"
        self.port, self.http_port = free_port(), free_port()
        self._environment = dict(environment)
        self._program = tuple(program) or (sys.executable, "-m", "lakestore")
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = threading.RLock()

    @property
    def address(self) -> str:
        """Host and port of gRPC."""
        return f"127.0.0.1:{self.port}"

    @property
    def catalog(self) -> str:
        """The address of the Iceberg REST catalog."""
        return f"http://127.0.0.1:{self.http_port}/iceberg"

    @property
    def pid(self) -> int | None:
        """The process's number, while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start it unless it runs, and wait until it serves."""
        with self._turn:
            if self.pid is not None:
                return
            command = ["serve", "--data", str(self.data), "--port", str(self.port), "--http-port", str(self.http_port)]
            with self._log.open("ab") as log:
                said_before = self._log.stat().st_size
                self._process = subprocess.Popen(
                    [*self._program, *command],
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "PYTHONUNBUFFERED": "1", **self._environment},
                )
            self._await_ports(said_before)

    def try_start(self) -> str:
        """Start it as a supervisor does; what came of it. Another fault may keep it from starting."""
        try:
            self.start()
        except NotStarted as error:
            return str(error)
        return "started"

    def _await_ports(self, said_before: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with self._log.open("rb") as log:
                log.seek(said_before)
                said = log.read().decode(errors="replace")
            if re.search(r"gRPC on [\w.]+:\d+", said):
                return
            if self.pid is None or time.monotonic() > deadline:
                raise NotStarted(f"the server did not start: {said[-2000:]}")
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        """Send a signal if it runs."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, number)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        with self._turn:
            if self._process is not None:
                self._process.kill()
                self._process.wait(STOP_SECONDS)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Kill it, and keep it from being started within the block."""
        with self._turn:
            self.kill()
            yield

    def stop(self) -> int:
        """An orderly end; the exit code, 0 if it has never run."""
        with self._turn:
            if self._process is None:
                return 0
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            return self._process.wait(STOP_SECONDS)


def free_port() -> int:
    """A port of this machine that nothing listens on at the moment."""
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return int(each.getsockname()[1])
