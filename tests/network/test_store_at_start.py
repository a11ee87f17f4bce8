"""A server meets its store: one sentence names what is wrong and the variable to set, before a row is taken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Invalid, LakestoreError
from lakestore_server.catalog import store_probe
from lakestore_server.catalog.metadata_store import MetadataStore, storage_for
from lakestore_server.doctor import visit
from lakestore_server.journals import store_errors
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.support.certificates import Authority
from tests.support.guarded_store import KEY, GuardedStore, LateObjects, LaxObjects

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[GuardedStore]:
    with GuardedStore() as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


def started(folder: Path, warehouse: str) -> str:
    """The error of a start; empty if the server starts."""
    try:
        Server(Settings(folder, port=0, http_port=0, warehouse=warehouse)).close()
    except LakestoreError as error:
        assert not {word for word in ("Debug", "\n", KEY) if word in error.message}, error.message
        return error.message
    return ""


WRONG = {
    "key": ({"AWS_ACCESS_KEY_ID": "AKIANOBODY"}, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    "secret": ({"AWS_SECRET_ACCESS_KEY": "guess"}, "set AWS_SECRET_ACCESS_KEY"),
    "region": ({"AWS_REGION": "us-east-1"}, "set AWS_REGION"),
    "endpoint": ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "nothing listens there"),
    "name": ({"AWS_ENDPOINT_URL": "http://no-such-host.invalid"}, "failed to lookup"),
    "no address": ({"AWS_ENDPOINT_URL": "127.0.0.1:9000"}, "AWS_ENDPOINT_URL '127.0.0.1:9000' is no address"),
    "http": ({"AWS_ALLOW_HTTP": "false"}, "set AWS_ALLOW_HTTP=true"),
    "empty switch": ({"AWS_ALLOW_HTTP": ""}, "the variable AWS_ALLOW_HTTP is empty"),
    "empty region": ({"AWS_REGION": ""}, "the variable AWS_REGION is empty"),
    "empty key": ({"AWS_ACCESS_KEY_ID": ""}, "the variable AWS_ACCESS_KEY_ID is empty"),
}


def test_a_certificate_of_an_unknown_authority_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_probe, "PAUSE_SECONDS", 0.0)
    with GuardedStore(tls=Authority(tmp_path).sign("store")) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        said = started(tmp_path / "data", store.warehouse)
    assert "this machine does not know the authority of its certificate: set SSL_CERT_FILE" in said


@pytest.mark.parametrize("about", WRONG)
def test_a_wrong_variable_is_named_by_serve_and_by_doctor(
    store: GuardedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, about: str
) -> None:
    monkeypatch.setattr(store_probe, "PAUSE_SECONDS", 0.0)
    variables, said = WRONG[about]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert said in started(tmp_path / "data", store.warehouse)
    found = [each for each in visit.looked("warehouse", lambda: visit.takes(store.warehouse))]
    assert [each.verdict for each in found] == ["failed"]
    assert said in found[0].found
    assert not store.store.objects.keys()


def test_a_bucket_that_is_not_there_is_named(store: GuardedStore, tmp_path: Path) -> None:
    said = started(tmp_path / "data", "s3://other/lake")
    assert "has no bucket other" in said
    assert "AWS_ENDPOINT_URL" in said


@pytest.mark.parametrize("objects", [LaxObjects, LateObjects])
def test_a_store_with_two_winners_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, objects: type[LaxObjects | LateObjects]
) -> None:
    """The second kind passes every check that puts one object after the other."""
    with GuardedStore(objects()) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        said = started(tmp_path / "data", store.warehouse)
        assert "cannot hold a warehouse: of 8 puts" in said
        (found,) = visit.looked("warehouse", lambda: visit.takes(store.warehouse))
        assert found.verdict == "failed"
        assert not store.store.objects.keys(), "the trial leaves nothing"


def test_a_new_warehouse_is_raced_once(store: GuardedStore, tmp_path: Path) -> None:
    assert not started(tmp_path / "one", store.warehouse)
    mark = f"lakestore/lake/{store_probe.NAME}"
    assert store.store.objects.keys() == [mark]
    assert json.loads(store.store.objects.get(mark).data)["races"] == 10
    store.guard.used.clear()
    assert not started(tmp_path / "two", store.warehouse)
    assert [action for _, action, _ in store.guard.used] == ["s3:GetObject", "s3:PutObject"]


def test_keys_that_may_only_read_are_refused(
    store: GuardedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAREADER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "reader-Secret-1")
    assert "grant s3:GetObject, s3:PutObject" in started(tmp_path / "data", store.warehouse)


def test_a_lake_with_tables_starts_while_its_store_is_away(
    store: GuardedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_probe, "PAUSE_SECONDS", 0.0)
    with ls.open(tmp_path / "data", warehouse=store.warehouse) as lake:
        lake.create_table("a.b", schema=SCHEMA).append([{"id": 1}])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("lakestore_server.catalog.metadata_store.TRIES_SECONDS", 0.0)
    monkeypatch.setattr("lakestore_server.catalog.metadata_store.TRY_SECONDS", timedelta(seconds=0.1))
    with ls.open(tmp_path / "data", warehouse=store.warehouse) as lake:
        assert lake.table("a.b").append([{"id": 2}])


def test_a_refusal_of_a_running_server_is_an_error_and_not_repeated(store: GuardedStore, tmp_path: Path) -> None:
    """The keys are revoked while the server runs: a client does not wait a minute for nothing."""
    with ls.open(tmp_path / "data", warehouse=store.warehouse) as lake:
        account = store.guard.accounts.pop(KEY)
        with pytest.raises(Invalid, match="does not know the access key: set AWS_ACCESS_KEY_ID") as caught:
            lake.create_table("a.b", schema=SCHEMA)
        assert "Debug" not in str(caught.value)
        store.guard.accounts[KEY] = account
        lake.create_table("a.b", schema=SCHEMA)


def test_a_missing_bucket_is_not_a_missing_object(store: GuardedStore, tmp_path: Path) -> None:
    """A read that finds no bucket must not say that the lake of a table is gone."""
    reads = MetadataStore(storage_for(store.warehouse))
    with pytest.raises(LakestoreError, match="does not exist"):
        reads.load(f"{store.warehouse}/a/b/metadata/1.json")
    store.guard.buckets.clear()
    with pytest.raises(Invalid, match="has no bucket lakestore"):
        reads.load(f"{store.warehouse}/a/b/metadata/1.json")


@pytest.mark.parametrize(
    ("status", "code"), [(503, "SlowDown"), (500, "InternalError"), (400, "RequestTimeout"), (404, "NoSuchKey")]
)
def test_an_answer_that_may_change_is_no_refusal(status: int, code: str) -> None:
    text = f"Server returned non-2xx status code: {status} x: <Error><Code>{code}</Code></Error>"
    assert not store_errors.refusal(OSError(text), "s3://b/lake")


def test_a_dump_of_obstore_is_told_in_one_line() -> None:
    dump = 'Generic S3 error\n\nDebug source:\nOs { code: 111, kind: ConnectionRefused, message: "x" }'
    assert store_errors.brief(OSError(dump)) == "nothing listens there"
    assert store_errors.brief(OSError("first\nsecond")) == "first"
