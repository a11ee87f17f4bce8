"""The assignment of buckets to consumers: a pure function, so that it can be held against its properties.

Balanced within one, sticky (no assignment in balance moves fewer buckets), and the same for the same input.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

Bucket = tuple[str, int]
"""Table uuid and bucket number."""


def assign(members: Collection[str], buckets: Sequence[Bucket], before: Mapping[Bucket, str]) -> dict[Bucket, str]:
    """The member of each bucket: as before, but for the buckets that balance must move. Empty without members."""
    if not members:
        return {}
    kept: dict[str, list[Bucket]] = {member: [] for member in sorted(members)}
    for bucket in buckets:
        if before.get(bucket) in kept:
            kept[before[bucket]].append(bucket)
    quotas = _quotas({member: len(own) for member, own in kept.items()}, len(buckets))
    after = {bucket: member for member, own in kept.items() for bucket in own[: quotas[member]]}
    room = [member for member, own in kept.items() for _ in range(quotas[member] - len(own))]
    free = [bucket for bucket in buckets if bucket not in after]
    return after | dict(zip(free, room, strict=True))


def _quotas(held: Mapping[str, int], buckets: int) -> dict[str, int]:
    """The number of buckets for each member.

    Where the buckets do not divide evenly, the members that hold most get one more, as so the fewest buckets move.
    """
    each, more = divmod(buckets, len(held))
    most = sorted(held, key=lambda member: (-held[member], member))
    return {member: each + (i < more) for i, member in enumerate(most)}
