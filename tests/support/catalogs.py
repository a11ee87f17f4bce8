"""A catalog over a memory ledger and a folder, a table of ours in it, and the snapshots that engines would commit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakestore.model import file_uri
from lakestore.model.table import Table, define
from lakestore_server.access.callers import Access, Caller
from lakestore_server.access.principals import ANYONE, Proof
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.commits import TableChange
from lakestore_server.catalog.contents import Name
from lakestore_server.catalog.metadata_store import LocalStorage, MetadataStore, StoredMetadata
from lakestore_server.catalog.schemas import Json
from lakestore_server.edge.catalog_request import CALLER
from lakestore_server.host.clock import RealClock
from lakestore_server.state.catalog_change import CatalogChange, SetNamespace
from tests.support.memory_ledger import MemoryLedger

START_MS = 1_700_000_000_000
UUID = "11111111-2222-4333-8444-555555555555"
SCHEMA: Json = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "v", "required": False, "type": "string"},
    ],
}


def own_table(**options: Any) -> Table:
    """A primary-key table of two buckets."""
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])
    return replace(define("db.own", schema, primary_key=["id"], buckets=2, lake=options), uuid=UUID)


@dataclass
class World:
    """Everything a test of the catalog touches."""

    ledger: MemoryLedger
    catalog: Catalog
    warehouse: str
    now_ms: int = START_MS + 1_000
    """The catalog's clock, which a test sets."""

    def create_own(self, **options: Any) -> Table:
        """A table of ours, known to the ledger."""
        table = own_table(**options)
        self.ledger.tables[table.name] = table
        self.ledger.commit(CatalogChange((self.catalog.create_own(table),)))
        return table

    def create_free(self, name: str = "free", **fields: Any) -> StoredMetadata:
        """A table that is not ours."""
        return self.catalog.create_table("db", {"name": name, "schema": SCHEMA, **fields})

    def commit(self, name: str, *updates: Json, requirements: Sequence[Json] = ()) -> Json:
        """Commit updates to a table of namespace db; its new metadata."""
        return self.catalog.commit([TableChange(Name("db", name), requirements, updates)])[0].doc

    def load(self, name: str) -> Json:
        """A table's current metadata."""
        return self.catalog.load(Name("db", name)).doc


def world(folder: Path) -> World:
    """A fresh world with the namespace db."""
    warehouse = file_uri.to_uri(folder / "warehouse")
    ledger = MemoryLedger()
    ledger.commit(CatalogChange((SetNamespace("db"),)))
    store = MetadataStore(LocalStorage(warehouse))
    made = World(ledger, Catalog(ledger, store, warehouse, now_ms=lambda: made.now_ms), warehouse)
    return made


def for_anyone(application: Any) -> Any:
    """The application behind a gate that lets everybody do everything."""
    caller = Caller(Access(None, RealClock(), b""), Proof(ANYONE))

    async def admitted(scope: Any, receive: Any, send: Any) -> None:
        await application({**scope, CALLER: caller}, receive, send)

    return admitted


def snapshot(number: int, parent: int | None, sequence: int, operation: str = "append", **summary: Any) -> Json:
    """The update that adds a snapshot; underscores of summary keys are dashes."""
    said = {key.replace("_", "-"): str(value) for key, value in summary.items()}
    return {
        "action": "add-snapshot",
        "snapshot": {
            "snapshot-id": number,
            "parent-snapshot-id": parent,
            "sequence-number": sequence,
            "timestamp-ms": START_MS + number,
            "manifest-list": f"file:///m/{number}.avro",
            "schema-id": 0,
            "summary": {"operation": operation, **said},
        },
    }


def set_ref(name: str, number: int, kind: str = "branch") -> Json:
    """The update that sets a branch or tag."""
    return {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": number}


def tier(
    number: int,
    parent: int | None,
    start: Sequence[int],
    point: Sequence[int],
    *,
    epoch: int = 1,
    sums: Sequence[int] = (7, 8),
    records: int = 10,
    deletes: int = 0,
    operation: str = "append",
    schema_id: int = 0,
) -> tuple[Json, Json, Json]:
    """The updates of a tier commit: snapshot, main, tag."""
    update = snapshot(number, parent, number, operation, total_records=records, total_position_deletes=deletes)
    update["snapshot"]["summary"].update(
        {
            "lakestore.epoch": str(epoch),
            "lakestore.tier-from": json.dumps(list(start)),
            "lakestore.tier-point": json.dumps(list(point)),
            "lakestore.live-sum": json.dumps([str(part) for part in sums]),
            "lakestore.lsn": "3",
            "lakestore.schema-id": str(schema_id),
        }
    )
    return update, set_ref("main", number), set_ref("lakestore-tier", number, "tag")
