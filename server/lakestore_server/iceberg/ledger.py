"""The seam between the catalog and the server's journal.

The catalog decides; the ledger keeps. A ledger applies one `CatalogChange` as a journal record: compare-and-set
of pointers, durable when `commit` returns. Everything it answers is as of the last durable commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lakestore.model.table import Table


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where an Iceberg table's current metadata lies."""

    location: str
    """URI of metadata.json."""
    uuid: str
    """The Iceberg table's uuid. Of our own tables it is the Lakestore table's uuid."""


@dataclass(frozen=True, slots=True)
class TierRecord:
    """A snapshot of main that holds a table's state exactly as of a tier point."""

    snapshot_id: int
    tier_point: tuple[int, ...]
    """Per bucket, the offset below which everything is in the lake."""
    live_sums: tuple[int, ...]
    """Per bucket, the live sum at the tier point."""
    lsn: int
    """The commit at whose end the tier point lies."""
    epoch: int
    live_rows: int | None = None
    """Rows that live at the tier point; None in a record written before this was kept."""
    schema_id: int = 0
    """The version of the table's definition that the snapshot has."""


@dataclass(frozen=True, slots=True)
class SetPointer:
    """Create (`expected` is None) or move one pointer; refused with Conflict if `expected` is not current."""

    namespace: str
    name: str
    expected: str | None
    pointer: Pointer
    tiers: tuple[TierRecord, ...] = ()
    """Tier records to add: a flush, or a replace that carries the last tier point to a new snapshot."""
    forget: tuple[int, ...] = ()
    """Snapshot ids that expired: their tier records go."""


@dataclass(frozen=True, slots=True)
class DropPointer:
    """Remove one pointer."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class SetNamespace:
    """Create a namespace or replace its properties."""

    namespace: str
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DropNamespace:
    """Remove an empty namespace."""

    namespace: str


CatalogStep = SetPointer | DropPointer | SetNamespace | DropNamespace


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """Steps that happen together or not at all."""

    steps: tuple[CatalogStep, ...]
    idempotency_key: str = ""


class Ledger(Protocol):
    """What the catalog needs of the server. Thread-safe."""

    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        """Name to properties. One-level namespaces only."""

    def pointers(self, namespace: str) -> Mapping[str, Pointer]:
        """Table name to pointer, of one namespace."""

    def own_table(self, namespace: str, name: str) -> Table | None:
        """The Lakestore table of that name, if it is one of ours."""

    def tier_records(self, table_uuid: str) -> Mapping[int, TierRecord]:
        """Snapshot id to tier record, of one of our tables."""

    def live_sums_at(self, table_uuid: str, tier_point: tuple[int, ...]) -> tuple[int, ...] | None:
        """The table's live sums at a tier point; None unless the point is a commit end of that table."""

    def live_rows_at(self, table_uuid: str, tier_point: tuple[int, ...]) -> int | None:
        """How many rows live at a tier point; None as of `live_sums_at`."""

    def versions(self, table_uuid: str) -> tuple[Table, ...]:
        """Every version of the table's definition, the oldest first."""

    def tierer_epoch(self) -> int:
        """The epoch of the current tierer; commits with a lower one are fenced."""

    def pinned_snapshots(self, table_uuid: str) -> frozenset[int]:
        """Snapshots that running reads hold by lease; they must not expire."""

    def seen(self, idempotency_key: str) -> bool:
        """Whether a change with that key was committed."""

    def commit(self, change: CatalogChange) -> None:
        """Journal the change. Raises Conflict before anything is written; after that begins only success or an
        error whose `applied` is "unknown"."""
