"""A server without principals is called by its own users, not by the web pages that they look at."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from starlette.routing import Route

from lakestore.errors import Denied, Invalid
from lakestore_server.access.admission import Admission
from lakestore_server.access.callers import Access
from lakestore_server.edge.http_gate import CERTIFICATE, Gate, PageGuard
from lakestore_server.host.clock import RealClock
from tests.support.rights import token_of, write_auth

HERE = "127.0.0.1"
JSON = {"content-type": "application/json", "content-length": "2"}


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:7341", "LOCALHOST:1", "127.0.0.1:7341", "[::1]:7341", "lake.localhost", "127.9.9.9"],
)
def test_names_of_this_machine_pass(host: str) -> None:
    PageGuard().check_headers({"host": host, **JSON}, HERE)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:7341", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.7", "[::2]",
     "localhost@evil.example", "[", "x:y"],
)  # fmt: skip
def test_any_other_name_may_be_a_page_s_own(host: str) -> None:
    with pytest.raises(Denied, match=r"http\.allowed_hosts"):
        PageGuard(["lake.example.org"]).check_headers({"host": host}, HERE)


def test_the_address_of_the_connection_and_names_of_the_settings_pass() -> None:
    PageGuard().check_headers({"host": "10.0.0.7:7341"}, "10.0.0.7")
    guard = PageGuard(["Lake.example.org", "db:7341"])
    for host in ("lake.example.org:7341", "LAKE.EXAMPLE.ORG.", "db"):
        guard.check_headers({"host": host}, HERE)
    PageGuard(["*"]).check_headers({"host": "any.example"}, HERE)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", "http://localhost:8000", "https://localhost.evil"]
)
def test_a_page_from_elsewhere_is_refused(origin: str) -> None:
    with pytest.raises(Denied, match="page"):
        PageGuard(["*"]).check_headers({"host": "localhost:7341", "origin": origin}, HERE)


@pytest.mark.parametrize(
    ("certificate", "token", "origin", "status"),
    [
        (True, "", "https://evil.example", 403),
        (True, "", "null", 403),
        (True, "", "https://lake.example:7341", 200),
        (True, "", None, 200),
        (False, "", "https://evil.example", 401),
        (False, "", None, 401),
        (True, token_of("a"), "https://evil.example", 200),
    ],
)
def test_a_certificate_that_a_browser_shows_by_itself_is_not_a_foreign_page_s(
    tmp_path: Path, certificate: bool, token: str, origin: str | None, status: int
) -> None:
    file = write_auth(tmp_path / "auth.yaml", {"a": {"*": ["admin"]}})
    admission = Admission(Access(file, RealClock(), b"k" * 32), Mock(), RealClock())

    async def made(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    route = Route("/iceberg/v1/namespaces", made, methods=["POST"])
    said = [("host", "lake.example:7341"), ("content-type", "text/plain"), ("origin", origin)]
    said += [("authorization", f"Bearer {token}" if token else None)]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/iceberg/v1/namespaces",
        "raw_path": b"/iceberg/v1/namespaces",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in said if value is not None],
        CERTIFICATE: ("a",) if certificate else (),
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b'{"namespace": ["stolen"]}', "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Gate(application=made, routes=[route], admission=admission)(scope, receive, send))
    assert sent[0]["status"] == status


def test_its_own_page_passes() -> None:
    PageGuard().check_headers({"host": "localhost:7341", "origin": "http://localhost:7341", **JSON}, HERE)


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; a=json"])
@pytest.mark.parametrize("body", [{"content-length": "5"}, {"transfer-encoding": "chunked"}])
def test_a_body_that_a_form_can_send_is_refused(kind: str, body: dict[str, str]) -> None:
    with pytest.raises(Invalid, match="application/json"):
        PageGuard().check_headers({"host": "localhost", "content-type": kind, **body}, HERE)


def test_json_passes_and_so_does_no_body() -> None:
    for headers in ({"content-length": "0"}, {}, {**JSON, "content-type": "application/json; charset=utf-8"}):
        PageGuard().check_headers({"host": "localhost", **headers}, HERE)
