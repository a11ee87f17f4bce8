"""The wire's methods as both ends see them, read from the proto file's descriptor; errors as metadata."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import Any

from google.protobuf import message_factory
from google.protobuf.message import DecodeError, Message

from lakestore.errors import Invalid
from lakestore.v1 import lakestore_pb2

_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"

_said = os.environ.get(_FORK_SUPPORT)
os.environ.setdefault(_FORK_SUPPORT, "false")
try:
    import grpc
finally:
    if _said is None:
        del os.environ[_FORK_SUPPORT]

__all__ = ["grpc"]


SERVICE = "lakestore.v1.Lakestore"

SMALL_CALLS = "lakestore.v1.SmallCalls"
"""The service with one RPC: a stream that stays open and carries small calls of `SERVICE`."""
TALK_PATH = f"/{SMALL_CALLS}/Talk"
TALK_SINCE = 5
"""The protocol that introduced `Talk`."""
TALKED = ("Lookup", "Commit")
"""The RPCs whose small requests are sent on this stream."""
TALK_BYTES_MAX = 64 << 10
"""A longer request is a call of its own."""
PROTOCOL, PROTOCOL_MIN = 5, 4
"""The protocol of this release, and the oldest one that either end understands: that of release 0.2."""
FIELDS_SINCE = {
    "AlterTableRequest": {"proposal": 5},
    "BackupRequest": {"without_lake": 5},
    "Change": {"keep": 5, "as_of": 5, "part": 5},
    "CommitRequest": {"registers": 5},
    "FetchRequest": {"where": 5},
    "LookupRequest": {"key": 5, "require": 5},
    "PlanRequest": {"require": 5},
    "TiererRequest": {"problems": 5, "upkeep": 5, "running": 5},
}
"""Request fields to the protocol that introduced them. An older server would ignore such a field and do something else,
so `check_known` refuses the request.

A field with its zero value asks for nothing new. Fields that only name the timeline or the table are not listed: an
older server answers correctly without them.
"""
LAKE_SINCE = {
    "snapshots": 5,
    "snapshot_seconds": 5,
    "catalog": 5,
    "upkeep_percent": 5,
    "upkeep_files": 5,
    "committers": 5,
    "adopted": 5,
    "z_order_by": 5,
}
"""Keys of `lake` in the definition of a new table to the protocol that introduced them. A definition leaves them out
unless they ask for something.
"""
READS_AT_LEADER = ("lakestore-reads", "leader")
"""Metadata of a client of several servers that reads at the leader alone: a follower answers `NotLeader`."""
PING_SECONDS, PING_ANSWER_SECONDS = 15, 10
FAILOVER_PING_SECONDS, FAILOVER_PING_ANSWER_SECONDS = 8, 4


def client_keepalive(*, is_one_of_several: bool) -> list[tuple[str, int]]:
    """Options of a client's channel. Pings during a call detect a server that is gone without closing its connection;
    idle connections do not ping. If it is one of several servers, the client gives up sooner: another may lead by then.
    """
    ping, answer = PING_SECONDS, PING_ANSWER_SECONDS
    if is_one_of_several:
        ping, answer = FAILOVER_PING_SECONDS, FAILOVER_PING_ANSWER_SECONDS
    return [
        ("grpc.keepalive_time_ms", ping * 1_000),
        ("grpc.keepalive_timeout_ms", answer * 1_000),
        ("grpc.http2.ping_timeout_ms", answer * 1_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]


SERVER_KEEPALIVE = [
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_SECONDS * 500),
    ("grpc.http2.max_ping_strikes", 2),
]
"""The server detects clients that are gone, and disconnects a client that pings more often than ours."""


def options(message_bytes: int) -> list[tuple[str, int]]:
    """Options of a channel or a server for the longest message either way."""
    return [("grpc.max_receive_message_length", message_bytes), ("grpc.max_send_message_length", message_bytes)]


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC."""

    name: str
    """The name in the proto file."""
    attribute: str
    """The name in snake case."""
    request: Any
    answer: Any
    streams_in: bool
    streams_out: bool
    rule: lakestore_pb2.Rule
    """The options of the proto file: right, retries, whether it reads, which server answers it, its first protocol."""

    @property
    def reads(self) -> bool:
        """True if the RPC changes nothing. When it fails, nothing was applied."""
        return self.rule.reads

    def needs_leader(self, request: Any, *, reads_too: bool = False) -> bool:
        """True if, of servers that share a journal, only the leader answers this request. `reads_too`: the client reads
        at the leader alone.
        """
        if self.name == "Hello":
            return False
        if self.name == "Changes":
            return reads_too or bool(request.subscription)
        if self.rule.server == lakestore_pb2.Rule.BY_READS:
            return reads_too or not self.reads
        return self.rule.server == lakestore_pb2.Rule.LEADER

    @property
    def since(self) -> int:
        """The protocol that introduced the RPC; `PROTOCOL_MIN` if it is older."""
        return self.rule.since or PROTOCOL_MIN

    @property
    def path(self) -> str:
        """The RPC's path on the wire."""
        return f"/{SERVICE}/{self.name}"


def _method(method: Any) -> Method:
    return Method(
        method.name,
        re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method.name).lower(),
        message_factory.GetMessageClass(method.input_type),
        message_factory.GetMessageClass(method.output_type),
        method.client_streaming,
        method.server_streaming,
        method.GetOptions().Extensions[lakestore_pb2.rule],
    )


METHODS = {method.name: _method(method) for method in lakestore_pb2.DESCRIPTOR.services_by_name["Lakestore"].methods}
"""Every RPC of the service by its name."""


def _says(message: Any, name: str) -> bool:
    """Whether a message has a field that asks for something."""
    value = getattr(message, name)
    return message.HasField(name) if isinstance(value, Message) else bool(value)


def check_known(method: Method, request: Any, protocol: int, release: str) -> None:
    """Raises `Invalid` if a server of an older protocol would silently ignore a part of the request."""
    for message in (request, *getattr(request, "changes", ())):
        for name, since in FIELDS_SINCE.get(message.DESCRIPTOR.name, {}).items():
            if since > protocol and _says(message, name):
                raise _ignored(method, name, since, release)
    if method.name == "CreateTable":
        for name in json.loads(request.definition).get("lake", {}):
            if LAKE_SINCE.get(name, 0) > protocol:
                raise _ignored(method, name, LAKE_SINCE[name], release)


def _ignored(method: Method, name: str, since: int, release: str) -> Invalid:
    return Invalid(
        f"the server ({release or 'an older release'}) would ignore {name!r} of {method.name}, which came"
        f" with protocol {since}: run the server with a newer release, or ask without it"
    )


def parsed(kind: Any, data: bytes) -> Any:
    """The message of this kind in the bytes, or `Invalid`."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise Invalid(f"{len(data)} bytes are not a {kind.DESCRIPTOR.name} of the protocol") from None
