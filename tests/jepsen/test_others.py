"""The shapes in which others' checkers read our histories."""

from __future__ import annotations

from jepsen import others
from tests.jepsen.hand_made import Written


def test_registers_are_calls_of_one_key() -> None:
    made = Written()
    rows = [["0/k0", {"a": 1, "b": 1}], ["0/k1", {"a": 2, "b": 2}]]
    asked = {"form": "table", "kind": "upsert", "rows": rows}
    made.call(3, "write", asked, {"token": "A", "said": None}).unknown(4, "write", {**asked, "kind": "delete"})
    read = {"keys": ["0/k0", "0/k1"], "by": "now"}
    made.call(5, "lookup", read, {"token": "", "rows": {"0/k0": [1, 1, None]}, "also": None, "torn": []})
    told = [(call.process, call.f, str(call.kind), call.value) for call in others.registers(made.history()).calls()]
    assert told[:3] == [
        (3000, "write", "ok", ["0/k0", [1, 1, None]]),
        (3001, "write", "ok", ["0/k1", [2, 2, None]]),
        (4000, "write", "info", ["0/k0", None]),
    ]
    assert told[4:] == [(5000, "read", "ok", ["0/k0", [1, 1, None]]), (5001, "read", "ok", ["0/k1", None])]


def test_logs_are_sends_and_polls() -> None:
    made = Written()
    made.call(0, "send", {"form": "append", "parts": [["t", 7, 2]]}, {"token": "A", "acked": [["t", 7, 2]]})
    made.fault("kill-begin").call(1, "poll", {"anew": False}, {"rows": {"t/0": [[0, 7], [1, 8]]}})
    history = others.kafka(made.history())
    assert [call.value for call in history.calls()] == [
        [["send", "t", 7], ["send", "t", 8]],
        [["poll", {"t/0": [[0, 7], [1, 8]]}]],
    ]
    assert [each.index for each in history] == list(range(5))
