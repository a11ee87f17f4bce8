"""The server's process."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from jepsen.run import Unrecoverable
from jepsen.system import processes
from jepsen.system.processes import Found, Nursery

PORTS = range(12_000, 30_000)
"""Below those that systems give to connections."""
_CLAIMS: dict[int, int] = {}
"""Ports of this process to the files whose locks claim them: a lock ends with the process, however that ends."""
START_SECONDS = 60.0
STOP_SECONDS = 60.0
CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}
"""Signals by which no process ends that is not broken itself."""


class NotStarted(Unrecoverable):
    """The server ended, or said nothing, before it served."""


class Server:
    """`lakestore serve` on one folder and always the same ports. Every life appends to one log file. Thread-safe."""

    def __init__(
        self,
        nursery: Nursery,
        folder: Path,
        environment: Mapping[str, str],
        program: Sequence[str] = (),
        host: str = "127.0.0.1",
        before: Sequence[str] = (),
    ) -> None:
        """`program`: what runs in place of `python -m lakestore`; `before`: a command that runs it somewhere else."""
        self.data, self._log = folder / "data", folder / "server.log"
        self.host, self.port, self.http_port = host, free_port(), free_port()
        self._nursery = nursery
        self.environment = {"PYTHONUNBUFFERED": "1", **environment}
        self._program = [*before, *(program or (sys.executable, "-m", "lakestore"))]
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = threading.RLock()
        self._crashed: dict[int, str] = {}

    @property
    def address(self) -> str:
        """Host and port of gRPC."""
        return f"{self.host}:{self.port}"

    @property
    def http(self) -> str:
        """Host and port of the catalog."""
        return f"{self.host}:{self.http_port}"

    @property
    def catalog(self) -> str:
        """The address of the Iceberg REST catalog."""
        return f"http://{self.http}/iceberg"

    @property
    def pid(self) -> int | None:
        """The process's number, while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def found(self) -> list[Found]:
        """The server's own process, if it runs."""
        pid = self.pid
        found = processes.look(pid) if pid is not None else None
        return [found] if found else []

    def children(self, module: str = "") -> list[Found]:
        """Processes that the server started, of all modules or of one."""
        return [each for each in processes.descendants(self.pid) if module in each.command]

    def start(self) -> bool:
        """Start it unless it runs, and wait until it serves; whether it had to be started."""
        with self._turn:
            if self.pid is not None:
                return False
            self._note_crash()
            command = ["serve", "--data", str(self.data), "--host", self.host, "--port", str(self.port)]
            with self._log.open("ab") as log:
                said_before = self._log.stat().st_size
                self._process = self._nursery.spawn(
                    [*self._program, *command, "--http-port", str(self.http_port)],
                    stdout=log,
                    stderr=log,
                    environment=self.environment,
                )
            self._await_ports(said_before)
            return True

    def try_start(self) -> str:
        """Start it as a supervisor does; what came of it. Another fault may keep it from starting."""
        try:
            return "started" if self.start() else "ran already"
        except NotStarted as error:
            return str(error)

    def _await_ports(self, said_before: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            has_ended = self.pid is None  # before its log is read: what it said as it ended is in it
            with self._log.open("rb") as log:
                log.seek(said_before)
                said = log.read().decode(errors="replace")
            if re.search(r"gRPC on [\w.]+:\d+", said):
                return
            if has_ended or time.monotonic() > deadline:
                raise NotStarted(f"the server did not start: {said[-2000:]}")
            time.sleep(0.02)

    def _note_crash(self) -> None:
        process = self._process
        code = process.poll() if process is not None else None
        if process is not None and code is not None and -code in CRASHES:
            self._crashed[process.pid] = f"the server ended by {signal.Signals(-code).name}"

    def defects(self) -> list[str]:
        """Ends of the server that nobody asked for and no fault explains: crashes, and tracebacks in its log."""
        with self._turn:
            self._note_crash()
            said = self._log.read_text(errors="replace") if self._log.exists() else ""
            found = [said[at.start() : at.start() + 3_000] for at in re.finditer(r"Traceback \(most recent", said)]
            return [*self._crashed.values(), *found[:3]]

    def signal(self, number: int) -> None:
        """Send a signal if it runs."""
        for each in self.found():
            each.signal(number)

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
    """A port that nothing listens on. While this process lives no other call returns it, nor does another process's."""
    for port in PORTS:
        if port not in _CLAIMS and (claim := _claim(port)) is not None:
            _CLAIMS[port] = claim
            return port
    raise OSError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")


def _claim(port: int) -> int | None:
    """The locked file of a port, as a descriptor that stays open; None if another process claims or uses the port."""
    try:
        claim = os.open(
            Path(tempfile.gettempdir()) / f"lakestore-port-{port}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666
        )
    except PermissionError:  # the file of another user, who runs tests too
        return None
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket() as each:
            each.bind(("127.0.0.1", port))
    except OSError:
        os.close(claim)
        return None
    return claim
