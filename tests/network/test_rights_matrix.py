"""Every RPC and every route, for every principal, on tables in every state: made from the policy's own table.

Two rules hold. The port refuses what the policy refuses, and nothing else for want of a right. To a principal without
a right on a table, every call answers the same bytes whether the table exists, is absent, was renamed or was dropped.
A new RPC or route is in the matrix by itself; one with a field or a parameter that the matrix cannot fill fails it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import grpc
import httpx
import pyarrow as pa
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from lakestore.errors import Denied
from lakestore.v1 import flight_pb2
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore_server.access import policy
from lakestore_server.access.finders import HttpRequestFacts
from lakestore_server.access.principals import Principal
from lakestore_server.edge.flight.messages import any_bytes
from lakestore_server.main import KnownTables
from lakestore_server.settings import Flight
from tests.console.scene import address
from tests.support.flight_client import descriptor
from tests.support.rights import token_of, write_auth
from tests.support.served import Served

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
PRINCIPALS = {
    "root": {"*": ["admin"]},
    "tierer": {"*": ["tier"]},
    "reader": {"shop.orders": ["read"]},
    "writer": {"shop.orders": ["write"]},
    "owner": {"mine.*": ["admin"]},
    "both": {"shop.*": ["read", "write"]},
    "none": {},
}
STRANGER = ""
"""A caller who shows nothing."""
CALLERS = (*PRINCIPALS, STRANGER)
HIDDEN, ABSENT = ("xpresent", "xrenamed", "xdropped", "xforeign"), "xnowhere"
"""Tables of the database `secret`, by their state, and the name that no table has. All have the same length."""
MOVED = "secret.xelsewhere"
"""The present name of the renamed table."""
NO_UUID = "00000000-0000-4000-8000-000000000000"


@dataclass(frozen=True, slots=True)
class Target:
    """A table as requests name it."""

    table: str
    uuid: str

    @property
    def name(self) -> str:
        """With its database."""
        return f"secret.{self.table}"

    def masked(self, data: bytes) -> bytes:
        """An answer without the words that the request itself had."""
        return data.replace(self.table.encode(), b"TABLE-NN").replace(self.uuid.encode(), NO_UUID.encode())


@dataclass(frozen=True, slots=True)
class World:
    """A server with tables in every state."""

    served: Served
    targets: tuple[Target, ...]
    """The absent one last."""
    channel: grpc.Channel
    web: Mapping[str, httpx.Client]
    """By caller."""

    @property
    def known(self) -> KnownTables:
        """The facts that the policy asks for."""
        return KnownTables(self.served.engine)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("matrix")
    auth = write_auth(folder / "auth.yaml", PRINCIPALS)
    with Served(folder / "data", ports=True, auth=str(auth), flight=Flight(0)) as served:
        lake, uuids = served.lake, {}
        for name in ("shop.orders", "mine.own", "secret.xpresent", "secret.xrenamed", "secret.xdropped"):
            lake.create_table(name, SCHEMA, primary_key=["id"], buckets=1)
            lake.table(name).upsert([{"id": 1, "v": "x"}])
            uuids[name.removeprefix("secret.")] = served.engine.view.names[name]
        field = {"id": 1, "name": "id", "required": True, "type": "long"}
        body = {"name": "xforeign", "schema": {"type": "struct", "schema-id": 0, "fields": [field]}}
        with httpx.Client(base_url=address(served), headers=headers("root")) as http:
            assert http.post("iceberg/v1/namespaces/secret/tables", json=body).status_code == 200
        lake.table("secret.xrenamed").rename(MOVED)
        lake.drop_table("secret.xdropped")
        targets = (*(Target(name, uuids.get(name, NO_UUID)) for name in HIDDEN), Target(ABSENT, NO_UUID))
        with grpc.insecure_channel(served.server.about["grpc"]) as channel:
            web = {who: httpx.Client(base_url=address(served), headers=headers(who), timeout=60) for who in CALLERS}
            yield World(served, targets, channel, web)
            for http in web.values():
                http.close()


def headers(who: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token_of(who)}"} if who else {}


def principal(world: World, who: str) -> Principal:
    return world.served.server.access.caller(token_of(who)).principal


# Requests of RPCs, filled from the descriptors.

PLAIN = set(
    """abort address after alteration approve at at_least before_images born bucket buckets bytes check_only columns
    deep detail
    dry_run end epoch files folder heads hidden holder in_parts key keys lag lake_snapshot list_services live_end
    live_only live_start location member next no_dead owner prefix primary_key problems progress
    proposal protocol purge
    range_changes changes_max hot_bytes_max records rejected release require reviewed rights running schema_id sequence
    service session shard start step timeline to token until upkeep where why without_lake backups certificate erasure
    within_seconds""".split()
)
"""Fields that name no table; left as they are."""
PUT: dict[str, Any] = {
    "producer": "p",
    "subscription": "s",
    "lease": "l",
    "parts": ["x"],
    "seconds": 5,
    "lease_seconds": 5,
}
"""Fields that name things of the caller's own, or take something."""
REFLECTED = {"host", "file_by_filename", "file_containing_symbol", "file_containing_extension", "list_services"}
REFLECTED |= {"all_extension_numbers_of_type"}
ASKED = {
    "Talk": pb.Ask,
    "Check": health_pb2.HealthCheckRequest,
    "List": health_pb2.HealthListRequest,
    "Watch": health_pb2.HealthCheckRequest,
    "ServerReflectionInfo": reflection_pb2.ServerReflectionRequest,
}
"""Requests of RPCs that are not of the service."""


