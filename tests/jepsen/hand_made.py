"""Histories that are written down call by call."""

from __future__ import annotations

from typing import Any, Self

from jepsen.history import History, Recorder
from jepsen.operation import NEMESIS, Invocation, Kind
from jepsen.workload import Workload


class Written:
    """A history in the making. Calls follow one another, unless `begin` and `end` say otherwise."""

    def __init__(self) -> None:
        self._recorder = Recorder()

    def call(self, process: int, f: str, value: Any = None, answer: Any = None, kind: Kind = Kind.OK) -> Self:
        """A call and its outcome; what is answered is the value unless said."""
        self.begin(process, f, value)
        return self.end(process, f, value if answer is None else answer, kind)

    def failed(self, process: int, f: str, value: Any = None) -> Self:
        """A call that did not happen."""
        return self.call(process, f, value, kind=Kind.FAIL)

    def unknown(self, process: int, f: str, value: Any = None) -> Self:
        """A call that may have happened."""
        return self.call(process, f, value, kind=Kind.INFO)

    def begin(self, process: int, f: str, value: Any = None) -> Self:
        """A call's beginning."""
        self._recorder.invoke(process, Invocation(f, value))
        return self

    def end(self, process: int, f: str, value: Any = None, kind: Kind = Kind.OK, error: str = "") -> Self:
        """A call's end."""
        self._recorder.record(process, kind, f, value, error)
        return self

    def fault(self, f: str, value: Any = None) -> Self:
        """Something that a nemesis did."""
        self._recorder.record(NEMESIS, Kind.INFO, f, value)
        return self

    def history(self) -> History:
        """All of it."""
        return self._recorder.close()


def names(workload: Workload, written: Written) -> set[str]:
    """The names of the anomalies that a workload finds."""
    return {each.name for each in workload.check(written.history())}
