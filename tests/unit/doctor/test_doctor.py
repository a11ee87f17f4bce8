"""The doctor finds what would stop a server or lose data, says what to do, and leaves nothing behind."""

from __future__ import annotations

import socket
import stat
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.errors import Unavailable
from lakestore.limits import Limits
from lakestore_server.catalog.metadata_store import LocalStorage
from lakestore_server.doctor import visit
from lakestore_server.doctor.visit import Finding, findings
from lakestore_server.edge.tls import TlsKeys
from lakestore_server.host.sandbox import Support
from lakestore_server.settings import Settings, Tls
from tests.support.certificates import Authority
from tests.support.served import Served


def verdicts(found: Iterable[Finding]) -> dict[str, str]:
    return {each.about: each.verdict for each in found}


def of(about: str, found: Iterable[Finding]) -> Finding:
    return next(each for each in found if each.about == about)


def names(place: Path) -> set[Path]:
    return set(place.rglob("*"))


def test_a_machine_that_is_fit_has_no_failed_finding_and_is_left_as_it_was(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "data", port=0, http_port=0)
    found = list(findings(settings))
    assert all(each.verdict != "failed" for each in found), found
    assert all(each.remedy for each in found if each.verdict != "ok")
    assert not names(tmp_path)
    settings.data.mkdir()
    list(findings(settings))
    assert not names(settings.data)


def test_a_folder_with_a_server_is_looked_at_and_left_alone(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as served:
        served.lake.create_table("a.t", schema=pa.schema([("v", pa.int64())]))
        before = {path: path.stat().st_mtime_ns for path in names(tmp_path) if path.is_file()}
        found = list(findings(Settings(tmp_path / "data", port=0, http_port=0)))
        assert "in use by a running server" in of("data folder", found).found
        assert {path: path.stat().st_mtime_ns for path in names(tmp_path) if path.is_file()} == before


def test_too_little_room_fails_and_little_room_warns(tmp_path: Path) -> None:
    assert verdicts(visit.room(tmp_path, Limits(disk_free_bytes=1 << 50))) == {"disk": "failed"}
    (found,) = visit.room(tmp_path, Limits(journal_bytes=1 << 36))
    assert (found.verdict, found.about) == ("warning", "disk")


@pytest.mark.parametrize(
    ("name", "verdict"), [("ext4", "ok"), ("tmpfs", "warning"), ("overlay", "warning"), ("nfs4", "warning")]
)
def test_file_systems_that_end_or_lie_elsewhere_warn(tmp_path: Path, name: str, verdict: str) -> None:
    mounts, disk = tmp_path / "mounts", tmp_path / "a disk #1"
    escaped = str(disk).replace(" ", r"\040").replace("#", r"\043")
    mounts.write_text(f"disk / ext4 rw 0 0\nit {escaped} {name} rw 0 0\n")
    assert verdicts(visit.kind(disk / "x", mounts)) == {"file system": verdict}


def test_a_port_that_is_taken_fails_with_its_name(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = list(visit.free(Settings(tmp_path, port=port, http_port=0)))
    assert verdicts(found) == {"port of gRPC": "failed", "port of HTTP": "ok"}
    assert str(port) in found[0].found


def test_a_certificate_is_judged_by_the_time_it_holds(tmp_path: Path) -> None:
    signed = Authority(tmp_path).sign("server", days=30)
    keys = TlsKeys(signed.cert, signed.key)
    assert verdicts(visit.certificate(keys)) == {"tls": "ok"}
    assert verdicts(visit.certificate(keys, now=time.time() + 20 * visit.DAY_SECONDS)) == {"tls": "warning"}
    ended = Authority(tmp_path, "old").sign("server", days=-1)
    (found,) = visit.certificate(TlsKeys(ended.cert, ended.key))
    assert (found.verdict, "expired" in found.found) == ("failed", True)


def test_settings_that_no_server_takes_fail_by_their_sentence(tmp_path: Path) -> None:
    exposed = findings(Settings(tmp_path / "data", host="0.0.0.0", port=0, http_port=0))
    assert of("exposure", exposed).verdict == "failed"
    auth = tmp_path / "auth.yaml"
    auth.write_text("principals: {}\n")
    auth.chmod(0o644)
    found = of("exposure", findings(Settings(tmp_path / "data", auth=str(auth), port=0, http_port=0)))
    assert "chmod 600" in found.found
    half = findings(Settings(tmp_path / "data", tls=Tls(cert="x.pem"), port=0, http_port=0))
    assert "tls.cert and tls.key go together" in of("exposure", half).found


class Replacing(LocalStorage):
    """A store that puts over what is there."""

    def write_new(self, location: str, data: bytes) -> None:
        """Put."""
        path = Path(location.removeprefix("file://"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


class Forgetful(LocalStorage):
    """A store whose lists are late."""

    def names(self, folder: str) -> list[str]:
        """Nothing."""
        return []


def test_a_store_that_replaces_or_does_not_list_fails(tmp_path: Path) -> None:
    place = tmp_path.as_uri()
    assert verdicts(visit.takes(place, LocalStorage(place))) == {"warehouse": "ok"}
    (found,) = visit.takes(place, Replacing(place))
    assert (found.verdict, "If-None-Match" in found.remedy) == ("failed", True)
    (found,) = visit.takes(place, Forgetful(place))
    assert found.verdict == "failed"
    assert not names(tmp_path)


def java(place: Path, says: str) -> dict[str, str]:
    program = place / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"JAVA_HOME": str(place)}


def test_the_java_that_spark_would_run_is_asked_its_version(tmp_path: Path) -> None:
    def asked(says: str) -> str:
        (found,) = visit.java(java(tmp_path, says))
        return f"{found.verdict}: {found.found}"

    assert asked("echo 'openjdk version \"21.0.2\" 2024-01-16' >&2").startswith("ok")


def test_a_machine_without_java_is_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_java(environment: Mapping[str, str]) -> Path:
        raise Unavailable("there is no Java")

    monkeypatch.setattr(visit, "java_home", no_java)
    assert verdicts(visit.java()) == {"java": "warning"}


def test_few_open_or_mapped_files_warn_and_so_does_little_memory() -> None:
    assert verdicts(visit.limits_of_system(maps=1_000, files=256)) == {
        "open files": "warning",
        "mapped files": "warning",
    }
    assert verdicts(visit.memory_of(Limits(queue_bytes=1 << 36))) == {"memory": "warning"}


def test_a_machine_without_landlock_warns() -> None:
    assert verdicts(visit.sandbox_of(Support(7, seccomp=True))) == {"sandbox": "ok"}
    (found,) = visit.sandbox_of(Support(0, seccomp=True))
    assert found.verdict == "warning"
    assert "no Landlock: a query's process may read" in found.found
