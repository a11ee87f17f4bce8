"""The first position at which a table can be read, from its log and the snapshots that the lake keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakestore.errors import PositionExpired
from lakestore.model import times
from lakestore_server.read.leases import Leases
from lakestore_server.state.view import TableState, View


@dataclass(frozen=True, slots=True)
class ReadableFrom:
    """The first readable position of a table."""

    lsn: int
    time_us: int
    """Time of this commit; 0 if an older release stored none."""
    why: str
    """Why the table cannot be read before it."""
    advice: str = "; a longer retention keeps more from now on"

    @staticmethod
    def first(view: View, state: TableState, leases: Leases | None = None) -> ReadableFrom:
        """The first readable position of a table; it only moves forward."""
        begin, start = max(state.created_lsn, state.log_start_lsn), state.log_start_lsn
        lsn = max(begin, _kept_since(state, leases))
        if lsn > begin:
            stamp_us = max(log.at_lsn(lsn).time_us for log in state.logs)
            return ReadableFrom(
                lsn, view.marks.time_us(lsn, stamp_us), "because the lake keeps no snapshot of its older columns"
            )
        if start and start == state.truncated_lsn:
            stamp_us = max(log.base.time_us for log in state.logs)
            return ReadableFrom(
                lsn, view.marks.time_us(start, stamp_us), "because a truncate removed all earlier rows", ""
            )
        if start and start == state.erased_lsn:
            stamp_us = max(log.base.time_us for log in state.logs)
            return ReadableFrom(
                lsn, view.marks.time_us(start, stamp_us), "because an erase of rows removed all earlier states", ""
            )
        if start:
            begins = max(view.marks.time_us(log.base.lsn, log.base.time_us) for log in state.logs)
            kept = (
                f"by its retention of {state.table.retention}" if state.table.retention else "by an earlier retention"
            )
            return ReadableFrom(lsn, begins, f"because its log starts there, {kept}")
        return ReadableFrom(lsn, state.created_us, "because it was created then")


def _kept_since(state: TableState, leases: Leases | None) -> int:
    """The LSN from which the kept snapshots have what a read needs besides the log. A snapshot of a later schema
    version may lack columns of an older one."""
    if state.has_all_rows:
        return 0
    starts = state.starts()
    usable = [
        tier
        for tier in state.tiers.values()
        if not (leases and leases.is_retired(state.table.uuid, tier.snapshot_id))
        and all(point >= start for point, start in zip(tier.tier_point, starts, strict=True))
    ]
    return min((state.versions.since(tier.schema_id) for tier in usable), default=0)


def check_readable(view: View, states: Sequence[TableState], lsn: int, leases: Leases | None = None) -> None:
    """`PositionExpired` unless all of these tables that existed can be read at an LSN."""
    if not states:
        return
    reaches = [(ReadableFrom.first(view, state, leases), state.table.name) for state in states]
    first, name = max(reaches, key=lambda each: each[0].lsn)
    if lsn >= first.lsn:
        return
    since = f"{times.text_of(first.time_us)} (LSN {first.lsn})" if first.time_us else f"LSN {first.lsn}"
    error = PositionExpired(
        f"table {name} can be read from {since} on, {first.why}, and LSN {lsn} was asked for: read a later position"
        f"{first.advice}"
    )
    error.earliest = view.token(first.lsn)
    raise error
