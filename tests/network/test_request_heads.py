"""Heads that a proxy in front may read in another way than the server does are refused, on both ports."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import grpc
import httpx
import pyarrow as pa
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from lakestore.wire import rpc
from lakestore_server.edge import iceberg_rest, presented_rest
from lakestore_server.edge.catalog_request import Sources
from tests.console.scene import address
from tests.support.rights import token_of, write_auth
from tests.support.served import Served

TOKEN = f"Authorization: Bearer {token_of('root')}"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("heads")
    auth = write_auth(folder / "auth.yaml", {"root": {"*": ["admin"]}, "none": {}})
    with Served(folder / "data", ports=True, auth=str(auth)) as made:
        yield made


def answered(served: Served, *headers: str, body: str = "", call: str = "POST /console/api/renew") -> bytes:
    """Everything that the server sends before it closes the connection."""
    url = httpx.URL(address(served))
    head = "\r\n".join((f"{call} HTTP/1.1", f"Host: {url.netloc.decode()}", *headers))
    with socket.create_connection((url.host, url.port), timeout=30) as link:
        link.sendall(f"{head}\r\n\r\n{body}".encode())
        return b"".join(iter(lambda: link.recv(65_536), b""))


SMUGGLED = "0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ((TOKEN, f"Content-Length: {len(SMUGGLED)}", "Transfer-Encoding: chunked"), SMUGGLED),
        ((TOKEN, "Transfer-Encoding: chunked", f"Content-Length: {len(SMUGGLED)}"), SMUGGLED),
        ((TOKEN, f"Authorization: Bearer {token_of('none')}", "Content-Length: 0"), ""),
        ((TOKEN, "authorization: Basic eDp5", "Content-Length: 0"), ""),
        ((TOKEN, "Content-Encoding: identity", "Content-Encoding: gzip", "Content-Length: 0"), ""),
        ((TOKEN, "Origin: http://localhost", "Origin: https://evil.example", "Content-Length: 0"), ""),
        ((TOKEN, "Idempotency-Key: a", "Idempotency-Key: b", "Content-Length: 0"), ""),
        ((TOKEN, "Content-Type: application/json", "Content-Type: text/plain", "Content-Length: 0"), ""),
    ],
)
def test_a_head_that_reads_in_two_ways_is_refused_and_ends_its_connection(
    served: Served, headers: tuple[str, ...], body: str
) -> None:
    found = answered(served, *headers, body=body)
    assert found.startswith(b"HTTP/1.1 400 ")
    assert found.count(b"HTTP/1.1") == 1, "what follows is no request of its own"


def test_a_head_that_reads_in_one_way_is_answered(served: Served) -> None:
    for headers, body in (((TOKEN, "Content-Length: 0"), ""), ((TOKEN, "Transfer-Encoding: chunked"), "0\r\n\r\n")):
        found = answered(served, *headers, "Connection: close", "X-A: 1", "X-A: 2", body=body)
        assert found.startswith(b"HTTP/1.1 200 "), found


def test_a_call_with_two_tokens_is_nobodys(served: Served) -> None:
    with grpc.insecure_channel(served.server.about["grpc"]) as channel:
        metadata = tuple(("authorization", f"Bearer {token_of(name)}") for name in ("root", "none"))
        head = channel.unary_unary(rpc.METHODS["Head"].path, None, None)
        with pytest.raises(grpc.RpcError) as refused:
            head(b"", metadata=metadata)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert head(b"", metadata=metadata[:1])


def test_a_request_that_came_past_the_gate_is_nobodys(served: Served) -> None:
    """Without a caller in its scope: a route that some day is mounted outside of the gate opens nothing."""
    sources = Sources(served.server.catalog, served.server.presented)
    served.lake.create_table("shop.orders", pa.schema([("id", pa.int64())]))
    routes = [*iceberg_rest.routes(sources), *presented_rest.routes(sources)]
    application = Starlette(routes=[Mount("/iceberg", routes=routes)])
    filled = {"{prefix}": "now", "{namespace}": "shop", "{table}": "orders", "{view}": "v"}

    async def codes() -> set[int]:
        transport, found = httpx.ASGITransport(application), set[int]()
        async with httpx.AsyncClient(transport=transport, base_url="http://lake/iceberg") as http:
            for method, template, _ in (*iceberg_rest.VERBS, *presented_rest.verbs()):
                path = template
                for name, value in filled.items():
                    path = path.replace(name, value)
                found.add((await http.request(method, path)).status_code)
        return found

    assert asyncio.run(codes()) == {401}
    assert [table.name for table in served.lake.tables()] == ["shop.orders"]
