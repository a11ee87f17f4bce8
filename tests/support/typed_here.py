"""`lakestore` typed in a shell, run in the test's own process: a start of Python for each would take most of a test.

A stand-in of that name hands its words and its three files over a socket, so pipes and redirections are the shell's.
One is answered after the other: of two in one pipe the first must not wait for the second.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from lakestore.cli.main import run_command
from tests.support.documents import kept_handlers

_STAND_IN = """#!{python} -SE
import json, os, socket, sys
door = socket.socket(socket.AF_UNIX)
door.connect({place!r})
said = json.dumps([os.getcwd(), sys.argv[1:]]).encode()
socket.send_fds(door, [len(said).to_bytes(4, "big") + said], [0, 1, 2])
sys.exit(int.from_bytes(door.recv(1), "big"))
"""
_LOOK_SECONDS = 0.05


class Shell:
    """Runs lines in bash; `lakestore` among their words is this process."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="typed-")
        place = Path(self._folder.name)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(place / "door"))
        self._door.listen()
        self._door.settimeout(_LOOK_SECONDS)
        program = place / "lakestore"
        program.write_text(_STAND_IN.format(python=sys.executable, place=str(place / "door")))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self._path = os.pathsep.join([str(place), str(Path(sys.executable).parent), os.environ["PATH"]])

    def run(self, line: str, seconds: float) -> tuple[str, int]:
        """All that a line says, and its exit code."""
        command = ["bash", "-o", "pipefail", "-c", line]
        deadline = time.monotonic() + seconds
        with tempfile.TemporaryFile("w+") as out:
            shell = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, "PATH": self._path}
            )
            while shell.poll() is None:
                if time.monotonic() > deadline:
                    raise TimeoutError(line)
                with contextlib.suppress(TimeoutError):
                    self._answer(self._door.accept()[0])
            out.seek(0)
            return out.read(), shell.returncode

    def _answer(self, caller: socket.socket) -> None:
        with caller:
            said, files, _, _ = socket.recv_fds(caller, 1 << 16, 3)
            while len(said) < 4 or len(said) < 4 + int.from_bytes(said[:4], "big"):
                said += caller.recv(1 << 16)
            folder, words = json.loads(said[4:])
            with _standing_in(folder, files), kept_handlers():
                code = run_command(words)
            caller.sendall(code.to_bytes(1, "big"))

    def close(self) -> None:
        """Take no more calls."""
        self._door.close()
        self._folder.cleanup()


@contextlib.contextmanager
def _standing_in(folder: str, files: list[int]) -> Iterator[None]:
    """The caller's folder and files in place of our own."""
    streams = [_stream(number, mode) for number, mode in zip(files, ("rb", "wb", "wb"), strict=True)]
    before, there = (sys.stdin, sys.stdout, sys.stderr), Path.cwd()
    os.chdir(folder)
    sys.stdin, sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        os.chdir(there)
        for each in streams:
            with contextlib.suppress(BrokenPipeError):
                each.close()


def _stream(number: int, mode: str) -> TextIO:
    return io.TextIOWrapper(open(number, mode), encoding="utf-8", write_through=mode == "wb")
