"""Histories: the operations of a run in the order of their times, as JSON lines and in Jepsen's EDN."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from jepsen import edn
from jepsen.operation import HEALED, NEMESIS, READS, SHAPE, Call, Invocation, Kind, Operation


class History:
    """Operations in order; never changed once it is made."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        self.operations = tuple(operations)

    def __len__(self) -> int:
        return len(self.operations)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    def calls(self, *names: str) -> list[Call]:
        """The clients' calls in the order of their invocations; with names only those of the named functions."""
        completions: dict[int, Operation] = {}
        open_calls: dict[int | str, Operation] = {}
        for each in self.operations:
            if each.process == NEMESIS:
                continue
            if each.kind is Kind.INVOKE:
                open_calls[each.process] = each
            elif invoked := open_calls.pop(each.process, None):
                completions[invoked.index] = each
        return [
            Call(each, completions.get(each.index))
            for each in self.operations
            if each.kind is Kind.INVOKE and each.process != NEMESIS and (not names or each.f in names)
        ]

    def shape(self) -> Any:
        """The shape (tables, buckets, keys) that the run drew, as its processes noted it first; None without a note."""
        return next((each.value for each in self.operations if each.kind is Kind.INVOKE and each.f == SHAPE), None)

    @property
    def late_until(self) -> int:
        """The place up to which connections read at followers, so that a read may lack what others have written before;
        -1 if they never do. After everything has healed they read at the leader."""
        if not any(each.process == NEMESIS and each.f == READS for each in self.operations):
            return -1
        healed = (each.index for each in self.operations if each.process == NEMESIS and each.f == HEALED)
        return next(healed, len(self.operations))

    def faults(self) -> list[Operation]:
        """The events of nemeses: each fault that began or ended."""
        return [each for each in self.operations if each.process == NEMESIS]

    def dump(self, path: Path) -> None:
        """Write JSON lines."""
        path.write_text("".join(json.dumps(asdict(each)) + "\n" for each in self.operations))

    def dump_edn(self, path: Path) -> None:
        """Write one map a line, in Jepsen's names."""
        path.write_text("".join(edn.text(_jepsen(each)) + "\n" for each in self.operations))

    @classmethod
    def load(cls, path: Path) -> History:
        """The history of a file of JSON lines."""
        return cls(_operation(json.loads(line)) for line in path.read_text().splitlines())


def _operation(line: dict[str, Any]) -> Operation:
    return Operation(**{**line, "kind": Kind(line["kind"])})


def _jepsen(each: Operation) -> dict[edn.Keyword, Any]:
    keyword = edn.Keyword
    found = {
        keyword("index"): each.index,
        keyword("time"): each.time,
        keyword("process"): keyword(NEMESIS) if each.process == NEMESIS else each.process,
        keyword("type"): keyword(each.kind if each.process != NEMESIS else Kind.INFO),
        keyword("f"): keyword(each.f),
        keyword("value"): edn.transaction(each.value),
    }
    return {**found, keyword("error"): each.error} if each.error else found


class Recorder:
    """The one place where operations get their index and time. Thread-safe; every line is in its file at once."""

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._operations: list[Operation] = []
        self._began = time.monotonic_ns()
        self._file = path.open("w", buffering=1) if path else None

    def record(self, process: int | str, kind: Kind, f: str, value: Any = None, error: str = "") -> Operation:
        """Add an operation, which happens now."""
        with self._lock:
            now = time.monotonic_ns() - self._began
            made = Operation(len(self._operations), now, process, kind, f, value, error)
            self._operations.append(made)
            if self._file:
                self._file.write(json.dumps(asdict(made)) + "\n")
            return made

    def invoke(self, process: int | str, invocation: Invocation) -> Operation:
        """Add an invocation."""
        return self.record(process, Kind.INVOKE, invocation.f, invocation.value)

    def seconds(self) -> float:
        """Seconds since the run began."""
        return (time.monotonic_ns() - self._began) / 1e9

    def close(self) -> History:
        """The history, whose file is complete."""
        with self._lock:
            if self._file:
                self._file.close()
            return History(replace(each) for each in self._operations)
