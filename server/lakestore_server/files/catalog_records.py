"""Catalog changes as journal records: JSON forms, and what they do to namespaces and pointers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lakestore.errors import Conflict, NotFound
from lakestore_server.iceberg.ledger import (
    CatalogChange,
    CatalogStep,
    DropNamespace,
    DropPointer,
    Pointer,
    SetNamespace,
    SetPointer,
    TierRecord,
)

Namespaces = dict[str, Mapping[str, str]]
Pointers = dict[tuple[str, str], Pointer]


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


def check(change: CatalogChange, namespaces: Mapping[str, Any], pointers: Mapping[tuple[str, str], Pointer]) -> None:
    """Refuse a change whose expectations are not met; nothing of it is written then."""
    known = set(namespaces)
    current: dict[tuple[str, str], str | None] = {}
    for step in change.steps:
        if isinstance(step, SetNamespace):
            known.add(step.namespace)
        elif isinstance(step, DropNamespace):
            if any(namespace == step.namespace for namespace, _ in pointers):
                raise Conflict(f"namespace {step.namespace} is not empty")
            known.discard(step.namespace)
        else:
            if step.namespace not in known:
                raise NotFound(f"there is no namespace {step.namespace}")
            _check_pointer(step, current, pointers)


def _check_pointer(
    step: SetPointer | DropPointer,
    current: dict[tuple[str, str], str | None],
    pointers: Mapping[tuple[str, str], Pointer],
) -> None:
    key = (step.namespace, step.name)
    here = pointers.get(key)
    location = current.get(key, here.location if here else None)
    if isinstance(step, DropPointer):
        if location is None:
            raise NotFound(f"there is no table {step.namespace}.{step.name}")
        current[key] = None
        return
    if location != step.expected:
        raise Conflict(f"table {step.namespace}.{step.name} was changed by another commit")
    current[key] = step.pointer.location


def apply(change: CatalogChange, namespaces: Namespaces, pointers: Pointers) -> None:
    """Do what a checked change says."""
    for step in change.steps:
        if isinstance(step, SetNamespace):
            namespaces[step.namespace] = step.properties
        elif isinstance(step, DropNamespace):
            namespaces.pop(step.namespace, None)
        elif isinstance(step, DropPointer):
            pointers.pop((step.namespace, step.name), None)
        else:
            pointers[step.namespace, step.name] = step.pointer


def tier_changes(change: CatalogChange) -> Iterator[tuple[str, tuple[TierRecord, ...], frozenset[int]]]:
    """(table uuid, records to add, snapshot ids to forget) of each step that has any."""
    for step in change.steps:
        if isinstance(step, SetPointer) and (step.tiers or step.forget):
            yield step.pointer.uuid, step.tiers, frozenset(step.forget)
