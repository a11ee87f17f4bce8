"""Lakestore's own clients read a warehouse in S3 without a key of their own: the server gives them one, by rights.

The store checks every signature, every session policy, and the end of every key. The server is a process of its own.
This process has no variable of AWS, so what it reads from the store it reads by a key of the server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from email.message import Message
from functools import partial
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest
from click.testing import CliRunner

import lakestore as ls
from lakestore.cli.main import cli
from lakestore.errors import Invalid
from lakestore.iceberg import places, store_keys
from lakestore.iceberg.store_keys import OWN_KEYS, KeySource, ReaderKey, ReadFolders
from lakestore.union import lake_snapshot
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.guarded_store import (
    ALLOW_ALL,
    ALLOW_READS,
    KEY,
    READER_KEY,
    READER_SECRET,
    REGION,
    ROLE,
    Account,
    GuardedStore,
)
from tests.support.log_tierer import LogTierer
from tests.support.process import ServerProcess
from tests.support.rights import token_of, write_auth
from tests.support.waiting import until

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.binary())])
ROWS, ROUNDS = 400, 3
WIDE = 20_000
"""Bytes of a row, so that a data file is not kept in memory as a small one."""


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of AWS, and nothing of the lake in memory."""
    for name in (*OWN_KEYS, "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    _forget()
    yield
    _forget()


def _forget() -> None:
    places.forget_stores()
    lake_snapshot.forget()


@pytest.fixture(scope="module")
def store() -> Iterator[GuardedStore]:
    with GuardedStore() as made:
        yield made


@pytest.fixture(scope="module")
def server(store: GuardedStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that gives keys of a role. `shop.clicks` and `shop.other` are tiered and have hot rows."""
    folder = tmp_path_factory.mktemp("reader-keys")
    auth = write_auth(
        folder / "auth.yaml", {"root": {"*": ("admin",)}, "ann": {"shop.clicks": ("read",)}, "bob": {"*": ("read",)}}
    )
    variables = {"GIVE": "role", "ROLE": ROLE, "STS": store.url}
    environment = store.environment | {f"LAKESTORE_ENGINE_KEYS_{name}": value for name, value in variables.items()}
    arguments = ["--warehouse", store.warehouse, "--auth", str(auth)]
    with ServerProcess(folder / "data", arguments=arguments, environment=environment) as running:
        fill(running)
        yield running


def fill(running: ServerProcess, token: str = token_of("root"), rounds: int = ROUNDS) -> None:
    with ls.connect(running.address, token=token) as lake:
        tierer = LogTierer(running, lake.transport, **({"token": token} if token else {}))
        for name in ("shop.clicks", "shop.other"):
            table = lake.create_table(name, schema=SCHEMA)
            for number in range(rounds):
                table.append(rows(number))
                tierer.flush(name)
            table.append(rows(rounds).slice(0, 5))


def rows(number: int) -> pa.Table:
    ids = range(number * ROWS, (number + 1) * ROWS)
    return pa.table({"id": ids, "v": [each.to_bytes(4, "big") * (WIDE // 4) for each in ids]}, schema=SCHEMA)


def expected(rounds: int = ROUNDS) -> list[int]:
    return list(range(rounds * ROWS + 5))


def ids(table: pa.Table) -> list[int]:
    return sorted(table.column("id").to_pylist())


def test_a_reader_of_one_table_reads_it_by_a_key_for_its_files(server: ServerProcess, store: GuardedStore) -> None:
    store.guard.used.clear()
    with ls.connect(server.address, token=token_of("ann")) as lake:
        clicks = lake.table("shop.clicks")
        assert ids(clicks.scan().to_arrow()) == expected()
        assert clicks.scan().count() == len(expected())
        assert lake.sql("SELECT count(*) AS n, sum(id) AS s FROM shop.clicks").to_arrow().to_pylist() == [
            {"n": len(expected()), "s": sum(expected())}
        ]
        with lake.snapshot() as snapshot:
            assert ids(snapshot.scan("shop.clicks", ["id"]).to_arrow()) == expected()
        stream = clicks.changes(start="snapshot", until="now")
        assert ids(pa.concat_tables(each.table.select(["id"]) for each in stream)) == expected()
    used = [each for each in store.guard.used if each[0] != KEY]  # the server's own requests have its own key
    assert {(key[:4], action) for key, action, _ in used} == {("ASIA", "s3:GetObject")}
    assert not [resource for *_, resource in used if "/lake/shop/clicks" not in resource]
    (asked,) = [role for role in store.guard.roles if role["RoleSessionName"] == "lakestore-ann"]
    assert "other" not in asked["Policy"]


def test_the_command_line_needs_no_key(server: ServerProcess) -> None:
    for command in ("read shop.clicks --columns id --count", "verify shop.clicks"):
        arguments = [*command.split(), "--server", server.address]
        made = CliRunner().invoke(cli, arguments, env={"LAKESTORE_TOKEN": token_of("root")})
        assert made.exit_code == 0, made.output


def test_a_key_that_ends_during_a_read_is_replaced(server: ServerProcess, store: GuardedStore) -> None:
    """A key lives for a second, and every key ends at once after each batch."""
    store.guard.role_seconds = 1.0
    with ls.connect(server.address, token=token_of("bob")) as lake:
        found = []
        for batch in lake.table("shop.clicks").scan().to_batches():
            store.guard.end_keys()
            found.append(batch)
        assert ids(pa.Table.from_batches(found)) == expected()
    store.guard.role_seconds = None
    asked = [role for role in store.guard.roles if role["RoleSessionName"] == "lakestore-bob"]
    assert len(asked) > 1


def sources(*answers: ReaderKey, folder: str = "s3://lakestore/lake/t") -> tuple[KeySource, list[float]]:
    """A source that gives these keys, each for 100 s, and the clock that it looks at."""
    clock, given = [0.0], iter(answers)
    return KeySource(folder, lambda: (next(given), 100.0), lambda: clock[0]), clock


def key(name: str, store: GuardedStore) -> ReaderKey:
    return ReaderKey(name, store.guard.accounts[name].secret, "", store.url, REGION)


def test_an_open_file_goes_on_with_the_next_key(store: GuardedStore) -> None:
    first, second = key(READER_KEY, store), key(KEY, store)
    data = bytes(range(256)) * (5 << 12)
    store.store.objects.put("lakestore/lake/t/file", data, Message())
    for how in ("refused", "half of its time is over"):
        source, clock = sources(first, second)
        folders = ReadFolders([source])
        store.guard.accounts[READER_KEY] = Account(READER_SECRET, ALLOW_READS)
        with places.open_file("s3://lakestore/lake/t/file") as stream:
            assert stream.read_at(1000, 77) == data[77:1077]
            store.guard.used.clear()
            if how == "refused":
                del store.guard.accounts[READER_KEY]
            else:
                clock[0] = 51.0
            assert stream.read_at(100_000, len(data) - 5) == data[-5:]
            assert stream.read_at(1 << 20, 1 << 20) == data[1 << 20 : 2 << 20]
            assert {name for name, *_ in store.guard.used} == {KEY}
        folders.close()
    store.guard.accounts[READER_KEY] = Account(READER_SECRET, ALLOW_READS)
    assert store_keys.source_of("s3://lakestore/lake/t/file") is None, "closed"


def test_a_key_that_is_refused_for_good_is_a_sentence_without_it(store: GuardedStore) -> None:
    source, _ = sources(wrong := ReaderKey("AKIAWRONG", "wrong-secret", "", store.url, REGION), wrong)
    folders = ReadFolders([source])
    with pytest.raises(Invalid, match="the object store refuses") as caught:
        places.read("s3://lakestore/lake/t/none")
    assert "AKIAWRONG" not in str(caught.value) + repr(wrong) + repr(source) + repr(folders)
    folders.close()


def test_a_key_of_the_environment_is_used_alone(store: GuardedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = sources(key(READER_KEY, store))
    folders = ReadFolders([source])
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    store.store.objects.put("lakestore/lake/t/own", b"x", Message())
    store.guard.used.clear()
    assert places.read("s3://lakestore/lake/t/own") == b"x"
    assert {name for name, *_ in store.guard.used} == {KEY}
    folders.close()


def test_one_location_at_two_addresses_is_refused(store: GuardedStore) -> None:
    (one, _), (two, _) = sources(key(KEY, store)), sources(ReaderKey("a", "b", "", "http://127.0.0.1:9", REGION))
    open_one, open_two = ReadFolders([one]), ReadFolders([two])
    with pytest.raises(Invalid, match="in the stores of two servers"):
        places.read("s3://lakestore/lake/t/file")
    open_two.close()
    assert store_keys.source_of("s3://lakestore/lake/t/file") is one
    assert store_keys.source_of("s3://lakestore/lake/two/file") is None
    open_one.close()


def test_a_static_key_is_replaced_under_load(
    store: GuardedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While readers of one connection read in a loop, the key file gets a new key, and the old key ends."""
    keys = tmp_path / "keys.env"
    variables = {"GIVE": "static", "FILE": str(keys)}
    environment = store.environment | {f"LAKESTORE_ENGINE_KEYS_{name}": value for name, value in variables.items()}
    _write_key(keys, store, 0)
    auth = write_auth(tmp_path / "auth.yaml", {"root": {"*": ("admin",)}, "ann": {"shop.clicks": ("read",)}})
    with ServerProcess(
        tmp_path / "data",
        arguments=["--warehouse", f"{store.warehouse}-static", "--auth", str(auth)],
        environment=environment,
    ) as running:
        fill(running, rounds=1)
        with ls.connect(running.address, token=token_of("ann")) as lake:
            table = lake.transport.get_table(pb.TableRequest(table="shop.clicks"))
            asked = pb.StoreKeyRequest(table_uuid=json.loads(table.definition)["uuid"], rights=["read", "tier"])
            assert not lake.transport.store_key(asked).id, "a static key opens every table"
            monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
            with pytest.raises(Invalid, match=r"refuses .* let the server give you a key"):
                lake.table("shop.clicks").scan().to_arrow()
            monkeypatch.delenv("AWS_ENDPOINT_URL")
        _forget()
        with ls.connect(running.address, token=token_of("root")) as lake, ThreadPoolExecutor(3) as readers:
            clicks, stop, counts = lake.table("shop.clicks"), Event(), [0, 0, 0]

            def read(reader: int) -> None:
                while not stop.is_set():
                    _forget()
                    assert ids(clicks.scan(["id"]).to_arrow()) == expected(1)
                    counts[reader] += 1

            reads = [readers.submit(read, each) for each in range(3)]
            for number in range(1, 6):
                store.guard.used.clear()
                _write_key(keys, store, number)
                before = [*counts]
                until(partial(_are_beyond, counts, before, reads), "reads")
                assert f"AKIASTATIC{number}" in {name for name, *_ in [*store.guard.used]}
            stop.set()
            for each in reads:
                each.result()


def _are_beyond(counts: list[int], before: list[int], reads: list[Future[None]]) -> bool:
    """Whether each reader has begun and ended a read since, or one has failed."""
    return any(each.done() for each in reads) or all(now > was + 1 for now, was in zip(counts, before, strict=True))


def _write_key(file: Path, store: GuardedStore, number: int) -> None:
    """A new key in the file; then the key before it ends."""
    name, secret = f"AKIASTATIC{number}", f"static-{number}"
    store.guard.accounts[name] = Account(secret, ALLOW_ALL)
    new = file.with_suffix(".new")
    new.write_text(f"AWS_ACCESS_KEY_ID={name}\nAWS_SECRET_ACCESS_KEY={secret}\n")
    os.replace(new, file)
    store.guard.accounts.pop(f"AKIASTATIC{number - 1}", None)
