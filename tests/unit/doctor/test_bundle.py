"""A support bundle has what helps, and nothing that opens a door."""

from __future__ import annotations

import json
import stat
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from lakestore.cli.main import cli
from lakestore.errors import Invalid
from lakestore_server.doctor import bundle
from tests.support.served import Served

SECRET = "hunter2-Zx9"
TEXTS = [
    f"s3://user:{SECRET}@store/lake",
    f"Authorization: Bearer {SECRET}",
    f"authorization=Basic {SECRET}==",
    f'{{"token": "{SECRET}"}}',
    f"AWS_SECRET_ACCESS_KEY={SECRET}",
    f"aws_access_key_id: {SECRET}",
    f"sasl.password = {SECRET}",
    f'"client_secret":"{SECRET}"',
    f"api-key: '{SECRET}'",
    f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
    f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\ncut off",
    f"postgres://u:a,b;{SECRET}@host/db",
    f"postgres://u:a@{SECRET}@host/db",
    f"postgres://u:a/{SECRET}@host/db",
    f"https://{SECRET}@host/path",
    f'password: "correct horse, {SECRET}"',
    f'{{"password":"a\\"b {SECRET}"}}',
    f"token: token: {SECRET}",
    f"password=a@{SECRET}",
    f"PGPASSWORD={SECRET}",
    f"lakestore tables --token {SECRET}",
    f"https://a.example/x?X-Amz-Signature=ab&sig={SECRET}&y=1",
    f"basic.auth.user.info=user:{SECRET}",
    f"kafka.unheard.of=a:{SECRET}",
    f"Authorization: Digest {SECRET}",
    f"<password>{SECRET}</password>",
    f"-----BEGIN CERTIFICATE-----\n{SECRET}\n-----END CERTIFICATE-----",
    f"amqp://user:{SECRET}@host",
    f"['lakestore', '--token', '{SECRET}']",
    f'["serve", "--sasl-password", "{SECRET}"]',
    f"Negotiate {SECRET}",
]
ALONE = [
    f"\npassword: correct horse {SECRET}",
    f"\nexport DB_PASSPHRASE=a,{SECRET};b",
    f"\n  - db.password = x, {SECRET}",
    f"\npassword: |\n  {SECRET}\n  {SECRET}",
    f"\nunheard:\n  of: {SECRET}",
    f"\nunheard: {SECRET} {SECRET}",
    f'\n{{"password": {{"value": "{SECRET}"}}, "unheard": ["{SECRET}"]}}',
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_is_masked_by_the_name_before_it(text: str) -> None:
    assert SECRET not in bundle.masked(f"before {text} after", {})


@pytest.mark.parametrize("text", ALONE)
def test_a_line_that_begins_with_a_secret_s_name_is_masked_to_its_end(text: str) -> None:
    assert SECRET not in bundle.masked(f"before{text}\nafter", {})
    assert bundle.masked(f"before{text}\nafter", {}).endswith("\nafter")


def test_the_end_of_a_key_whose_begin_was_cut_off_is_masked() -> None:
    assert SECRET not in bundle.masked(f"{SECRET}\n-----END PRIVATE KEY-----\nafter", {})


@pytest.mark.parametrize(
    "secret",
    [f"lakestore_{'aB3_' * 10}abc", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln", "AKIAIOSFODNN7EXAMPLE",
     "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "xoxb-2345678901-abcdefGHIJKL", "sk_live_4eC39HqLyjWDarjtT1zdp7dc",
     "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj",
     "AZaz09+/AZaz09+/AZaz09=="],
)  # fmt: skip
def test_a_secret_that_is_known_by_its_looks_is_masked_anywhere(secret: str) -> None:
    assert bundle.masked(f"a call with {secret}, refused", {}) == "a call with ********, refused"


def test_values_of_this_process_are_masked_as_json_and_urls_write_them() -> None:
    environment = {"PGPASSWORD": 'p"ä/ss 1', "MYSQL_PWD": "hunter2"}
    text = json.dumps({"a": 'p"ä/ss 1'}) + " p%22%C3%A4%2Fss%201 hunter2"
    assert bundle.masked(text, environment) == '{"a": "********"} ******** ********'


def test_long_lines_without_a_secret_take_no_time() -> None:
    for text in ("a" * 200_000, "a." * 100_000, "://" * 50_000, "token" * 40_000, "--a" * 50_000, "a://b:c" * 30_000):
        bundle.masked(text, {})  # a quadratic search takes an hour here, and the test its limit


@given(st.sampled_from(TEXTS), st.text(max_size=20), st.text(max_size=20))
def test_it_is_masked_whatever_stands_around_it(text: str, before: str, after: str) -> None:
    assert SECRET not in bundle.masked(f"{before} {text} {after}", {})


def test_values_of_this_process_are_masked_wherever_they_are() -> None:
    environment = {"LAKESTORE_TOKEN": SECRET, "AWS_ACCESS_KEY_ID": "AKIA12345", "TOKEN_FILE": "/etc/token", "KEY": "a"}
    text = bundle.masked(f"a call with {SECRET} of AKIA12345 by /etc/token", environment)
    assert text == "a call with ******** of ******** by /etc/token"


def test_texts_that_hold_no_secret_are_left_alone() -> None:
    text = "/data/Lake1/warehouse/Shop-orders/00003-49cb14cd-c74d-4920-a29f-89083c9a2df4.metadata.json\n"
    text += "Linux-6.18.44-fc-x86_64-with-glibc2.36 2026-11-26T17:16:14Z lakestore.v1.Lakestore/ListDroppedTables\n"
    text += "lakestore_rows_total 12\nhttp://localhost:7341/iceberg lsn=4 table=shop.orders key_columns 2\n"
    assert bundle.masked(text, {}) == text


def test_the_bundle_of_a_running_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKESTORE_SLOW_SECONDS", "4")
    log = tmp_path / "server.log"
    log.write_text("".join(f"line {n} token={SECRET}\n" for n in range(60_000)))
    config = tmp_path / "server.yaml"
    config.write_text(f"data: {tmp_path / 'data'}\nport: 0\nhttp_port: 0\n")
    target = tmp_path / "bundle.tar.gz"
    with Served(tmp_path / "data", ports=True) as served:
        table = served.lake.create_table("a.t", schema=pa.schema([("v", pa.string())]))
        table.append([{"v": "a row of somebody"}])
        said = ["support-bundle", "-c", str(config), "--server", served.server.about["grpc"]]
        run = CliRunner().invoke(cli, [*said, "--log", str(log), "-o", str(target)])
    assert run.exit_code == 0, run.output
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with tarfile.open(target) as archive:
        parts = {each.name.partition("/")[2]: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]
    assert sorted(parts) == [
        "doctor.json", "files.json", "logs/0-server.log", "metrics.txt", "settings.yaml", "status.json",
    ]  # fmt: skip
    whole = b"".join(parts.values())
    assert SECRET.encode() not in whole
    assert b"a row of somebody" not in whole
    assert json.loads(parts["status.json"])["tables"]
    assert b"lakestore_rows_total 1" in parts["metrics.txt"]
    assert b"slow_seconds: 4.0  # LAKESTORE_SLOW_SECONDS" in parts["settings.yaml"]
    assert any(each["file"].startswith("journal") for each in json.loads(parts["files.json"]))
    assert len(parts["logs/0-server.log"]) <= bundle.LOG_BYTES_MAX
    assert parts["logs/0-server.log"].startswith(b"line ")
    again = CliRunner().invoke(cli, [*said, "-o", str(target)])
    assert isinstance(again.exception, Invalid)
    assert again.exception.message == f"{target} is there already: name another file, or remove it"


def test_doctor_tells_of_a_server_and_of_one_that_is_not_there(tmp_path: Path) -> None:
    with Served(tmp_path / "data", ports=True) as served:
        run = CliRunner().invoke(cli, ["doctor", "--json", "--server", served.server.about["grpc"]])
        found = {each["about"]: each for each in json.loads(run.stdout)}
        assert run.exit_code == 0
        assert [found[name]["verdict"] for name in ("server", "damage", "catalog")] == ["ok", "ok", "ok"]
    gone = CliRunner().invoke(cli, ["doctor", "--server", "127.0.0.1:9"])
    assert "WARNING  server" in gone.output
    offline = CliRunner().invoke(
        cli, ["doctor", "--offline", "--data", str(tmp_path / "full"), "--warehouse", "ftp://x"]
    )
    assert offline.exit_code == 1
    assert "FAILED   warehouse" in offline.output


@pytest.mark.parametrize("http", ["{file}#", "{file}?", "host:1/{file}?", "", "user:x@host:1", "[::1]:1/x#"])
def test_a_server_cannot_have_a_file_of_this_machine_put_into_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, http: str
) -> None:
    (tmp_path / "own").write_text("words of this machine")
    for scheme in ("file", "http"):
        said = {"scheme": scheme, "http": http.format(file=tmp_path / "own"), "health": "serving"}
        monkeypatch.setattr("lakestore.cli.doctor._status", lambda _, said=said: (said, ""))
        target = tmp_path / f"{scheme}.tar.gz"
        run = CliRunner().invoke(cli, ["support-bundle", "--server", "127.0.0.1:9", "-o", str(target)])
        assert run.exit_code == 0, run.output
        with tarfile.open(target) as archive:
            parts = {each.name.partition("/")[2]: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]
        assert parts["metrics.txt"] == b"the server names no HTTP port\n"
        assert b"words of this machine" not in b"".join(parts.values())
