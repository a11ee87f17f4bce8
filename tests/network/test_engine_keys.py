"""Engines read a warehouse in S3 without a key of their own: the catalog gives them one, by rights.

The store checks every signature (`tests.support.guarded_store`). The server is a process of its own, and the engines
here have no variable of AWS. So an engine that reads rows has the key from the catalog.
"""

from __future__ import annotations

import json
import re
import tarfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from click.testing import CliRunner
from duckdb_extensions import import_extension
from pyiceberg.catalog import load_catalog

import lakestore as ls
from lakestore.cli.main import cli
from lakestore.errors import Invalid
from lakestore_server.access.principals import ANYONE, Grant, Principal
from lakestore_server.catalog.engine_keys import EngineKeys, TableFiles, policy_of
from lakestore_server.settings import EngineKeys as KeySettings
from tests.support.guarded_store import KEY, READER_KEY, READER_SECRET, REGION, ROLE, SECRET, GuardedStore
from tests.support.process import ServerProcess
from tests.support.rights import token_of, write_auth

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::polars.exceptions.PerformanceWarning")

ROWS = 40
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
DELEGATION = {"X-Iceberg-Access-Delegation": "vended-credentials"}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(scope="module")
def store() -> Iterator[GuardedStore]:
    with GuardedStore() as made:
        yield made


