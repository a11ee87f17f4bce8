"""Named subscriptions as the server keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from lakestore.model import times
from lakestore.v1 import lakestore_pb2 as pb


@dataclass(frozen=True, slots=True)
class Member:
    """One of the consumers of a shared subscription."""

    name: str
    buckets: tuple[tuple[str, int], ...]
    """Table and number of each bucket that it reads now."""
    behind: int
    """Changes of its buckets before it."""
    away: bool
    """Whether its connection has ended; it is waited for a moment."""

    @staticmethod
    def of(info: pb.MemberInfo) -> Member:
        """The member that the server tells of."""
        behind = sum(bucket.behind for bucket in info.buckets)
        return Member(info.name, tuple((bucket.table, bucket.bucket) for bucket in info.buckets), behind, info.away)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A named subscription as the server keeps it."""

    name: str
    tables: tuple[str, ...]
    token: str
    """Its position: behind the last batch that was acknowledged."""
    acked: datetime
    """When it was last opened, acknowledged or seen with a consumer."""
    behind: int
    """Changes before it."""
    snapshot: bool
    """Whether it still reads its snapshot."""
    shared: bool = False
    """Whether several consumers share its buckets."""
    members: tuple[Member, ...] = ()
    """The consumers that share it now."""
    expired: bool = False
    """Whether what lies behind its position is gone, by a truncate: it is to be reset."""

    @staticmethod
    def of(info: pb.SubscriptionInfo) -> Subscription:
        """The subscription that the server tells of."""
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
