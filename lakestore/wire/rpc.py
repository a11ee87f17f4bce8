"""The wire's methods as both ends see them, read from the proto file's descriptor; errors as metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import message_factory

from lakestore.errors import Fenced, Invalid, LakestoreError, error_of
from lakestore.v1 import lakestore_pb2

ERROR_KEY = "lakestore-error-bin"
BUSY_SECONDS = 0.5
"""When to come again to a server that serves as many calls as it can."""
SERVICE = "lakestore.v1.Lakestore"
RETRY_KEY = "lakestore-retry-after"
"""Seconds, as text; an entry of its own, for older clients take the first one to have three parts."""
BUCKETS_KEY = "lakestore-buckets-bin"
"""What `Fenced` names, by table, as JSON."""
Metadata = tuple[tuple[str, str | bytes], ...]

PROTOCOL, PROTOCOL_MIN = 3, 1
"""What this release speaks, and the oldest client that its server still understands. Both ends must know it."""
SINCE = {name: 2 for name in ("Hello", "AlterTable", "Ack", "ListSubscriptions", "DropSubscription", "Backup")}
"""RPC to the protocol that it came with, where that is not the first one."""
FIELDS_SINCE = {
    "AuditRequest": {"deep": 2},
    "Change": {"schema_id": 2},
    "ChangesRequest": {"subscription": 2, "where": 3, "member": 3},
    "CreateTableRequest": {"check_only": 2},
    "FetchRequest": {"schema_id": 2},
    "LookupRequest": {"schema_id": 2, "at": 3, "after": 3},
}
"""Request fields to the protocol they came with, where a server that does not know them would do something else.

Their zero asks for nothing new: a table of such a server has only the version 0.
"""
DEFINITION_SINCE = {"retention": 2, "deletes": 3, "skip_unchanged": 3, "ttl": 3, "tombstone_seconds": 3}
"""Keys of a new table's definition to the protocol they came with; said only where they ask for something.

Another merge engine than `upsert` is refused by every server that does not know it.
"""
READS = {
    "Hello",
    "GetTable",
    "ListTables",
    "Lookup",
    "Changes",
    "Plan",
    "Fetch",
    "Status",
    "Audit",
    "ListSubscriptions",
}
"""RPCs that change nothing: when they fail, nothing was applied."""

PING_SECONDS, PING_ANSWER_SECONDS = 15, 10
CLIENT_KEEPALIVE = [
    ("grpc.keepalive_time_ms", PING_SECONDS * 1_000),
    ("grpc.keepalive_timeout_ms", PING_ANSWER_SECONDS * 1_000),
    ("grpc.http2.ping_timeout_ms", PING_ANSWER_SECONDS * 1_000),
    ("grpc.http2.max_pings_without_data", 0),
]
"""A server that is gone without a word is noticed by the calls that wait for it. Idle connections do not ping."""
SERVER_KEEPALIVE = [
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_SECONDS * 500),
    ("grpc.http2.max_ping_strikes", 2),
]
"""A client that is gone is noticed too, and one that pings more often than ours do is sent away."""


def options(message_bytes: int) -> list[tuple[str, int]]:
    """Of a channel or a server: the longest message either way."""
    return [("grpc.max_receive_message_length", message_bytes), ("grpc.max_send_message_length", message_bytes)]


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC."""

    name: str
    """As in the proto file."""
    attribute: str
    """The same in snake case."""
    request: Any
    answer: Any
    streams_in: bool
    streams_out: bool

    @property
    def reads(self) -> bool:
        """Whether it changes nothing."""
        return self.name in READS

    @property
    def path(self) -> str:
        """The RPC's path on the wire."""
        return f"/{SERVICE}/{self.name}"


def methods() -> Iterator[Method]:
    """Every RPC of the service."""
    for method in lakestore_pb2.DESCRIPTOR.services_by_name["Lakestore"].methods:
        yield Method(
            method.name,
            re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method.name).lower(),
            message_factory.GetMessageClass(method.input_type),
            message_factory.GetMessageClass(method.output_type),
            method.client_streaming,
            method.server_streaming,
        )


def check_known(method: Method, request: Any, protocol: int, release: str) -> None:
    """`Invalid` if a request asks for what a server of an older protocol would ignore without a word."""
    for message in (request, *getattr(request, "changes", ())):
        for name, since in FIELDS_SINCE.get(message.DESCRIPTOR.name, {}).items():
            if since > protocol and getattr(message, name):
                raise _ignored(method, name, since, release)
    if method.name == "CreateTable" and protocol < max(DEFINITION_SINCE.values()):
        for name in json.loads(request.definition):
            if DEFINITION_SINCE.get(name, 0) > protocol:
                raise _ignored(method, name, DEFINITION_SINCE[name], release)


def _ignored(method: Method, name: str, since: int, release: str) -> Invalid:
    return Invalid(
        f"the server ({release or 'an older release'}) would ignore {name!r} of {method.name}, which came"
        f" with protocol {since}: run the server with a newer release, or ask without it"
    )


def pack_error(error: LakestoreError) -> Metadata:
    """An error as metadata."""
    told: list[tuple[str, str | bytes]] = [(ERROR_KEY, json.dumps([error.kind, error.message, error.applied]).encode())]
    if error.retry_after:
        told.append((RETRY_KEY, f"{error.retry_after:.3f}"))
    if isinstance(error, Fenced) and error.buckets:
        tables: dict[str, list[int]] = {}
        for table, bucket in error.buckets:
            tables.setdefault(table, []).append(bucket)
        told.append((BUCKETS_KEY, json.dumps(tables, separators=(",", ":")).encode()))
    return tuple(told)


def _silent(address: str, details: str) -> str:
    """A server that does not answer, and why as far as the connection says."""
    where = f"the server at {address}" if address else "the server"
    if "http1" in details:
        return f"{where} speaks HTTP: name the gRPC port, by default 7340"
    return f"{where} does not answer ({details.rsplit('last error: ', 1)[-1].rstrip(')')}): is it running there?"


def unpack_error(
    metadata: Mapping[str, Any], code: str, details: str, *, reads: bool = False, address: str = ""
) -> LakestoreError:
    """The error that metadata or, failing that, a bare status tells of."""
    if ERROR_KEY in metadata:
        kind, message, applied = json.loads(metadata[ERROR_KEY])[:3]
        tables = json.loads(metadata.get(BUCKETS_KEY, "{}"))
        buckets = [(table, bucket) for table, numbers in tables.items() for bucket in numbers]
        return error_of(kind, message, applied, float(metadata.get(RETRY_KEY, 0)), buckets)
    applied = "no" if reads else "unknown"
    if code == "DEADLINE_EXCEEDED":
        return error_of("Unavailable", "the server did not answer in time: try again", applied)
    if code in ("UNAVAILABLE", "CANCELLED", "UNKNOWN"):
        return error_of("Unavailable", _silent(address, details), applied)
    if code == "RESOURCE_EXHAUSTED" and "oncurrent" in details:  # gRPC's own words for its limit of calls
        return error_of("Exhausted", "the server serves as many calls as it can: try again later", "no", BUSY_SECONDS)
    if code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        return error_of("NotAuthenticated" if code == "UNAUTHENTICATED" else "Denied", details)
    if code == "RESOURCE_EXHAUSTED":
        return error_of("Invalid", f"the message is too large ({details}): send fewer rows, or ask for fewer")
    return error_of("Internal", f"{code}: {details}", applied)
