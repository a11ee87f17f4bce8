"""Several servers as one address: the error of a follower, and which server a connection calls."""

from __future__ import annotations

from typing import Any

import pytest

from lakestore.errors import NotLeader, Unavailable
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, rpc


@pytest.mark.parametrize("leader", ["b:7340", ""])
@pytest.mark.parametrize("applied", ["no", "unknown"])
def test_the_error_of_a_follower_names_the_leader_on_every_way(leader: str, applied: Any) -> None:
    error = NotLeader.of(leader, applied=applied)
    packed: Any = dict(errors.pack_error(error))
    ways = [
        errors.unpack_error(packed, "UNAVAILABLE", ""),
        errors.error_of_fields(errors.error_fields(error)),
        errors.error_of_message(pb.Error.FromString(errors.error_message(error).SerializeToString())),
    ]
    for told in ways:
        assert isinstance(told, NotLeader)
        assert (told.leader, told.applied, told.message) == (leader, applied, error.message)
    packed.pop("lakestore-kind")
    assert type(errors.unpack_error(packed, "UNAVAILABLE", "")) is Unavailable, "older clients know a wider kind"


def test_what_only_the_leader_answers() -> None:
    named, other = pb.ChangesRequest(subscription="s"), pb.ChangesRequest()
    assert rpc.METHODS["Changes"].needs_leader(named)
    assert not rpc.METHODS["Changes"].needs_leader(other)
    leaders = {name for name, method in rpc.METHODS.items() if name != "Changes" and method.needs_leader(None)}
    reads = {name for name, method in rpc.METHODS.items() if method.reads}
    with_duties = {"ListSubscriptions", "ListErasures", "VerifyErased"}
    assert leaders == set(rpc.METHODS) - reads - {"RenewLease", "ReleaseLease"} | with_duties


def test_no_server_sends_a_client_away_that_pings() -> None:
    least = dict(rpc.SERVER_KEEPALIVE)["grpc.http2.min_ping_interval_without_data_ms"]
    for is_one_of_several in (False, True):
        assert dict(rpc.client_keepalive(is_one_of_several=is_one_of_several))["grpc.keepalive_time_ms"] > least
