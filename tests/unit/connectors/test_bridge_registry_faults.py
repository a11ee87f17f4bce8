"""Faults of a registry: no record is judged by a registry that does not answer, and none waits for one that has."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lakestore.errors import Denied, Invalid, NotFound, Unavailable
from lakestore.kafka.bridge.decode.avro_records import AvroRecords
from lakestore.kafka.bridge.decode.registry import UNKNOWN_SECONDS, Registry
from lakestore.kafka.bridge.outcome import Stage
from lakestore.kafka.bridge.spec import RegistrySpec
from tests.support.avro_cases import records
from tests.support.registry import FaultyRegistry

LONG = json.dumps({"schema": '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}'}).encode()
ONCE = {"timeout": "60", "max.retries": "0"}


@pytest.fixture
def server() -> Iterator[FaultyRegistry]:
    """A registry that answers as it is told."""
    with FaultyRegistry() as server:
        yield server


def client(server: FaultyRegistry, clock: list[float] | None = None, **options: str) -> Registry:
    """A client of it that does not try twice."""
    now = clock or [0.0]
    return Registry(RegistrySpec(server.url, ONCE | options), lambda: now[0])


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b"{}"),
        (503, b"<html>try again</html>"),
        (429, b'{"error_code": 429, "message": "slowly"}'),
        (200, b"<html>a login page</html>"),
        (200, b'{"schema": '),
        (200, b"[]"),
        (200, b"{}"),
        (0, b'{"schema": "'),
        (404, b"<html>no such route</html>"),
        (404, b'{"error_code": 40499, "message": "?"}'),
    ],
)
def test_an_answer_that_is_none_is_asked_for_again(server: FaultyRegistry, status: int, body: bytes) -> None:
    server.answers["/schemas/ids/7"] = (status, body)
    decoder = AvroRecords(registry=client(server))
    block = records([b"\0\0\0\0\7\2", b"bad"])
    for _ in range(2):
        with pytest.raises(Unavailable, match="asked again soon"):
            decoder.decode(block)
    server.answers["/schemas/ids/7"] = (200, LONG)
    found = decoder.decode(block)
    assert (found.values.to_pylist(), [each.code for each in found.rejects]) == ([{"n": 1}], ["bad-magic"])
    decoder.decode(block)
    assert len(server.asked) == 3


def test_a_registry_that_is_slow_or_gone_is_unavailable(server: FaultyRegistry) -> None:
    server.seconds = 0.5
    with pytest.raises(Unavailable, match="does not answer"):
        client(server, timeout="0.2").by_id(7)
    with pytest.raises(Unavailable, match="does not answer"):
        Registry(RegistrySpec("http://127.0.0.1:9", ONCE)).by_id(7)


def test_credentials_that_are_refused_are_no_reject_either(server: FaultyRegistry) -> None:
    server.answers["/schemas/ids/7"] = (401, b'{"error_code": 401, "message": "who?"}')
    with pytest.raises(Denied, match="credentials"):
        AvroRecords(registry=client(server)).decode(records([b"\0\0\0\0\7\2"]))


def test_an_unknown_number_is_asked_for_again_after_a_while(server: FaultyRegistry) -> None:
    clock = [0.0]
    decoder = AvroRecords(registry=client(server, clock))
    block = records([b"\0\0\0\0\7\2"])
    for _ in range(3):
        found = decoder.decode(block)
        assert [(each.stage, each.code) for each in found.rejects] == [(Stage.WIRE, "unknown-schema")]
    assert len(server.asked) == 1
    server.answers["/schemas/ids/7"] = (200, LONG)
    clock[0] += UNKNOWN_SECONDS
    assert decoder.decode(block).values.to_pylist() == [{"n": 1}]


def test_a_guid_and_credentials_go_to_the_registry(server: FaultyRegistry) -> None:
    guid = "89791762-2336-186f-9674-299b90a802e2"
    server.answers[f"/schemas/guids/{guid}"] = (200, LONG)
    body = b"\1" + bytes.fromhex(guid.replace("-", "")) + b"\4"
    registry = client(server, None, **{"basic.auth.user.info": "me:secret"})
    assert AvroRecords(registry=registry).decode(records([body])).values.to_pylist() == [{"n": 2}]


@pytest.mark.parametrize("options", [{"no.such": "x"}, {"timeout": "soon"}, {"ssl.ca.location": "/nowhere.pem"}])
def test_wrong_settings_are_refused_by_a_sentence(options: dict[str, str]) -> None:
    with pytest.raises(Invalid, match="registry's"):
        Registry(RegistrySpec("http://127.0.0.1:9", options))


def test_references_in_a_circle_end(server: FaultyRegistry) -> None:
    circle = [{"name": "R", "subject": "r", "version": 1}]
    told = {"schema": '"long"', "references": circle, "subject": "r", "version": 1, "id": 7}
    server.answers["/schemas/ids/7"] = server.answers["/subjects/r/versions/1"] = (200, json.dumps(told).encode())
    with pytest.raises(NotFound, match="deep"):
        client(server).by_id(7)
