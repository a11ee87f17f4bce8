"""Named subscriptions as the server keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lakestore.model import times
from lakestore.v1 import lakestore_pb2 as pb


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer of a shared subscription."""

    name: str
    buckets: tuple[tuple[str, int], ...]
    """(table, number) of each bucket that it reads now."""
    behind: int
    away: bool
    """True if its connection has ended; the server waits for it for a moment."""

    @staticmethod
    def of(info: pb.MemberInfo) -> Member:
        behind = sum(bucket.behind for bucket in info.buckets)
        return Member(info.name, tuple((bucket.table, bucket.bucket) for bucket in info.buckets), behind, info.away)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A named subscription as the server keeps it."""

    name: str
    tables: tuple[str, ...]
    token: str
    """Its position: after the last acknowledged batch."""
    acked: datetime
    """When it was last opened, acknowledged or had a consumer."""
    behind: int
    snapshot: bool
    """True if it still reads its snapshot."""
    shared: bool = False
    members: tuple[Member, ...] = ()
    """Its current consumers, if it is shared."""
    expired: bool = False
    """True if a truncate removed the log at its position. It must be reset."""

    @staticmethod
    def of(info: pb.SubscriptionInfo) -> Subscription:
        return Subscription(
            info.name,
            tuple(info.tables),
            info.token,
            times.moment_of(info.acked_us),
            info.behind,
            info.snapshot,
            info.shared,
            tuple(Member.of(member) for member in info.members),
            info.expired,
        )
