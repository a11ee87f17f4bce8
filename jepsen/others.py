"""Histories in the shapes that others' checkers read: Knossos' registers by key, and Jepsen's workload for Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from jepsen.checkers.registers import READS
from jepsen.history import History
from jepsen.operation import NEMESIS, Call, Kind, Operation

SPREAD = 1_000
"""A call of several keys becomes one call of each, by processes of their own: the process's number times this, and
counting."""


def registers(history: History) -> History:
    """Upserts, deletes and reads of the newest state as `read` and `write` with the value [key, a row or nil]: for
    `jepsen.independent` over a register. Only of tables whose engine is `upsert`; inserts are left out."""

    def calls(call: Call) -> Iterator[tuple[str, Any, Any]]:
        value = call.invoked.value
        if call.f == "write":
            for key, columns in value["rows"]:
                row = None if value["kind"] == "delete" else [columns.get(name) for name in ("a", "b", "v")]
                yield "write", [key, row], [key, row]
        elif call.f in READS and value["by"] == "now" and value["keys"] is not None:
            rows = call.value["rows"] if call.kind is Kind.OK else {}
            for key in value["keys"]:
                yield "read", [key, None], [key, rows.get(key)]

    return _spread(history, calls)


def kafka(history: History) -> History:
    """Sends as [[:send key number]…] and polls as [[:poll {key [[offset number]…]}]], as Jepsen's own Kafka histories.

    The key of a send is its table: the bucket, and so the offset, is known to the polls alone.
    """

    def calls(call: Call) -> Iterator[tuple[str, Any, Any]]:
        value = call.invoked.value
        if call.f == "send":
            numbers = [
                ["send", table, number]
                for table, first, many in value["parts"]
                for number in range(first, first + many)
            ]
            yield "send", numbers, numbers
        elif call.f in ("poll", "assign", "read"):
            yield "poll", [["poll"]], [["poll", call.value["rows"]]] if call.kind is Kind.OK else [["poll"]]

    return _spread(history, calls)


def _spread(history: History, calls: Callable[[Call], Iterator[tuple[str, Any, Any]]]) -> History:
    """A history of other calls, each at the places of the one that it comes from."""
    found: list[tuple[int, Operation]] = []
    for call in history.calls():
        for at, (f, asked, told) in enumerate(calls(call)):
            process = int(call.process) * SPREAD + at
            found.append((call.invoked.index, replace(call.invoked, process=process, f=f, value=asked)))
            if call.completed is not None:
                value = told if call.kind is Kind.OK else asked
                found.append((call.completed.index, replace(call.completed, process=process, f=f, value=value)))
    found += [(each.index, each) for each in history if each.process == NEMESIS]
    found.sort(key=lambda each: each[0])
    return History(replace(each, index=index) for index, (_, each) in enumerate(found))


FORMS: dict[str, Callable[[History], History]] = {"log": kafka, "register": registers}
"""Workload to the other shape of its history."""