def filled(kind: Any, target: Target, *, has_uuid: bool, is_new: bool) -> Any:
    """A request on a table; with `is_new` the table is the new name that it asks for."""
    table, new_name = ("mine.own", target.name) if is_new else (target.name, "mine.stolen")
    change = pb.Change(table=table, table_uuid=target.uuid if has_uuid else "")
    values: dict[str, Any] = {
        **PUT,
        "table": table,
        "tables": [table],
        "table_uuid": target.uuid if has_uuid else "",
        "table_uuids": [target.uuid] if has_uuid else [],
        "new_name": new_name,
        "into": new_name,
        "source": table,
        "database": "secret",
        "definition": json.dumps({"name": table}),
        "change": change,
        "changes": [change],
        "holds": [pb.LakeHold(table_uuid=target.uuid, snapshot_id=1)],
        "registers": [f"complete/{table}/f"],
        "id": 1,
        "method": "GetTable",
        "request": pb.TableRequest(table=table).SerializeToString(),
        "within_ms": 0,
    }
    if kind is pb.CommitRequest:
        values["registers"] = [pb.RegisterMove(register=f"complete/{table}/f")]
    names = set(kind.DESCRIPTOR.fields_by_name)
    unknown = names - PLAIN - set(values) - (REFLECTED if kind is ASKED["ServerReflectionInfo"] else set())
    assert not unknown, f"the matrix cannot fill {sorted(unknown)} of {kind.DESCRIPTOR.name}: say what it is"
    return kind(**{name: value for name, value in values.items() if name in names})


def kind_of(path: str) -> Any:
    """The request of an RPC."""
    ours = {method.path: method.request for method in rpc.METHODS.values()}
    return ours.get(path) or ASKED[path.rsplit("/", 1)[-1]]


def called(world: World, path: str, who: str, request: Any) -> tuple[bytes, ...]:
    """Everything that the caller of an RPC gets: the first answers, then status, words and trailing metadata."""
    metadata = tuple(headers(who).items())
    send = world.channel.stream_stream(path, None, None)
    call: Any = send(iter([request.SerializeToString()]), metadata=metadata, timeout=60)
    answers: list[bytes] = []
    try:
        for answer in call:
            answers.append(answer)
            if path.endswith(("Watch", "Talk", "Info")):
                call.cancel()
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.CANCELLED:  # by this test, which has its answer
            return tuple(answers)
        assert error.code() != grpc.StatusCode.DEADLINE_EXCEEDED, path
        trailing = b"|".join(f"{key}={value!r}".encode() for key, value in call.trailing_metadata() or ())
        return (*answers, error.code().name.encode(), (error.details() or "").encode(), trailing)
    return tuple(answers)


def variants(kind: Any) -> list[dict[str, bool]]:
    """The ways to name a table in a request."""
    is_new = (False, True) if {"new_name", "into"} & set(kind.DESCRIPTOR.fields_by_name) else (False,)
    return [{"has_uuid": has_uuid, "is_new": each} for has_uuid in (False, True) for each in is_new]


def may(world: World, row: policy.Row, who: str, asked: Any) -> bool:
    """Whether the policy lets a principal call."""
    caller = principal(world, who)
    try:
        policy.check_possible(row, caller, "call")
        policy.check_right(row, caller, asked, world.known, "call")
    except Denied:
        return False
    return True


