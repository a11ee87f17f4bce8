"""Names of the leases of snapshots, by which a stream that comes back, and a reset, find them."""

from __future__ import annotations

from collections.abc import Sequence


def rows_name(lsn: int, left: Sequence[str]) -> str:
    """The lease of the old rows of the tables that a snapshot has not read yet."""
    return f"rows {lsn} {' '.join(left)}"


def changes_name(lsn: int, tables: Sequence[str]) -> str:
    """The lease of the changes behind a snapshot."""
    return f"changes {lsn} {' '.join(tables)}"


def lease_names(lsn: int, tables: Sequence[str]) -> list[str]:
    """The names of all leases that streams may have for a snapshot of these tables at a cut."""
    return [changes_name(lsn, tables), *(rows_name(lsn, tables[at:]) for at in range(len(tables)))]
