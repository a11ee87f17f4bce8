"""Processes of this machine as anybody sees them: found in /proc, stopped, continued and killed by signals.

A `Nursery` starts processes that die with this one, however it ends, and finds what they leave behind.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PROC = Path("/proc")
SIGNAL_SECONDS = 30.0
"""A signal has done its work within this time, also of a process that waits for a slow disk, or for a core."""
_STATE, _PARENT, _BEGAN = 0, 1, 19
"""Places in /proc/PID/stat behind the name in brackets."""
_DEAD = "ZX"


@dataclass(frozen=True, slots=True)
class Found:
    """A process. The time of its start tells it from a later one of the same number."""

    pid: int
    began: int
    parent: int
    command: str

    @property
    def is_there(self) -> bool:
        """Whether it still runs, or is stopped."""
        found = look(self.pid)
        return found is not None and found.began == self.began

    @property
    def is_stopped(self) -> bool:
        """Whether SIGSTOP holds it."""
        fields = _stat(self.pid)
        return fields is not None and fields[_STATE] in "Tt" and int(fields[_BEGAN]) == self.began

    def signal(self, number: int) -> bool:
        """Send a signal; whether there was somebody to get it."""
        if not self.is_there:
            return False
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False


def look(pid: int) -> Found | None:
    """The process of a number; None if there is none that lives."""
    fields = _stat(pid)
    if fields is None or fields[_STATE] in _DEAD:
        return None
    with suppress(OSError):
        command = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return Found(pid, int(fields[_BEGAN]), int(fields[_PARENT]), command.strip())
    return None


def _stat(pid: int) -> list[str] | None:
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _everything() -> Iterator[Found]:
    for each in PROC.iterdir():
        if each.name.isdigit() and (found := look(int(each.name))):
            yield found


def descendants(pid: int | None) -> list[Found]:
    """The children of a process, and theirs, the nearest first."""
    of: dict[int, list[Found]] = {}
    for each in _everything():
        of.setdefault(each.parent, []).append(each)
    found, next_ = [], of.get(pid, []) if pid is not None else []
    while next_:
        found += next_
        next_ = [child for each in next_ for child in of.get(each.pid, [])]
    return found


_SPAWNER = ThreadPoolExecutor(1, "jepsen-spawner")
"""A child dies with the thread that started it, so that one thread starts them all, and lives to the end."""
_MARK = "JEPSEN_NURSERY"
_UNLESS_ORPHANED = '[ "$PPID" = "$0" ] && exec "$@"'
"""Runs a command if this process is still there: one that died before its death was a signal would leave it behind."""


class Nursery:
    """Processes that end with it, and with this process: theirs are found by a mark that all of them inherit."""

    def __init__(self) -> None:
        self._mark = f"{_MARK}={os.getpid()}-{uuid.uuid4().hex}"
        self._started: list[subprocess.Popen[bytes]] = []
        atexit.register(self.end)

    def spawn(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        folder: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own, which Ctrl-C does not reach. Variables are added to ours."""
        setpriv = shutil.which("setpriv")
        unless_orphaned = ["sh", "-c", _UNLESS_ORPHANED, str(os.getpid())]
        bound = [setpriv, "--pdeathsig", "KILL", "--", *unless_orphaned] if setpriv else []
        name, _, value = self._mark.partition("=")
        variables = {**os.environ, **(environment or {}), name: value}

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [*bound, *command],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=folder,
                env=variables,
                start_new_session=True,
            )

        made = _SPAWNER.submit(start).result()
        self._started.append(made)
        return made

    def left(self) -> list[Found]:
        """The processes that are there, with all that they have started and left behind."""
        return [each for each in _everything() if self._is_marked(each.pid)] if self._started else []

    def _is_marked(self, pid: int) -> bool:
        try:
            return self._mark.encode() in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        except OSError:
            return False

    def end(self) -> list[str]:
        """kill -9 of whatever is left; their commands."""
        ended = []
        while left := self.left():
            kill(left)
            ended += [each.command for each in left]
            time.sleep(0.01)
        for each in self._started:
            each.wait()
            for pipe in (each.stdin, each.stdout):
                with suppress(OSError):
                    _ = pipe and pipe.close()
        atexit.unregister(self.end)
        return ended


def kill(processes: Iterable[Found]) -> list[int]:
    """kill -9; the numbers of those that were there."""
    killed = [each for each in processes if each.signal(signal.SIGKILL)]
    _await(lambda: not any(each.is_there for each in killed))
    return [each.pid for each in killed]


def _await(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SIGNAL_SECONDS
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.001)


class Stopped:
    """Processes that SIGSTOP holds, under the name of whoever stopped them. Thread-safe."""

    def __init__(self) -> None:
        self._held: dict[str, set[Found]] = {}
        self._lock = threading.Lock()

    def stop(self, name: str, processes: Iterable[Found]) -> list[int]:
        """SIGSTOP; the numbers of those that were there."""
        with self._lock:
            held = [each for each in processes if each.signal(signal.SIGSTOP)]
            self._held.setdefault(name, set()).update(held)
            _await(lambda: all(each.is_stopped or not each.is_there for each in held))
            return [each.pid for each in held]

    def go_on(self, name: str | None = None) -> list[int]:
        """SIGCONT of those of a name or of all, but for what another name still holds; those that are still there."""
        with self._lock:
            names = list(self._held) if name is None else [name]
            let_go = set[Found]().union(*(self._held.pop(each, set()) for each in names))
            let_go.difference_update(*self._held.values())
            return sorted(each.pid for each in let_go if each.signal(signal.SIGCONT))