def is_refused(answer: tuple[bytes, ...]) -> bool:
    return any(b"has no right" in part for part in answer)


def leaks(world: World, who: str, target: Target, answer: tuple[bytes, ...]) -> set[str]:
    """Names and uuids in an answer that the caller neither sees nor has said."""
    said = b" ".join(answer)
    seen = principal(world, who).sees
    others = {each for each in world.targets if each != target and not seen(each.name)}
    words = {word for each in others for word in (each.table, each.uuid) if each.uuid != NO_UUID and word != ABSENT}
    return {word for word in (*words, *([] if seen(MOVED) else [MOVED])) if word.encode() in said}


@pytest.mark.parametrize("path", [path for path in policy.RPCS if not path.startswith(policy.FLIGHT)])
def test_an_rpc_refuses_by_the_policy_and_tells_nothing_of_hidden_tables(world: World, path: str) -> None:
    row, kind = policy.RPCS[path], kind_of(path)
    method = next((each for each in rpc.METHODS.values() if each.path == path), None)
    for variant in variants(kind):
        for who in CALLERS:
            sees = bool(who) and principal(world, who).sees("secret.x")
            if sees and variant["is_new"]:
                continue  # it would rename a table for good
            answers = {}
            for target in world.targets[-1:] if sees else world.targets:
                request = filled(kind, target, **variant)
                answer = called(world, path, who, request)
                if not who:
                    assert (b"UNAUTHENTICATED" in answer) == (row.right != "open"), (path, answer)
                elif method is not None:
                    assert is_refused(answer) != may(world, row, who, request), (path, who, target, answer)
                    assert not leaks(world, who, target, answer), (path, who, target, answer)
                answers[target] = tuple(target.masked(part) for part in answer)
            if names_a_table(kind):
                assert len(set(answers.values())) == 1, (path, who, variant, answers)


def names_a_table(kind: Any) -> bool:
    """Whether requests of a kind are different for different tables; answers of others go with time."""
    one, two = (filled(kind, Target(name, NO_UUID), has_uuid=True, is_new=False) for name in (HIDDEN[0], ABSENT))
    return bool(one != two)


# Flight SQL: what names a table is a text or a command.


def flight_requests(target: Target) -> dict[str, list[bytes]]:
    """The requests of each RPC of the Flight port that name a table."""
    text = f"SELECT * FROM {target.name}"
    key = flight_pb2.CommandGetPrimaryKeys(db_schema="secret", table=target.table)
    commands = (flight_pb2.CommandStatementQuery(query=text), key)
    described = [descriptor(each).SerializeToString() for each in commands]
    prepare = any_bytes(flight_pb2.ActionCreatePreparedStatementRequest(query=text))
    return {
        "Handshake": [b""],
        "ListActions": [b""],
        "GetFlightInfo": described,
        "GetSchema": described,
        "DoGet": [flight_pb2.Ticket(ticket=any_bytes(key)).SerializeToString()],
        "DoAction": [flight_pb2.Action(type="CreatePreparedStatement", body=prepare).SerializeToString()],
        "DoPut": [flight_pb2.FlightData(flight_descriptor=descriptor(commands[0])).SerializeToString()],
    }


@pytest.mark.parametrize("path", [path for path in policy.RPCS if path.startswith(policy.FLIGHT)])
def test_a_flight_rpc_tells_nothing_of_hidden_tables(world: World, path: str) -> None:
    name = path.removeprefix(policy.FLIGHT)
    with grpc.insecure_channel(world.served.server.about["flight"]) as channel:
        there = replace(world, channel=channel)
        for who in QUERY_CALLERS:
            answers = {}
            for target in world.targets:
                answer = tuple(
                    part
                    for data in flight_requests(target)[name]
                    for part in called(there, path, who, RawRequest(data))
                )
                assert (b"UNAUTHENTICATED" in answer) == (not who), (path, answer)
                assert not who or not leaks(world, who, target, answer), (path, who, target, answer)
                answers[target] = tuple(target.masked(part) for part in answer)
            assert len(set(answers.values())) == 1, (path, who, answers)


@dataclass(frozen=True, slots=True)
class RawRequest:
    """The bytes of a request."""

    data: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802 (as a message has it)
        return self.data


# Routes, filled from their paths.

