"""`lakestore tier` follows the leader of several servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self

import pytest

from lakestore.cli import serve
from lakestore.cli.main import run_command


class LedTierer:
    """A tierer whose leader moves once."""

    runs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run_forever(self, stop: threading.Event) -> None:
        LedTierer.runs += 1

    @property
    def has_moved(self) -> bool:
        return LedTierer.runs == 1


def test_a_leader_that_moves_gets_a_session_and_a_tierer_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions: list[str] = []
    ended: list[Any] = []

    @contextmanager
    def opened(server: str) -> Iterator[Any]:
        yield SimpleNamespace(address=server, transport=SimpleNamespace(credentials=None, address="b:2"))

    def session(server: str, *_: object) -> str:
        sessions.append(server)
        return f"session {len(sessions)}"

    monkeypatch.setattr(LedTierer, "runs", 0)
    monkeypatch.setattr(serve, "open_lake", opened)
    monkeypatch.setattr(serve, "emit_log", lambda _: None)
    monkeypatch.setattr(serve, "stopped_by_signals", threading.Event)
    monkeypatch.setattr(serve, "_session", session)
    monkeypatch.setattr(serve, "_tierer", lambda *_: LedTierer())
    monkeypatch.setattr(serve, "_end", ended.append)
    assert run_command(["tier", "--server", "a:1,b:2"]) == 0
    assert sessions == ["a:1,b:2"] * 2
    assert LedTierer.runs == 2
    assert ended == ["session 2"]
    assert "b:2 leads now" in capsys.readouterr().err
