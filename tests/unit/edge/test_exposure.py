"""What a server refuses to show: no open port beyond this machine, no secret in its settings, no half of a TLS pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakestore.errors import Invalid
from lakestore_server.access import signing
from lakestore_server.edge import exposure_check
from lakestore_server.settings import Journal, Settings, Tls
from tests.support.certificates import Authority

BOTH: dict[str, Any] = {"tls": Tls(cert="server.pem", key="server.key"), "auth": "auth.yaml"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "", "192.168.0.7", "lake.example.org", "2130706433"])
def test_beyond_this_machine_takes_tls_and_auth_or_a_plain_word(host: str) -> None:
    for given, lacking in (
        ({}, "and tls.cert and auth are not set"),
        ({"tls": BOTH["tls"]}, "and auth is not set"),
        ({"auth": BOTH["auth"]}, "and tls.cert is not set"),
    ):
        with pytest.raises(Invalid, match=f"other machines, {lacking}.*--insecure"):
            exposure_check.check_exposure(Settings(Path("data"), host=host, **given))
        exposure_check.check_exposure(Settings(Path("data"), host=host, insecure=True, **given))
    exposure_check.check_exposure(Settings(Path("data"), host=host, **BOTH))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_this_machine_alone_may_listen_to_itself(host: str) -> None:
    exposure_check.check_exposure(Settings(Path("data"), host=host))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize(
    "warehouse",
    [
        "s3://me:s3cr3t@bucket/lake",
        "S3A://me:s3cr3t@bucket",
        "s3://me:s3cr3t/with/slash@bucket/lake",
        "hdfs://:s3cr3t@host:8020/lake",
        "abfss://me:@account/lake",
    ],
)
def test_a_password_in_the_warehouse_is_refused_and_not_repeated(host: str, warehouse: str) -> None:
    with pytest.raises(Invalid, match="warehouse holds a user and a password") as refusal:
        exposure_check.check_exposure(Settings(Path("data"), host=host, insecure=True, warehouse=warehouse))
    assert "s3cr3t" not in str(refusal.value)


@pytest.mark.parametrize(
    "warehouse",
    [
        "",
        "/srv/lake",
        "file:///srv/a:b@c",
        "s3://bucket/a:b@c",
        "hdfs://host:8020/x@y",
        "abfss://box@account.dfs.core.windows.net/lake",
    ],
)
def test_a_warehouse_without_a_password_is_taken(warehouse: str) -> None:
    exposure_check.check_exposure(Settings(Path("data"), warehouse=warehouse))


def test_tls_files_go_together_and_must_be_a_pair(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, other = authority.sign("server"), authority.sign("other")
    cert, key, ca = str(own.cert), str(own.key), str(authority.cert)
    assert exposure_check.keys(Tls()) is None
    found = exposure_check.keys(Tls(cert, key, ca))
    assert found is not None
    assert found.read() == (own.cert.read_bytes(), own.key.read_bytes(), authority.cert.read_bytes())
    for tls, says in (
        (Tls(cert=cert), "go together"),
        (Tls(key=key), "go together"),
        (Tls(cert=cert, client_ca=ca), "go together"),
        (Tls(client_ca=ca), "tls.client_ca goes with"),
        (Tls(cert, str(other.key)), "belong together"),
        (Tls(cert, str(tmp_path / "absent")), "cannot be used"),
        (Tls(cert, key, key), "CA .* cannot be used"),
    ):
        with pytest.raises(Invalid, match=says):
            exposure_check.keys(tls)


def test_the_key_of_access_tokens_is_kept_private_and_made_anew_if_it_is_cut_short(tmp_path: Path) -> None:
    first = exposure_check.token_key(Settings(tmp_path))
    file = tmp_path / exposure_check.TOKEN_KEY
    assert (len(first), file.stat().st_mode & 0o777) == (signing.KEY_BYTES, 0o600)
    assert exposure_check.token_key(Settings(tmp_path)) == first
    file.write_bytes(first[:5])
    second = exposure_check.token_key(Settings(tmp_path))
    assert len(second) == signing.KEY_BYTES
    assert second != first
    assert exposure_check.token_key(Settings(tmp_path)) == second


def test_servers_that_share_a_journal_take_the_key_of_access_tokens_from_one_file(tmp_path: Path) -> None:
    shared = Journal(kind="kafka", bootstrap="localhost:9092", topic="t")
    with pytest.raises(Invalid, match="needs token_key"):
        exposure_check.token_key(Settings(tmp_path / "a", journal=shared))
    file = tmp_path / "key"
    with pytest.raises(Invalid, match="cannot be read: No such file"):
        exposure_check.token_key(Settings(tmp_path / "a", journal=shared, token_key=str(file)))
    file.write_bytes(bytes(range(31)))
    with pytest.raises(Invalid, match="has 31 bytes"):
        exposure_check.token_key(Settings(tmp_path / "a", journal=shared, token_key=str(file)))
    file.write_bytes(bytes(range(33)))
    keys = {exposure_check.token_key(Settings(tmp_path / name, journal=shared, token_key=str(file))) for name in "ab"}
    assert [len(key) for key in keys] == [signing.KEY_BYTES]