ENDINGS = ("", "$1", "@9", "$x", "@2026-11-26T12:00:00Z")
"""Of names in a path of the catalog: a version, a cut, and names that look alike. HEAD, a form of GET, has the first
one, a query the first three."""
QUERY = f"{policy.CONSOLE}/query"
QUERY_CALLERS = ("reader", "none", STRANGER)
"""A query takes a process, and calls RPCs as its caller: one who may query and one who may not stand for all."""


def bodies(target: Target, ending: str) -> dict[str, Any]:
    """The body of every route that takes one."""
    name, here = target.table + ending, {"namespace": ["secret"], "name": target.table + ending}
    return {
        "namespace": ["secret"],
        "name": name,
        "source": here,
        "destination": {"namespace": ["mine"], "name": "stolen"},
        "table-changes": [{"identifier": here, "requirements": [], "updates": []}],
        "requirements": [],
        "updates": [],
        "metadata-location": f"file:///x/{name}",
        "schema": {},
        "sql": f'SELECT * FROM secret."{name}"',
        "token": name,
    }


def parameters(path: str, target: Target, ending: str) -> dict[str, str]:
    """The parameters in a route's path."""
    name = target.table + ending
    table = f"secret.{name}" if path.startswith(policy.CONSOLE) else name
    values = {"namespace": "secret", "table": table, "view": name, "prefix": "now", "file": "main.js"}
    values["number"] = "1"  # of a query that runs
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    unknown = set(names) - values.keys()
    assert not unknown, f"the matrix cannot fill {sorted(unknown)} of {path}: say what it is"
    return {key: values[key] for key in names}


def sent(http: httpx.Client, method: str, path: str, target: Target, ending: str) -> tuple[bytes, ...]:
    """Everything that a client gets but the time: status, headers, and the first bytes of the body."""
    url = path.format(**{key: value.replace("$", "%24") for key, value in parameters(path, target, ending).items()})
    body = None if method in ("GET", "HEAD", "DELETE") else bodies(target, ending)
    with http.stream(method, url, json=body) as answer:
        found = answer.read()
        head = sorted((key, value) for key, value in answer.headers.items() if key != "date")
        return (str(answer.status_code).encode(), repr(head).encode(), found)


ROUTES = sorted({*policy.ROUTES, *(("HEAD", path) for method, path in policy.ROUTES if method == "GET")})


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=[f"{method} {path}" for method, path in ROUTES])
def test_a_route_refuses_by_the_policy_and_tells_nothing_of_hidden_tables(world: World, method: str, path: str) -> None:
    row = policy.ROUTES.get((method, path)) or policy.ROUTES["GET", path]
    is_named = ("{table}" in path or row.body) and method != "HEAD"
    endings = ENDINGS[: 3 if path == QUERY else None] if is_named else ENDINGS[:1]
    callers = QUERY_CALLERS if path == QUERY else CALLERS
    for who, ending in itertools.product(callers, endings):
        sees = bool(who) and principal(world, who).sees("secret.x")
        answers = {}
        for target in world.targets[-1:] if sees else world.targets:
            answer = sent(world.web[who], method, path, target, ending)
            facts = HttpRequestFacts(parameters(path, target, ending), bodies(target, ending))
            if not who:
                assert answer[0] == b"401" or row.right == "open", (path, answer)
            elif method == "HEAD":
                assert (answer[0] == b"403") != may(world, row, who, facts), (path, who, target, answer)
            elif path != QUERY:  # of which each RPC is judged
                assert is_refused(answer) != may(world, row, who, facts), (path, who, target, answer)
            if who:
                assert not leaks(world, who, target, answer), (path, who, target, answer)
            answers[target] = tuple(target.masked(part) for part in answer)
        if "{table}" in path or "{view}" in path or method not in ("GET", "HEAD"):
            assert len(set(answers.values())) == 1, (path, who, ending, answers)


def test_the_matrix_has_every_state(world: World) -> None:
    """What the two tests compare is what they say."""
    view = world.served.engine.view
    names = {target.table: target.name for target in world.targets}
    assert names["xpresent"] in view.names
    assert MOVED in view.names
    assert names["xrenamed"] not in view.names
    assert names["xdropped"] in {each.name for each in view.dropped.values()}
    assert ("secret", "xforeign") in view.pointers
    assert len({len(name) for name in names}) == 1
    assert len(PRINCIPALS) == 7
