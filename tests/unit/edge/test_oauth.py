"""Credentials for a short-lived token: the two grants, in the three ways that clients send them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from lakestore.limits import Limits
from lakestore_server.access.callers import Access
from lakestore_server.edge import http
from lakestore_server.main import Server
from lakestore_server.settings import Settings
from tests.support.rights import token_of, write_auth

SECONDS = 77
CREDENTIALS = {"grant_type": "client_credentials"}


@pytest.fixture
def access(tmp_path: Path) -> Iterator[Access]:
    auth = write_auth(tmp_path / "auth.yaml", {"etl": {"shop.*": ["read"]}, "other": {}})
    server = Server(Settings(tmp_path / "data", auth=str(auth), limits=Limits(access_token_seconds=SECONDS)))
    yield server.access
    server.close()


def asked(access: Access, authorization: str = "", **fields: str) -> tuple[int, dict[str, Any]]:
    status, answer = http.token_answer(access, urlencode(fields).encode(), authorization)
    assert token_of("etl") not in str(answer)
    return status, answer


def test_credentials_give_a_token_in_the_body_and_as_basic(access: Access) -> None:
    secret = token_of("etl")
    basic = "Basic " + base64.b64encode(f"etl:{secret}".encode()).decode()
    for status, answer in (
        asked(access, **CREDENTIALS, client_id="etl", client_secret=secret, scope="catalog"),
        asked(access, **CREDENTIALS, client_secret=secret),
        asked(access, basic, **CREDENTIALS),
    ):
        assert status == 200
        assert (answer["token_type"], answer["expires_in"]) == ("bearer", SECONDS)
        assert access.caller(answer["access_token"]).principal.name == "etl"


def test_a_token_is_exchanged_for_a_fresh_one(access: Access) -> None:
    _, first = asked(access, **CREDENTIALS, client_secret=token_of("etl"))
    status, second = asked(access, grant_type=http.EXCHANGE, subject_token=first["access_token"])
    assert status == 200
    assert access.caller(second["access_token"]).principal.name == "etl"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 400),
        ({"grant_type": "password"}, 400),
        (CREDENTIALS, 401),
        ({**CREDENTIALS, "client_secret": "nonsense"}, 401),
        ({**CREDENTIALS, "client_id": "other", "client_secret": token_of("etl")}, 401),
        ({"grant_type": http.EXCHANGE}, 401),
        ({"grant_type": http.EXCHANGE, "subject_token": "a.b.c"}, 401),
        ({f"f{i}": "x" for i in range(100)}, 400),
    ],
)
def test_anything_else_is_refused_as_the_protocol_says(access: Access, fields: dict[str, str], status: int) -> None:
    said, answer = asked(access, **fields)
    assert (said, set(answer)) == (status, {"error", "error_description"})
    assert http.token_answer(access, b"\xff\xfe", "")[0] == 400
    assert http.token_answer(access, urlencode(CREDENTIALS).encode(), "Basic \xff")[0] == 401


def test_the_key_outlives_a_restart_and_is_nobody_elses(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "data", auth=str(write_auth(tmp_path / "auth.yaml", {"etl": {}})))
    tokens = []
    for _ in range(2):
        server = Server(settings)
        tokens.append(asked(server.access, **CREDENTIALS, client_secret=token_of("etl"))[1]["access_token"])
        assert [server.access.caller(token).principal.name for token in tokens] == ["etl"] * len(tokens)
        server.close()
    assert (tmp_path / "data" / "access-token.key").stat().st_mode & 0o077 == 0
