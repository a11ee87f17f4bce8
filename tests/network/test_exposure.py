"""A server process that is told what it may show: refused starts, rights read again on SIGHUP, open metrics."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest

import lakestore as ls
from lakestore.errors import NotAuthenticated
from tests.support.process import ServerProcess, refused
from tests.support.rights import token_of, write_auth
from tests.support.waiting import until

SIGNALS = 300


def test_a_server_does_not_listen_to_everyone_unasked(tmp_path: Path) -> None:
    said = refused(tmp_path / "data", ["--host", "0.0.0.0"])
    assert "can be reached from other machines, and tls.cert and auth are not set" in said
    assert "Traceback" not in said
    assert "password" in refused(tmp_path / "data", ["--warehouse", "s3://me:s3cr3t@bucket/lake"])
    with ServerProcess(tmp_path / "data", arguments=["--host", "0.0.0.0", "--insecure"]) as running:
        assert running.alive


def knows(server: ServerProcess, name: str) -> bool:
    with ls.connect(server.address, token=token_of(name)) as lake:
        try:
            lake.tables()
        except NotAuthenticated:
            return False
        return True


def test_rights_are_read_again_on_sighup_however_often_it_comes(tmp_path: Path) -> None:
    auth = write_auth(tmp_path / "auth.yaml", {"one": {"*": ["admin"]}})
    with ServerProcess(tmp_path / "data", arguments=["--auth", str(auth)]) as server:
        assert knows(server, "one")
        assert not knows(server, "two")
        for i in range(SIGNALS):
            write_auth(auth, {name: {"*": ["admin"]} for name in (("one", "two") if i % 2 else ("one",))})
            os.kill(server.pid, signal.SIGHUP)
        until(lambda: knows(server, "two"), "the new rights")
        auth.write_text("principals: {")
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: "the rights stay unchanged" in server.said(), "a look at the file")
        assert knows(server, "two"), "a file that cannot be used changes nothing"
        write_auth(auth, {"two": {"*": ["admin"]}})
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: not knows(server, "one"), "the end of the old rights")
        assert server.stop() == 0


@pytest.mark.parametrize("opened", [True, False])
def test_metrics_are_open_to_all_only_when_the_settings_say_so(tmp_path: Path, opened: bool) -> None:
    auth = write_auth(tmp_path / "auth.yaml", {"one": {"*": ["admin"]}})
    settings = tmp_path / "server.yaml"
    settings.write_text(f"auth: {auth}\nmetrics_open: {str(opened).lower()}\n")
    with ServerProcess(tmp_path / "data", arguments=["--config", str(settings)]) as server:
        url = f"http://{server.host}:{server.http_port}"
        found = httpx.get(f"{url}/metrics", timeout=30)
        assert (found.status_code, "lakestore_" in found.text) == ((200, True) if opened else (401, False))
        for path in ("/console/api/me", "/iceberg/v1/namespaces", "/iceberg/v1/config"):
            assert httpx.get(url + path, timeout=30).status_code == 401
        assert httpx.get(f"{url}/healthz", timeout=30).status_code == 200
        assert not knows(server, "nobody")
