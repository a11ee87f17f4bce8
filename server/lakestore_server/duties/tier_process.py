"""A tierer beside the server: the command `lakestore tier` as a process of its own, while this server leads.

- It is started again when it ends, with growing pauses. Each tierer fences the one before, so a start is always safe.
- It ends with the server: its standard input is a pipe from here, and it stops when the pipe ends. So it also ends
  after a kill -9 of the server.
"""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
import threading
from collections.abc import Sequence

from lakestore.errors import Invalid, Unavailable
from lakestore.release import wheel_with
from lakestore_server.commit.engine import Engine
from lakestore_server.host.clock import Clock
from lakestore_server.host.worker import Worker

log = logging.getLogger("lakestore.duties")
LOOK_SECONDS = 0.5
"""The time between two looks at the process."""
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 1.0, 60.0
"""The pause before a new process; it doubles while each lives for less than the longest pause."""
END_SECONDS = 5.0
"""Time of the process to end its round; then it is killed, which leaves nothing that the next one does not remove."""


def tier_command(address: str, master: str) -> list[str]:
    """The command of a tierer of this server, which listens at `address`. `Invalid` if Spark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise Invalid(f"a tierer beside the server needs pyspark, which is not installed: {wheel_with('server,spark')}")
    host, _, port = address.rpartition(":")
    if host in ("0.0.0.0", "[::]"):  # noqa: S104 (it is compared, not bound)
        address = f"localhost:{port}"  # no certificate is for the address of all interfaces
    command = [sys.executable, "-m", "lakestore", "tier", "--until-input-ends"]
    return [*command, "--server", address, "--master", master]


class TierProcess:
    """The duty `tiering`."""

    def __init__(self, engine: Engine, clock: Clock, command: Sequence[str]) -> None:
        self._engine, self._clock, self._command = engine, clock, command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._began_at = self._start_at = 0.0
        self._pause = PAUSE_SECONDS
        self._worker = Worker(
            supervisor=engine.supervisor,
            name="tiering",
            work=self.run_once,
            failed=_failed,
            every=LOOK_SECONDS,
            first=0.0,
        )

    def start(self) -> None:
        """Begin to look. The server must be reachable."""
        self._worker.start()

    def run_once(self) -> None:
        """Start the process or end it, so that it runs while this server leads. `Unavailable` if it has ended."""
        with self._lock:
            if self._worker.is_closing:
                return
            if not self._engine.is_leading:
                self._end()
                return
            if self._process is not None and (code := self._process.poll()) is not None:
                self._end()
                now = self._clock.monotonic()
                has_lasted = now - self._began_at > PAUSE_SECONDS_MAX
                self._pause = PAUSE_SECONDS if has_lasted else min(self._pause * 2, PAUSE_SECONDS_MAX)
                self._start_at = now + self._pause
                how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
                raise Unavailable(f"the tierer beside the server ended {how}; its last lines in the log say why")
            if self._process is None and self._clock.monotonic() >= self._start_at:
                self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)
                self._began_at = self._clock.monotonic()
                log.info("a tierer runs as process %d", self._process.pid)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("the tierer did not end within %g s and is killed", END_SECONDS)
            process.kill()
            process.wait()

    def close(self) -> None:
        """End the process, then the duty."""
        with self._lock:
            self._end()
            self._start_at = float("inf")
        self._worker.close()


def _failed(error: Exception) -> None:
    log.error("%s", error)
