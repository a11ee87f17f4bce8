"""A catalog client that knows a follower alone: its changes reach the leader, and no outcome is told wrongly."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError, ValidationException

from lakestore_server.edge.leader_link import FORWARDED, LSN
from lakestore_server.settings import Tls
from tests.support.certificates import Authority
from tests.support.replicas import LONG_LEASE_SECONDS, Replicas
from tests.support.rights import token_of, write_auth
from tests.support.sql_views import view_request
from tests.support.waiting import until

get, post, delete = (
    partial(httpx.get, timeout=60.0),
    partial(httpx.post, timeout=60.0),
    partial(httpx.delete, timeout=60.0),
)
"""A follower may wait longer for the leader than httpx does by default."""
ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "v": ["a", "b", "é"]})


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    with Replicas(tmp_path, 2, lease_seconds=LONG_LEASE_SECONDS) as found:
        yield found


def follower_of(replicas: Replicas) -> int:
    """The number of a server that follows and knows the leader's HTTP port."""
    leading = replicas.leader()
    assert leading is not None
    number = 1 - leading
    journal = replicas.servers[number].engine.loop.journal
    until(lambda: any(each.address == journal.leader.address and each.http for each in journal.replicas), "a report")
    return number


def catalog_at(replicas: Replicas, number: int, **said: str) -> RestCatalog:
    return RestCatalog("lake", uri=f"http://{replicas.http(number)}/iceberg", **said)


@contextmanager
def standing_in(replicas: Replicas, *, answers: bool) -> Iterator[list[bytes]]:
    """A stranger at the leader's HTTP address. It takes requests and closes the connection without an answer, or takes
    no connection at all. Yields what it read."""
    leading = replicas.leader()
    assert leading is not None
    read: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"

    def take() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            read.append(connection.recv(1 << 16))
            connection.close()

    if answers:
        threading.Thread(target=take, daemon=True).start()
    else:
        listener.close()
    journal: Any = replicas.servers[leading].engine.loop.journal
    own, journal._http = journal._http, address
    follower = replicas.servers[1 - leading].engine.loop.journal
    until(lambda: any(each.http == address for each in follower.replicas), "the stranger's address")
    try:
        yield read
    finally:
        journal._http = own
        listener.close()


def test_pyiceberg_works_through_a_follower(replicas: Replicas) -> None:
    catalog = catalog_at(replicas, follower_of(replicas))
    catalog.create_namespace("db", {"ä": "1"})
    table = catalog.create_table("db.t", ROWS.schema)
    for count in (1, 2, 3):
        table.append(ROWS)
        assert catalog.load_table("db.t").scan().to_arrow().num_rows == 3 * count, "the follower shows the change"
    stale = catalog.load_table("db.t")
    table.append(ROWS)
    with pytest.raises(ValidationException):  # PyIceberg loads the table again after the leader's 409
        stale.delete("id = 1")
    catalog.rename_table("db.t", "db.u")
    catalog.drop_table("db.u")
    with pytest.raises(NoSuchTableError):
        catalog.load_table("db.u")
    leading = replicas.leader()
    assert leading is not None
    assert catalog_at(replicas, leading).load_namespace_properties("db") == {"ä": "1"}


def test_views_are_made_through_a_follower_and_shown_by_both(replicas: Replicas) -> None:
    follower = follower_of(replicas)
    urls = [f"http://{replicas.http(number)}/iceberg/v1/namespaces/db/views" for number in (follower, 1 - follower)]
    catalog_at(replicas, follower).create_namespace("db")
    assert post(urls[0], json=view_request("v", spark="SELECT 1")).status_code == 200
    shown = [get(f"{url}/v").json() for url in urls]
    assert shown[0] == shown[1]
    assert delete(f"{urls[0]}/v").status_code == 204
    assert [get(f"{url}/v").status_code for url in urls] == [404, 404]


def test_the_answer_waits_until_the_follower_shows_the_change(replicas: Replicas) -> None:
    follower = follower_of(replicas)
    replicas.servers[follower].engine.loop._address = ""  # it does not claim meanwhile
    replicas.ends[follower].is_cut = True

    def mend() -> None:
        until(lambda: [*replicas.servers[1 - follower].catalog.namespaces()] == ["db"], "the change at the leader")
        time.sleep(0.5)
        replicas.ends[follower].is_cut = False

    back = threading.Thread(target=mend)
    back.start()
    told = post(f"http://{replicas.http(follower)}/iceberg/v1/namespaces", json={"namespace": ["db"]})
    assert told.status_code == 200
    assert [*replicas.servers[follower].catalog.namespaces()] == ["db"]
    back.join()


