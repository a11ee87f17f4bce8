"""Clients of workloads in processes of their own, which nemeses stop and kill as any other process.

A child is told by JSON lines what to do, and answers with what its client answered. It serves one process of one
workload for client after client, until somebody kills it. A workload that does not pickle has state that its clients
share (a lock says so): they stay where they are.
"""

from __future__ import annotations

import base64
import json
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import lakestore as ls
from jepsen.operation import Invocation
from jepsen.system import processes
from jepsen.system.processes import Found, Nursery
from jepsen.system.reached import Reached
from jepsen.workload import Client, Workload

SHARE = 0.25
"""Of all processes of workloads so many are real ones."""
MODULE = "jepsen.system.client_process"


class ClientCrashed(RuntimeError):
    """A client raised an error of its own; the text is its traceback."""


class ClientProcesses:
    """The child processes of a run's clients. Thread-safe; each child is for one thread at a time."""

    def __init__(self, nursery: Nursery, log: Path, seed: int | str) -> None:
        self._nursery, self._log, self._seed = nursery, log, seed
        self._children: dict[tuple[str, int], _Child] = {}
        self._lock = threading.Lock()

    def is_apart(self, workload: Workload, process: int) -> bool:
        """Whether the seed gives this process of the workload a process of its own."""
        chance = random.Random(f"{self._seed} {workload.name} {process} apart")
        return chance.random() < SHARE and is_alone(workload)

    def client(self, workload: Workload, reached: Reached, process: int) -> Client:
        """A client in the process's child, which is started if there is none."""
        key = (workload.name, process)
        with self._lock:
            child = self._children.get(key)
        if child is None or not child.is_alive:
            child = _Child(self._nursery, self._log)
            with self._lock:
                self._children[key] = child
        child.ask({"open": _packed((workload, reached, process))})
        return _Remote(child)

    def found(self) -> list[Found]:
        """The processes that live."""
        with self._lock:
            pids = [child.pid for child in self._children.values() if child.is_alive]
        return [found for pid in pids if (found := processes.look(pid))]


def is_alone(workload: Workload) -> bool:
    """Whether its clients share nothing with each other."""
    try:
        pickle.dumps(workload)
    except (TypeError, AttributeError, pickle.PicklingError):
        return False
    return True


class _Child:
    """One process and the pipes to it and back."""

    def __init__(self, nursery: Nursery, log: Path) -> None:
        with log.open("ab") as errors:
            self._process = nursery.spawn(
                [sys.executable, "-m", MODULE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        self.pid = self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def ask(self, message: dict[str, Any]) -> Any:
        """The answer, or the client's error; without a process its effects are unknown."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = b""
        if not line:
            self._process.wait()
            raise ls.Unavailable("the process of this client was ended: use another", applied="unknown")
        answer = json.loads(line)
        if "crash" in answer:
            raise ClientCrashed(answer["crash"])
        if "error" in answer:
            error = pickle.loads(base64.b64decode(answer["error"]))
            assert isinstance(error, ls.LakestoreError)
            raise error
        return answer["ok"]


class _Remote:
    """A client in a child."""

    def __init__(self, child: _Child) -> None:
        self._child = child

    def invoke(self, invocation: Invocation) -> Any:
        """Do it there."""
        return self._child.ask({"do": [invocation.f, invocation.value]})

    def close(self) -> None:
        """Close the client there; the process waits for the next one."""
        self._child.ask({"close": True})


def _packed(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()
