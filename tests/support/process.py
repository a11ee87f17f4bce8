"""A server in a process of its own, that can be killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from jepsen.system.server import free_port


class DidNotStart(AssertionError):
    """The process ended before it served."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class ServerProcess:
    """`lakestore serve` on a folder. `kill` is kill -9."""

    def __init__(
        self,
        data: Path,
        *,
        port: int = 0,
        http_port: int = 0,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = (),
    ) -> None:
        """`program` is what Python runs in place of `lakestore serve`. Ports that are not given are free ones, and stay
        so for a server that comes after this one."""
        port, http_port = port or free_port(), http_port or free_port()
        self.data = data
        self.errors = ""
        """What it wrote to stderr, once it has ended."""
        ours = ["-m", "lakestore", "serve", "--data", str(data), "--port", str(port), "--http-port", str(http_port)]
        self._stderr = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, *(program or ours), *arguments],
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        found = re.search(r"gRPC on ([\w.]+):(\d+).*http://([\w.]+):(\d+)", said)
        if not found:
            self._finish(30)
            raise DidNotStart(f"the server did not start: {said}{self.said()}", self._process.returncode)
        self.host, self.port, self.http_port = found[1], int(found[2]), int(found[4])

    @property
    def address(self) -> str:
        """Of gRPC."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def code(self) -> int:
        """The exit code of a process that has ended."""
        self._finish(30)
        return self._process.returncode

    def said(self) -> str:
        """Everything on stderr so far."""
        if not self._stderr.closed:
            size = os.fstat(self._stderr.fileno()).st_size
            self.errors = os.pread(self._stderr.fileno(), size, 0).decode(errors="replace")
        return self.errors

    def _finish(self, seconds: float) -> None:
        if not self._stderr.closed:
            self._process.communicate(timeout=seconds)
            self.said()
            self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._process.kill()
        self._finish(30)

    def stop(self) -> int:
        """An orderly end; the exit code."""
        if self.alive:
            self._process.terminate()
        return self.wait(60)

    def wait(self, seconds: float) -> int:
        """Its exit code, once it has ended by itself."""
        self._finish(seconds)
        return self._process.returncode


def refused(data: Path, arguments: Sequence[str] = ()) -> str:
    """What a server says that must not start on this folder."""
    command = [sys.executable, "-m", "lakestore", "serve", "--data", str(data), "--port", "0", "--http-port", "0"]
    ended = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    return ended.stdout + ended.stderr