@pytest.fixture(scope="module")
def server(store: GuardedStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose engines get the key that only reads for cuts."""
    folder = tmp_path_factory.mktemp("keys")
    reader = folder / "reader.env"
    reader.write_text(
        f"# for engines\nexport AWS_ACCESS_KEY_ID='{READER_KEY}'\nAWS_SECRET_ACCESS_KEY={READER_SECRET}\n"
    )
    variables = {**store.environment, "LAKESTORE_ENGINE_KEYS_READ_FILE": str(reader)}
    running = ServerProcess(folder / "data", arguments=["--warehouse", store.warehouse], environment=variables)
    with ls.connect(running.address) as lake:
        orders = lake.create_table("shop.orders", schema=SCHEMA, primary_key=["id"])
        orders.upsert([{"id": number, "v": f"é {number}"} for number in range(ROWS)])
        orders.upsert([{"id": 1, "v": "again"}])
    yield running
    running.kill()


def printed(address: str, engine: str) -> list[str]:
    result = CliRunner().invoke(cli, ["connect", engine, "--server", address, "--table", "shop.orders"])
    assert result.exit_code == 0, result.output
    assert not {word for word in (KEY, SECRET, READER_KEY, READER_SECRET) if word in result.output}
    return result.output.splitlines()


def get(url: str, headers: Mapping[str, str] = {}) -> tuple[dict[str, Any], Mapping[str, str]]:
    with urllib.request.urlopen(urllib.request.Request(url, headers=dict(headers))) as answer:
        return json.loads(answer.read()), answer.headers


def by_duckdb(lines: list[str]) -> list[Any]:
    text = re.sub(r"--.*", "", "\n".join(lines))
    text = re.sub(r"INSTALL \w+; ", "", text)
    with duckdb.connect() as connection:
        for name in ("avro", "httpfs", "iceberg"):
            import_extension(name, con=connection)
        return [connection.execute(part).fetchall() for part in text.split(";") if part.strip()]


def test_the_printed_lines_of_duckdb_need_no_key(server: ServerProcess, store: GuardedStore) -> None:
    store.guard.used.clear()
    said = by_duckdb(printed(server.address, "duckdb"))
    assert said[-3:] == [[(ROWS,)], [(ROWS,)], [(0,)]]
    assert {key for key, _, _ in store.guard.used} >= {READER_KEY}


@pytest.mark.parametrize("engine", ["pyiceberg", "polars"])
def test_the_printed_lines_of_python_need_no_key(server: ServerProcess, store: GuardedStore, engine: str) -> None:
    store.guard.used.clear()
    *head, now, earlier, lake = printed(server.address, engine)
    known: dict[str, Any] = {}
    exec("\n".join(head), known)
    assert [len(eval(line, known)) for line in (now, earlier, lake)] == [ROWS, ROWS, 0]
    assert {key for key, _, _ in store.guard.used} >= {READER_KEY}


def test_a_table_of_another_engine_is_written_by_a_key_of_the_catalog(server: ServerProcess) -> None:
    catalog = load_catalog("lake", type="rest", uri=f"http://{server.host}:{server.http_port}/iceberg")
    catalog.create_namespace_if_not_exists("other")
    table = catalog.create_table("other.events", schema=SCHEMA)
    table.append(pa.table({"id": [1, 2], "v": ["a", "b"]}, schema=SCHEMA))
    assert len(catalog.load_table("other.events").scan().to_arrow()) == 2


def test_keys_stand_only_in_answers_that_ask_for_them(server: ServerProcess) -> None:
    base = f"http://{server.host}:{server.http_port}/iceberg/v1"
    for path in ("now/namespaces/shop/tables/orders", "namespaces/shop/tables/orders"):
        plain, _ = get(f"{base}/{path}")
        assert plain["config"] == {}
        assert "storage-credentials" not in plain
        asked, headers = get(f"{base}/{path}", {**DELEGATION, "If-None-Match": "*"})
        key = READER_KEY if path.startswith("now") else KEY
        assert asked["config"]["s3.access-key-id"] == key
        assert asked["config"]["s3.path-style-access"] == "true"
        entries = asked["storage-credentials"]
        assert all(each["config"] == asked["config"] for each in entries)
        prefixes = [each["prefix"] for each in entries]
        if path.startswith("now"):
            assert len(prefixes) == 2, "DuckDB takes a lone entry for the table's own folder"
            assert all(each.startswith("s3://lakestore/lake/") and each.endswith("/") for each in prefixes)
        else:
            assert prefixes == ["s3://lakestore/lake/"]
        assert headers["cache-control"] == "no-store"
        assert "secret" not in json.dumps(asked["metadata"]).lower()
    defaults = get(f"{base}/config?warehouse=now")[0]["defaults"]
    assert defaults["client.region"] == REGION
    assert not {name for name in defaults if "key" in name}


def test_the_next_key_of_a_table_has_a_path_of_its_own(server: ServerProcess) -> None:
    base = f"http://{server.host}:{server.http_port}/iceberg/v1"
    for path, key in (("now/namespaces/shop/tables/orders", READER_KEY), ("namespaces/shop/tables/orders", KEY)):
        (found,) = get(f"{base}/{path}/credentials")[0]["storage-credentials"]  # Iceberg's Java refuses two
        assert found["config"]["s3.access-key-id"] == key
        assert any(line.endswith("/tables/{table}/credentials") for line in get(f"{base}/config")[0]["endpoints"])


def test_no_other_output_has_a_secret(server: ServerProcess, store: GuardedStore, tmp_path: Path) -> None:
    """Metadata and every other object of the warehouse, status, describe, metrics, the bundle, errors, the log."""
    texts = {key: store.store.objects.get(key).data for key in store.store.objects.keys()}
    for command in ("status --json", "status", "describe shop.orders", "tables", "connect spark", "connect trino"):
        texts[command] = CliRunner().invoke(cli, [*command.split(), "--server", server.address]).output.encode()
    bundle, log = tmp_path / "bundle.tar.gz", tmp_path / "server.log"
    log.write_text(server.said())
    options = ["--server", server.address, "--data", str(server.data), "--log", str(log), "-o", str(bundle)]
    made = CliRunner().invoke(cli, ["support-bundle", *options], env=store.environment)
    assert made.exit_code == 0, made.output
    with tarfile.open(bundle) as opened:
        parts = {member.name: opened.extractfile(member) for member in opened.getmembers()}
        texts |= {f"bundle {name}": part.read() for name, part in parts.items() if part}
    account = store.guard.accounts.pop(KEY)
    with ls.connect(server.address) as lake, pytest.raises(Invalid) as caught:
        lake.create_table("shop.refused", schema=SCHEMA)
    store.guard.accounts[KEY] = account
    texts["error"] = str(caught.value).encode()
    texts["log"] = server.said().encode()
    for file in (path for path in server.data.rglob("*") if path.is_file()):
        texts[str(file)] = file.read_bytes()
    with urllib.request.urlopen(f"http://{server.host}:{server.http_port}/metrics") as answer:
        texts["metrics"] = answer.read()
    assert len(texts) > 15
    for secret in (SECRET, READER_SECRET):
        assert not [name for name, text in texts.items() if secret.encode() in text]


def keys(
    store: GuardedStore, *, environment: Mapping[str, str] | None = None, is_local: bool = True, **settings: Any
) -> EngineKeys:
    variables = store.environment if environment is None else environment
    return EngineKeys(KeySettings(**settings), store.warehouse, is_local=is_local, environment=variables)


def grant(rights: str, tables: str) -> Principal:
    return Principal("ann", (Grant(frozenset(rights.split()), (tables,)),))


def files(store: GuardedStore, table: str = "shop.orders", right: str = "tier") -> TableFiles:
    return TableFiles(table, (f"{store.warehouse}/{table.replace('.', '/')}",), right)


def key_in(answer: dict[str, Any]) -> str:
    return str(answer["config"]["s3.access-key-id"]) if answer else ""


def test_a_static_key_needs_a_right_on_every_table(store: GuardedStore, tmp_path: Path) -> None:
    reader = tmp_path / "reader"
    reader.write_text(f"AWS_ACCESS_KEY_ID={READER_KEY}\nAWS_SECRET_ACCESS_KEY={READER_SECRET}\n")
    one, two = keys(store), keys(store, read_file=str(reader))
    cases = [
        (ANYONE, KEY, KEY),
        (grant("read tier", "*"), KEY, KEY),
        (grant("read", "*"), "", READER_KEY),
        (grant("read write", "*"), "", READER_KEY),
        (grant("read tier", "shop.*"), "", ""),
        (grant("read", "shop.orders"), "", ""),
        (grant("admin", "other.*"), "", ""),
    ]
    assert [(key_in(one.answer(who, files(store))), key_in(two.answer(who, files(store)))) for who, *_ in cases] == [
        (first, second) for _, first, second in cases
    ]
    assert key_in(two.answer(ANYONE, files(store, right=""))) == READER_KEY, "nobody writes a cut"
    assert not one.answer(ANYONE, TableFiles("a.b", ("s3://elsewhere/a",), "tier")), "no key for another bucket"
    assert SECRET not in repr(one.answer) + repr(vars(one).get("_roles"))


def test_auto_gives_no_key_where_everybody_would_get_it(store: GuardedStore) -> None:
    assert keys(store).kind == "static"
    assert keys(store, is_local=False).kind == "never"
    assert keys(store, environment={}).kind == "never"
    assert keys(store, is_local=False, give="static").kind == "static"
    assert keys(store, give="never").answer(ANYONE, files(store)) == {}
    with pytest.raises(Invalid, match="the environment lacks AWS_ACCESS_KEY_ID"):
        keys(store, environment={}, give="static")
    with pytest.raises(Invalid, match=r"engine_keys\.role is not set"):
        keys(store, give="role")
    with pytest.raises(Invalid, match=r"engine_keys\.sts is no address"):
        keys(store, give="role", role=ROLE, sts="file:///etc/passwd")
    with pytest.raises(Invalid, match="the warehouse is not in S3"):
        EngineKeys(KeySettings(give="static"), "file:///lake", is_local=True)


def test_a_key_of_the_role_opens_one_table(store: GuardedStore) -> None:
    """The store enforces the session policy: another table's file is refused, and so is a write of a reader."""
    given = keys(store, give="role", role=ROLE, sts=f"{store.url}/")
    store.guard.roles.clear()
    answer = given.answer(grant("read", "shop.orders"), files(store), "/v1/next")
    assert answer["config"]["client.refresh-credentials-endpoint"] == "/v1/next"
    again = given.answer(grant("read", "shop.orders"), files(store))
    assert key_in(answer) == key_in(again) != ""
    (asked,) = store.guard.roles
    assert (asked["RoleSessionName"], asked["DurationSeconds"]) == ("lakestore-ann", "3600")
    config = answer["config"]
    assert int(config["s3.session-token-expires-at-ms"]) > 0
    (reads,) = [account for key, account in store.guard.accounts.items() if key == key_in(answer)]
    assert reads.token == config["s3.session-token"]
    own, other = f"{store.warehouse}/shop/orders/x".split("//")[1], f"{store.warehouse}/shop/refunds/x".split("//")[1]
    assert {
        (action, place): _may(store, key_in(answer), action, place)
        for action in ("GetObject", "PutObject")
        for place in (own, other)
    } == {
        ("GetObject", own): True,
        ("GetObject", other): False,
        ("PutObject", own): False,
        ("PutObject", other): False,
    }
    writer = key_in(given.answer(grant("read tier", "shop.orders"), files(store)))
    assert _may(store, writer, "PutObject", own)
    assert not _may(store, writer, "PutObject", other)
    assert not given.answer(grant("read", "shop.refunds"), files(store))


def test_a_folder_that_a_database_could_have_gets_no_key_of_the_role(store: GuardedStore) -> None:
    """Another engine's table may lie there before the database is created: its key would open all tables of it."""
    given = keys(store, give="role", role=ROLE, sts=f"{store.url}/")
    owner = grant("read write admin", "mine.trap")
    for folder, has_key in ((f"{store.warehouse}/finance", False), (f"{store.warehouse}/mine//trap/", True)):
        assert bool(given.answer(owner, TableFiles("mine.trap", [folder], "write"))) == has_key
    cut = TableFiles("mine.trap", [f"{store.warehouse}/mine/trap", f"{store.warehouse}/finance/"])
    assert not given.answer(owner, cut)


def _may(store: GuardedStore, key: str, action: str, place: str) -> bool:
    return store.guard.may(key, f"s3:{action}", f"arn:aws:s3:::{place}")


def test_a_role_that_is_refused_is_one_sentence_without_a_secret(store: GuardedStore) -> None:
    given = keys(store, give="role", role="arn:aws:iam::1:role/other", sts=store.url)
    with pytest.raises(Invalid, match=r"gives no keys of arn:aws:iam::1:role/other: HTTP 403 AccessDenied") as caught:
        given.answer(ANYONE, files(store))
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    away = keys(store, give="role", role=ROLE, sts="http://127.0.0.1:9")
    with pytest.raises(ls.Unavailable, match="does not answer"):
        away.answer(ANYONE, files(store))


def test_a_table_named_by_a_star_opens_no_other_table() -> None:
    (objects, lists) = json.loads(policy_of(["s3://b/lake/shop/a*?$"], writes=True))["Statement"]
    assert objects["Resource"] == ["arn:aws:s3:::b/lake/shop/a${*}${?}${$}/*"]
    assert lists["Condition"]["StringLike"]["s3:prefix"] == ["lake/shop/a${*}${?}${$}/*"]


def test_keys_of_a_role_are_asked_again_after_half_of_their_time(
    store: GuardedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = keys(store, give="role", role=ROLE, sts=store.url, seconds=900)
    first, real = key_in(given.answer(ANYONE, files(store))), time.time
    monkeypatch.setattr(time, "time", lambda: real() + 500)
    assert key_in(given.answer(ANYONE, files(store))) != first


def test_a_principal_gets_what_its_rights_allow(store: GuardedStore, tmp_path: Path) -> None:
    """Over HTTP, with rights: the tierer gets the key, a reader of one table reads the answer without one."""
    auth = write_auth(tmp_path / "auth.yaml", {"root": {"*": ("admin",)}, "ann": {"shop.orders": ("read",)}})
    arguments = ["--warehouse", f"{store.warehouse}2", "--auth", str(auth)]
    running = ServerProcess(tmp_path / "data", arguments=arguments, environment=store.environment)
    try:
        with ls.connect(running.address, token=token_of("root")) as lake:
            lake.create_table("shop.orders", schema=SCHEMA, primary_key=["id"])
        url = f"http://{running.host}:{running.http_port}/iceberg/v1/now/namespaces/shop/tables/orders"
        answers = {
            who: get(url, {**DELEGATION, "Authorization": f"Bearer {token_of(who)}"})[0] for who in ("root", "ann")
        }
    finally:
        running.kill()
    assert {who: key_in(answer) if answer["config"] else "" for who, answer in answers.items()} == {
        "root": KEY,
        "ann": "",
    }
