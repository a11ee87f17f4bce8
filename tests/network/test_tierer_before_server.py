"""A tierer that starts before its server waits for it; one that is stopped meanwhile ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lakestore.cli import serve
from lakestore.errors import Denied
from lakestore_demo.processes import free_ports
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.support.rights import write_auth
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "AWAIT_SECONDS", 0.05)


def test_it_waits_for_a_server_that_comes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    opened = []
    waiting = threading.Thread(
        target=lambda: opened.append(serve._awaited_lake(f"127.0.0.1:{port}", threading.Event()))
    )
    waiting.start()
    said = ""

    def has_said() -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return "waiting for a server" in said

    until(has_said, "the sentence")
    server = Server(Settings(tmp_path / "data", port=port, http_port=0))
    server.start()
    try:
        waiting.join(60)
        (lake,) = opened
        assert lake is not None
        assert lake.tables() == []
        lake.close()
    finally:
        server.close()
    assert (said + capsys.readouterr().err).count("waiting for a server") == 1


def test_it_ends_when_it_is_stopped() -> None:
    stop = threading.Event()
    stop.set()
    assert serve._awaited_lake("127.0.0.1:9", stop) is None


def test_a_server_that_refuses_it_is_an_error(tmp_path: Path) -> None:
    auth = write_auth(tmp_path / "auth.yaml", {"ann": {"*": ("admin",)}})
    server = Server(Settings(tmp_path / "data", port=0, http_port=0, auth=str(auth)))
    server.start()
    try:
        with pytest.raises(Denied):
            serve._awaited_lake(server.about["grpc"], threading.Event())
    finally:
        server.close()
