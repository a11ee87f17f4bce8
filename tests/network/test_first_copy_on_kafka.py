"""Real servers on a real topic: a new one copies from a peer, and one of the two is killed meanwhile."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lakestore as ls
from jepsen.system.kafka import KafkaProcess
from jepsen.system.proxy import Fault, Proxy
from jepsen.system.server import free_port
from lakestore.cli.main import cli
from lakestore.errors import Denied, NotAuthenticated
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.access import signing
from lakestore_server.access.callers import Access
from lakestore_server.access.principals import SERVER, hash_of
from lakestore_server.edge.peer_channel import PeerChannel
from lakestore_server.files.data_folder import RESTORING, SEGMENTS
from lakestore_server.host.clock import RealClock
from lakestore_server.journals.kafka_log import KafkaLog, KafkaTopic
from tests.support.kafka_servers import KafkaServers, role_of
from tests.support.waiting import until

pytestmark = pytest.mark.kafka
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.binary())])
SLOW = Fault(bytes_per_second=4e6)
AUTH = """principals:
  chief: {tokens: [{sha256: CHIEF}], grants: [{rights: [admin], tables: ["*"]}]}
  reader: {tokens: [{sha256: READER}], grants: [{rights: [read], tables: ["*"]}]}
"""


def rows(first: int, count: int = 100) -> pa.Table:
    """10 MB that do not compress."""
    chance = np.random.default_rng(first)
    values = [chance.bytes(100_000) for _ in range(count)]
    return pa.table([pa.array(range(first, first + count)), pa.array(values, pa.binary())], schema=SCHEMA)


def journal_of(kafka: KafkaProcess, tmp_path: Path) -> str:
    """The URL of a new topic."""
    journal = f"kafka://{kafka.address}/{tmp_path.name}"
    CliRunner().invoke(cli, ["init-journal", "--journal", journal, "--replicas", "1"], catch_exceptions=False)
    return journal


def cut_beginning(servers: KafkaServers, tmp_path: Path) -> None:
    """Remove the beginning of the topic: every follower ends in order, with a checkpoint, then the leader makes one."""
    for server in list(servers.servers):
        if role_of(server) == "follower":
            server.stop()
            servers.start_again(server)
    bootstrap, _, topic = servers.journal.removeprefix("kafka://").partition("/")
    log = KafkaLog(KafkaTopic(bootstrap, topic))
    numbers = itertools.count()

    def is_cut() -> bool:
        backup = pb.BackupRequest(folder=str(tmp_path / f"backup{next(numbers)}"), without_lake=True)
        lake.transport.backup(backup)
        return log.bounds()[0] > 0

    with ls.connect(servers.addresses) as lake:
        until(is_cut, "the end of the topic's beginning")
    log.close()


@contextmanager
def behind_proxies(kafka: KafkaProcess, tmp_path: Path, count: int) -> Iterator[tuple[KafkaServers, list[Proxy]]]:
    """Servers that others reach through proxies, with rows, and without the beginning of the topic."""
    ports = [free_port() for _ in range(count)]
    proxies = [Proxy(f"127.0.0.1:{port}") for port in ports]
    try:
        with KafkaServers(journal_of(kafka, tmp_path), tmp_path, "") as servers:
            for name, port, proxy in zip("ab", ports, proxies, strict=False):
                servers.add(name, port, ["--advertise", proxy.address])
            servers.the("leader")
            with ls.connect(servers.addresses) as lake:
                lake.create_table("t.rows", SCHEMA, primary_key=["id"], buckets=2).upsert(rows(0))
                lake.create_table("t.log", SCHEMA, buckets=1).append(rows(0))
            cut_beginning(servers, tmp_path)
            yield servers, proxies
    finally:
        for proxy in proxies:
            proxy.close()


class NewServer:
    """A server that is copying: it has not said yet that it serves."""

    def __init__(self, servers: KafkaServers, data: Path) -> None:
        self.data, self.http = data, free_port()
        self.port = free_port()
        ports = ["--data", str(data), "--port", str(self.port), "--http-port", str(self.http)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lakestore", "serve", *ports, *servers.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **servers.environment},
        )

    def ready(self) -> dict[str, Any]:
        """The server's answer to `/ready`; empty while its HTTP port is closed."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/ready", timeout=60) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            found = json.load(error)
        except OSError:
            return {}
        return found

    def copies(self) -> bool:
        """Whether the server has copied between 5 and 95 percent."""
        said = self.ready()
        assert self.process.poll() is None, self.process.stderr.read() if self.process.stderr else ""
        return said.get("role") == "copying" and 5 < said["percent"] < 95

    def kill(self) -> str:
        """kill -9; what it said on stderr."""
        self.process.kill()
        return self.process.communicate()[1]

    @property
    def segment_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.data / SEGMENTS).rglob("*") if path.is_file())


