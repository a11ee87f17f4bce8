"""Index processes that are forked from one that has imported everything: models start hundreds of servers.

The code that runs in them, and their ends of the pipes, are those of the server. A new interpreter and its imports
would be most of what such a test waits for.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import pytest

from lakestore_server.index import worker
from lakestore_server.index.worker_client import IndexProcess

_FORKS = multiprocessing.get_context("forkserver")


class Forked:
    """As much of a `subprocess.Popen` as the server uses."""

    def __init__(self, arguments: list[str]) -> None:
        requests, to_it = _FORKS.Pipe(duplex=False)
        from_it, replies = _FORKS.Pipe(duplex=False)
        self._process = _FORKS.Process(target=_serve, args=(arguments, requests, replies), daemon=True)
        self._process.start()
        self.stdin, self.stdout = os.fdopen(os.dup(to_it.fileno()), "wb"), os.fdopen(os.dup(from_it.fileno()), "rb")
        for end in (requests, to_it, from_it, replies):
            end.close()

    @property
    def pid(self) -> int | None:
        """Of the process."""
        return self._process.pid

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("index worker", timeout or 0.0)
        return self._process.exitcode


@contextmanager
def forked_index() -> Iterator[None]:
    """Servers that start meanwhile fork their index processes."""
    _FORKS.set_forkserver_preload([__name__])

    def started(process: IndexProcess) -> Forked:
        with pytest.MonkeyPatch.context() as environment:  # of the process that forks, which starts with the first
            environment.setenv("OPENBLAS_NUM_THREADS", "1")
            return Forked(list(process._arguments))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndexProcess, "_started", started)
        yield


def _serve(arguments: list[str], requests: Connection, replies: Connection) -> None:
    for end, number in ((requests, 0), (replies, 1)):
        os.dup2(end.fileno(), number)
        end.close()
    folder, map_bytes, read_only = arguments
    worker.main(folder, int(map_bytes), read_only=read_only == "1")
