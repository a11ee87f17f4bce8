"""What strangers may do to the HTTP port costs them, not the others: slow, many, large, deep and crooked requests.

Every test ends with a healthy client being served, by the fixture.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lakestore.limits import Limits
from lakestore_server.main import Server
from lakestore_server.settings import Settings

LIMITS = Limits(
    http_header_ms=1_500,
    http_stall_ms=2_500,
    http_connections=24,
    http_body_bytes=2 << 20,
    http_bodies_bytes=3 << 20,
    header_bytes=8 << 10,
    connection_streams=8,
)
WAIT_SECONDS = 20.0
NAMESPACES = "/iceberg/v1/namespaces"
TOKENS = "/iceberg/v1/oauth/tokens"
POSTED = f"POST {NAMESPACES} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
"""The first lines of a request with a body."""
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(Settings(tmp_path_factory.mktemp("abuse") / "data", port=0, http_port=0, limits=LIMITS))
    running.start()
    yield running
    running.close()


@pytest.fixture
def url(server: Server) -> str:
    return f"http://{server.about['http']}"


@pytest.fixture(autouse=True)
def the_healthy_are_served(url: str) -> Iterator[None]:
    yield
    healthy(url)


def healthy(url: str) -> None:
    """A client that does as it should is answered."""
    assert httpx.get(f"{url}/iceberg/v1/config", timeout=WAIT_SECONDS).status_code == 200
    answer = httpx.post(url + NAMESPACES, json={"namespace": ["seen"]}, timeout=WAIT_SECONDS)
    assert answer.status_code in (200, 409)


def opened(server: Server) -> socket.socket:
    host, port = server.about["http"].rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=WAIT_SECONDS)


def is_ended(client: socket.socket) -> bool:
    """Whether the server closes the connection, within the patience of the socket."""
    try:
        while client.recv(65_536):
            pass
    except ConnectionError:
        return True
    return True


def is_ended_while_it_trickles(client: socket.socket, byte: bytes, *, pause: float) -> bool:
    """Whether the server closes a connection on which one byte comes after each pause."""
    client.settimeout(pause)
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        try:
            client.sendall(byte)
            if not client.recv(65_536):
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


@pytest.mark.parametrize("head", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_a_request_whose_head_never_ends_is_hung_up_on(server: Server, head: bytes) -> None:
    with opened(server) as client:
        client.sendall(head)
        assert is_ended(client)


def test_a_head_that_comes_byte_by_byte_is_hung_up_on(server: Server) -> None:
    """Bytes that trickle in do not buy more time, on a first request or on a later one."""
    for before in (b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        with opened(server) as client:
            client.sendall(before)
            assert is_ended_while_it_trickles(client, b"G", pause=0.05)


def test_a_body_that_stops_is_told_so_and_hung_up_on(server: Server) -> None:
    with opened(server) as client:
        client.sendall(f"{POSTED}Content-Length: 100\r\n\r\n{{".encode())
        assert b" 408 " in client.recv(65_536)
        assert is_ended(client)


def slow_body(path: str) -> bytes:
    """The head of a request, and the first byte of its long body."""
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\ng".encode()


def test_a_body_that_trickles_from_an_unknown_sender_is_hung_up_on(server: Server) -> None:
    """Each byte comes in time, but the sender does not come to say who it is."""
    with opened(server) as client:
        client.sendall(slow_body(TOKENS))
        assert is_ended_while_it_trickles(client, b"r", pause=LIMITS.http_header_ms / 4_000)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\nX: ", slow_body(TOKENS)], ids=["head", "body"])
def test_slow_clients_do_not_keep_a_healthy_one_out(server: Server, url: str, said: bytes) -> None:
    slow = [opened(server) for _ in range(LIMITS.http_connections * 3)]
    try:
        for client in slow:
            with contextlib.suppress(ConnectionError):  # sent away already, to make room
                client.sendall(said)
        for _ in range(3):
            healthy(url)
    finally:
        for client in slow:
            client.close()


def test_the_connection_that_waits_longest_makes_room(server: Server) -> None:
    first = opened(server)
    others = [opened(server) for _ in range(LIMITS.http_connections + 4)]
    try:
        assert is_ended(first)
    finally:
        for client in (first, *others):
            client.close()


def test_a_client_that_never_reads_is_hung_up_on(server: Server, url: str) -> None:
    """Pipelined requests for a long answer, none of which is read; dozens fill the buffers of both sides."""
    long = {"namespace": ["long"], "properties": {"note": "x" * 60_000}}
    assert httpx.post(url + NAMESPACES, json=long, timeout=WAIT_SECONDS).status_code == 200
    with opened(server) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.settimeout(6 * WAIT_SECONDS)  # a busy machine takes a while to have answers that fill all buffers
        asked = f"GET {NAMESPACES}/long HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        with pytest.raises(ConnectionError):
            client.sendall(asked * 2_000_000)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * (64 << 10) + b"\r\n\r\n",
        b"GET /" + b"a" * (64 << 10) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
    ],
)
def test_a_head_that_is_too_large_is_refused(server: Server, head: bytes) -> None:
    with opened(server) as client:
        try:
            client.sendall(head)
            assert b" 400 " in client.recv(65_536)
        except ConnectionError:
            return
        assert is_ended(client)


def test_a_body_beyond_the_limit_is_refused_while_it_comes(server: Server) -> None:
    """Its length is a lie, or not said at all; the server stops where its limit is."""
    with opened(server) as client:
        client.sendall(f"{POSTED}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
        answer = b""
        try:
            for _ in range(1_000):
                client.sendall(chunk)
        except ConnectionError:
            pass
        try:
            answer = client.recv(65_536)
        except ConnectionError:
            return
        assert b" 400 " in answer


def test_many_large_bodies_at_once_are_too_many(server: Server, url: str) -> None:
    half = LIMITS.http_body_bytes - 1_000
    head = f"{POSTED}Content-Length: {half + 10}\r\n\r\n".encode()
    with opened(server) as one, opened(server) as two:
        one.sendall(head + b" " * half)
        with contextlib.suppress(ConnectionError):  # refused before the last byte was sent
            two.sendall(head + b" " * half)
        first, second = one.recv(65_536), two.recv(65_536)
        assert b" 503 " in first + second
    assert server.about["http"] in url


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "GZIP", "identity, gzip"])
def test_a_compressed_body_is_refused_unread(url: str, encoding: str) -> None:
    bomb = gzip.compress(b'{"namespace": ["' + b"a" * 10_000_000 + b'"]}')
    answer = httpx.post(url + NAMESPACES, content=bomb[:100_000], headers=JSON | {"Content-Encoding": encoding})
    assert answer.status_code == 400
    assert "Content-Encoding" in answer.json()["error"]["message"]


def test_json_that_is_too_deep_is_refused(url: str) -> None:
    deep = b"[" * 500_000
    assert httpx.post(url + NAMESPACES, content=b'{"namespace": ' + deep, headers=JSON).status_code == 400
    shallow = '"int"'
    for _ in range(250):
        shallow = f'{{"type": "list", "element-id": 1, "element-required": true, "element": {shallow}}}'
    field = f'{{"id": 1, "name": "a", "required": true, "type": {shallow}}}'
    body = f'{{"name": "t", "schema": {{"type": "struct", "schema-id": 0, "fields": [{field}]}}}}'
    answer = httpx.post(f"{url}{NAMESPACES}/seen/tables", content=body, headers=JSON, timeout=WAIT_SECONDS)
    assert answer.status_code == 400, answer.text


CROOKED = ["..", "../..", "a/../../b", "..%2f..", "a\\..\\b", "/etc", "a\0b", ".hidden", "a" * 300, "%2e%2e"]


@pytest.mark.parametrize("name", CROOKED)
def test_names_that_would_leave_their_folder_are_refused(server: Server, url: str, name: str) -> None:
    """In bodies and in paths; whatever the answer, nothing appears outside the warehouse."""
    warehouse = Path(server.settings.data) / "warehouse"
    before = {path for path in warehouse.parent.parent.rglob("*") if warehouse not in path.parents}
    schema = {"type": "struct", "schema-id": 0, "fields": []}
    assert httpx.post(url + NAMESPACES, json={"namespace": [name]}).status_code == 400
    assert httpx.post(f"{url}{NAMESPACES}/seen/tables", json={"name": name, "schema": schema}).status_code == 400
    host, port = server.about["http"].rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=WAIT_SECONDS)
    for path in (f"{NAMESPACES}/{name}", f"{NAMESPACES}/{name}/tables/x", f"{NAMESPACES}/seen/tables/{name}"):
        if name.isprintable():
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status in (400, 403, 404, 307), answer.read()
            answer.read()
    connection.close()
    assert {path for path in warehouse.parent.parent.rglob("*") if warehouse not in path.parents} <= before | {
        warehouse
    }


@pytest.mark.parametrize(
    "place", ["file:///etc", "{w}/../out", "{w}/a/%2e%2e/%2e%2e/out", "file:///etc/passwd#{w}/x", "{w}", "s3://b/x"]
)
def test_places_outside_the_warehouse_are_refused(server: Server, url: str, place: str) -> None:
    where = place.replace("{w}", server.settings.warehouse_uri)
    schema = {"type": "struct", "schema-id": 0, "fields": []}
    body = {"name": "placed", "schema": schema, "location": where}
    assert httpx.post(f"{url}{NAMESPACES}/seen/tables", json=body).status_code in (400, 403)
    paths = {"write.data.path": where}
    body = {"name": "placed", "schema": schema, "properties": paths}
    assert httpx.post(f"{url}{NAMESPACES}/seen/tables", json=body).status_code in (400, 403)
    body = {"name": "placed", "metadata-location": where}
    assert httpx.post(f"{url}{NAMESPACES}/seen/register", json=body).status_code in (400, 403, 404)
    assert httpx.head(f"{url}{NAMESPACES}/seen/tables/placed").status_code == 404


def test_garbage_in_the_head_is_refused_without_a_defect(server: Server) -> None:
    for head in (
        b"\0\0\0\0\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET \xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic \xff\xff\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\r\n\r\n",
        b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    ):
        with opened(server) as client:
            client.sendall(head)
            said = client.recv(65_536)
            assert said.startswith(b"HTTP/1.1 "), head
            assert b" 500 " not in said, head
            assert b"Traceback" not in said