def assert_serves(server: NewServer, leader: str) -> None:
    """It follows, and has every row."""
    until(lambda: server.ready().get("ready") is True, "the new server serves")
    with ls.connect(leader) as lake:
        token = lake.table("t.log").append(rows(900, 1))
    with ls.connect(f"127.0.0.1:{server.port}", reads="nearest") as lake:
        assert lake.table("t.log").scan(at=token).count() == 101
        for name in ("t.rows", "t.log"):
            assert verify(lake.transport, name).same
        assert lake.table("t.rows").lookup([{"id": 99}]).num_rows == 1
    assert not (server.data / RESTORING).exists()


def test_the_copier_is_killed_in_the_middle_and_goes_on(kafka: KafkaProcess, tmp_path: Path) -> None:
    with behind_proxies(kafka, tmp_path, 1) as (servers, (proxy,)):
        proxy.breaks(to_client=SLOW)
        new = NewServer(servers, tmp_path / "new folder")
        until(new.copies, "the middle of the copy")
        with ls.connect(servers.addresses) as lake:
            shown = json.loads(lake.transport.status(pb.StatusRequest()).status)["journal"]["replicas"]
        assert {each["address"]: each["role"] for each in shown}[f"127.0.0.1:{new.port}"] == "copying"
        said, before = new.kill(), new.segment_bytes
        assert "copies" in said
        assert before > 0
        answered = proxy.answered
        proxy.mend()
        again = NewServer(servers, tmp_path / "new folder")
        try:
            assert_serves(again, servers.addresses)
            whole = again.segment_bytes
            assert proxy.answered - answered < whole - before + 4_000_000, "what was there is not sent again"
        finally:
            again.kill()


def test_the_peer_is_killed_in_the_middle_and_another_one_sends_the_rest(kafka: KafkaProcess, tmp_path: Path) -> None:
    with behind_proxies(kafka, tmp_path, 2) as (servers, proxies):
        for proxy in proxies:
            proxy.breaks(to_client=SLOW)
        new = NewServer(servers, tmp_path / "new")
        try:
            until(new.copies, "the middle of the copy")
            peer = new.ready()["peer"]
            number = [proxy.address for proxy in proxies].index(peer)
            servers.servers[number].kill()
            proxies[number].refuses = True
            until(lambda: new.ready().get("peer") != peer, "the other peer")
            proxies[1 - number].mend()
            assert_serves(new, servers.servers[1 - number].address)
        finally:
            new.kill()


def test_only_an_administrator_and_a_server_with_the_same_key_get_a_copy(kafka: KafkaProcess, tmp_path: Path) -> None:
    auth, key = tmp_path / "auth.yaml", tmp_path / "key"
    auth.write_text(AUTH.replace("CHIEF", hash_of("chief-token")).replace("READER", hash_of("reader-token")))
    auth.chmod(0o600)
    key.write_bytes(bytes(range(32)))
    secured = {"LAKESTORE_TOKEN_KEY": str(key)}
    arguments = ["--auth", str(auth)]
    with KafkaServers(
        journal_of(kafka, tmp_path), tmp_path, "a", arguments=arguments, environment=secured, patience=0
    ) as servers:
        address = servers.servers[0].address
        with ls.connect(address, token="chief-token") as lake:
            lake.create_table("t.log", SCHEMA, buckets=1).append(rows(0, 10))
            lake.transport.backup(pb.BackupRequest(folder=str(tmp_path / "backup"), without_lake=True))
        request = pb.CopyCheckpointRequest(address="new:1")

        def files(token: str) -> int:
            return len(next(PeerChannel(lambda _: token, None).copy_checkpoint(address, request)).files)

        own = Access(auth, RealClock(), hashlib.sha256(key.read_bytes()).digest())
        other = Access(auth, RealClock(), hashlib.sha256(b"another key, also of 32 bytes or more").digest())
        assert files("chief-token") == files(own.server_token(address)) > 1
        with pytest.raises(Denied, match="reader has no right 'admin' on any table"):
            files("reader-token")
        for token in ("", "unknown", other.server_token(address), own.server_token("elsewhere:7340")):
            with pytest.raises(NotAuthenticated):
                files(token)
        late = signing.sign(own._key, signing.Claim(SERVER.name, signing.address_id(address), 1), 0)
        with pytest.raises(NotAuthenticated):
            files(late)
        with ls.connect(address, token=own.server_token(address)) as lake, pytest.raises(Denied, match="checkpoint"):
            lake.tables()
        question = urllib.request.Request(
            f"http://127.0.0.1:{servers.servers[0].http_port}/iceberg/v1/namespaces",
            headers={"Authorization": f"Bearer {own.server_token(address)}"},
        )
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(question, timeout=60)
        assert refusal.value.code == 403
        new = servers.add("b")
        with ls.connect(new.address, token="reader-token", reads="nearest") as lake:
            assert lake.table("t.log").scan().count() == 10
