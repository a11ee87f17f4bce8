"""Catalog changes as journal records: JSON forms, and what they do to namespaces and pointers."""

from __future__ import annotations

from typing import Any

from lakestore_server.state.catalog_change import (
    CatalogChange,
    CatalogStep,
    DropNamespace,
    DropPointer,
    Pointer,
    SetNamespace,
    SetPointer,
    TierRecord,
)


def tier_list(record: TierRecord) -> list[Any]:
    """The stored form of a tier record; sums as text, for JSON numbers end at 2^53."""
    sums = [str(value) for value in record.live_sums]
    known = [record.live_rows, record.schema_id]
    return [record.snapshot_id, list(record.tier_point), sums, record.lsn, record.epoch, *known]


def tier_of(data: list[Any]) -> TierRecord:
    """The record that `tier_list` wrote."""
    return TierRecord(data[0], tuple(data[1]), tuple(int(value) for value in data[2]), *data[3:])


def encode(change: CatalogChange) -> dict[str, Any]:
    """The journal's form of a change."""
    return {"key": change.idempotency_key, "steps": [_encode_step(step) for step in change.steps]}


def _encode_step(step: CatalogStep) -> list[Any]:
    if isinstance(step, SetPointer):
        pointer = [step.pointer.location, step.pointer.uuid]
        tiers = [tier_list(record) for record in step.tiers]
        return ["set", step.namespace, step.name, step.expected, pointer, tiers, list(step.forget)]
    if isinstance(step, DropPointer):
        return ["drop", step.namespace, step.name]
    if isinstance(step, SetNamespace):
        return ["namespace", step.namespace, dict(step.properties)]
    return ["drop-namespace", step.namespace]


def decode(data: dict[str, Any]) -> CatalogChange:
    """The change that `encode` wrote."""
    return CatalogChange(tuple(_decode_step(step) for step in data["steps"]), data["key"])


def _decode_step(data: list[Any]) -> CatalogStep:
    kind, *rest = data
    if kind == "set":
        namespace, name, expected, pointer, tiers, forget = rest
        records = tuple(tier_of(record) for record in tiers)
        return SetPointer(namespace, name, expected, Pointer(*pointer), records, tuple(forget))
    if kind == "drop":
        return DropPointer(*rest)
    if kind == "namespace":
        return SetNamespace(*rest)
    return DropNamespace(*rest)