def test_a_key_of_idempotence_holds_at_either_server(replicas: Replicas) -> None:
    follower, key = follower_of(replicas), {"idempotency-key": "0198b8f0-0000-7000-8000-000000000001"}
    for number in (follower, 1 - follower, follower):
        told = post(f"http://{replicas.http(number)}/iceberg/v1/namespaces", json={"namespace": ["db"]}, headers=key)
        assert told.status_code == 200, told.text
        assert LSN not in told.headers


def test_a_lost_answer_is_an_unknown_state(replicas: Replicas) -> None:
    follower = follower_of(replicas)
    with standing_in(replicas, answers=True) as read:
        told = post(f"http://{replicas.http(follower)}/iceberg/v1/namespaces", json={"namespace": ["db"]})
    assert (told.status_code, told.json()["error"]["type"]) == (500, "CommitStateUnknownException")
    assert len(read) == 1, "nobody sends it twice"


def test_a_leader_that_takes_no_connection_has_applied_nothing(replicas: Replicas) -> None:
    follower = follower_of(replicas)
    with standing_in(replicas, answers=False):
        told = post(f"http://{replicas.http(follower)}/iceberg/v1/namespaces", json={"namespace": ["db"]})
    assert told.status_code == 503
    assert int(told.headers["retry-after"]) >= 1


def test_a_request_goes_on_once(replicas: Replicas) -> None:
    follower = follower_of(replicas)
    with standing_in(replicas, answers=True) as read:
        told = post(
            f"http://{replicas.http(follower)}/iceberg/v1/namespaces",
            json={"namespace": ["db"]},
            headers={FORWARDED: "1"},
        )
    assert told.status_code == 503
    assert read == []


def test_without_a_leader_a_change_waits(replicas: Replicas) -> None:
    follower = follower_of(replicas)
    loop = replicas.servers[follower].engine.loop
    journal: Any = loop.journal
    loop._address = ""  # it may not lead itself
    replicas.ends[follower].is_cut = True  # it hears no beat either
    time.sleep(0.2)  # what it was reading
    journal._leader = replace(journal._leader, has_left=True)
    told = post(f"http://{replicas.http(follower)}/iceberg/v1/namespaces", json={"namespace": ["db"]})
    assert told.status_code == 503


def test_rights_are_those_of_the_callers_own_token(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    signed = authority.sign("localhost")
    auth = write_auth(tmp_path / "auth.yaml", {"ann": {"db.*": ["read", "write", "admin"]}, "eve": {"db.*": ["read"]}})
    key = tmp_path / "token.key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    tls = {"cert": str(signed.cert), "key": str(signed.key), "peer_ca": str(authority.cert)}
    with Replicas(
        tmp_path, 2, auth=str(auth), token_key=str(key), tls=Tls(**tls), lease_seconds=LONG_LEASE_SECONDS
    ) as replicas:
        follower = follower_of(replicas)
        uri = f"https://{replicas.http(follower)}/iceberg/v1/namespaces"
        with httpx.Client(timeout=60.0, verify=ssl.create_default_context(cafile=authority.cert)) as http:
            told = {
                name: http.post(uri, json={"namespace": ["db"]}, headers={"authorization": f"Bearer {token_of(name)}"})
                for name in ("eve", "ann")
            }
        assert [each.status_code for each in told.values()] == [403, 200], told["ann"].text
        assert [*replicas.servers[follower].catalog.namespaces()] == ["db"]


def test_a_refusal_waits_until_the_follower_shows_why(replicas: Replicas) -> None:
    follower = follower_of(replicas)
    leader = 1 - follower
    replicas.servers[follower].engine.loop._address = ""  # it does not claim meanwhile
    replicas.ends[follower].is_cut = True
    url = "http://{}/iceberg/v1/namespaces"
    assert post(url.format(replicas.http(leader)), json={"namespace": ["db"]}).status_code == 200

    def mend() -> None:
        time.sleep(0.5)
        replicas.ends[follower].is_cut = False

    back = threading.Thread(target=mend)
    back.start()
    told = post(url.format(replicas.http(follower)), json={"namespace": ["db"]})
    assert told.status_code == 409
    assert [*replicas.servers[follower].catalog.namespaces()] == ["db"], "what a client loads after this answer"
    back.join()
