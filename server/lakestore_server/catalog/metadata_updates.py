"""Every update action of the Iceberg REST protocol on table metadata, by the rules of Iceberg Java's builder. Pure.

The caller passes the time and new uuids. A snapshot that comes too late (sequence number, first row id) is a
`Conflict`: the client makes it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from lakestore.errors import Conflict, Invalid
from lakestore_server.catalog import schemas
from lakestore_server.catalog.metadata import (
    MAIN,
    NO_SNAPSHOT,
    PREVIOUS_VERSIONS_MAX,
    by_id,
    check_format,
    empty,
    main_of,
    snapshot_ids,
    with_single,
)
from lakestore_server.catalog.metadata_store import SKEW_MS
from lakestore_server.catalog.schemas import Json

_PREVIOUS_VERSIONS_DEFAULT = 100


class Draft:
    """Metadata while updates are applied to it."""

    def __init__(self, base: Json, now_ms: int) -> None:
        self.base = base
        self.doc: Json = dict(base)
        self.now_ms = now_ms
        self.changed = False
        self.snapshots = snapshot_ids(base)
        self.added: set[int] = set()
        self.was_main: set[int] = set()
        self.time_ms = int(base["last-updated-ms"])
        self._is_touched = False
        self.last_schema: int | None = None
        self.last_spec: int | None = None
        self.last_order: int | None = None

    def put(self, key: str, value: Any) -> None:
        """Set a top-level field."""
        if self.doc.get(key) != value:
            self.doc[key] = value
            self.changed = True

    def append(self, key: str, item: Any) -> None:
        self.doc[key] = [*(self.doc.get(key) or ()), item]
        self.changed = True

    def keep(self, key: str, wanted: Callable[[Any], bool]) -> None:
        """Keep only the wanted items of a top-level list."""
        old = self.doc.get(key) or []
        new = [item for item in old if wanted(item)]
        if len(new) != len(old):
            self.doc[key] = new
            self.changed = True

    def finished(self, base_location: str | None) -> Json:
        """The new metadata with its logs, or the base if nothing changed."""
        if not self.changed:
            return self.base
        self._check()
        self.touch()
        self.doc["last-updated-ms"] = self.time_ms
        self.doc["snapshot-log"] = self._snapshot_log()
        if base_location is not None:
            self.doc["metadata-log"] = self._metadata_log(base_location)
        self.doc = with_single(self.doc)
        return self.doc

    def touch(self, snapshot_ms: int | None = None) -> None:
        """Move the document's time to a new snapshot's, or else once to the catalog's. The time never goes back, and a
        client's clock does not move it ahead of the catalog's."""
        if snapshot_ms is None and self._is_touched:
            return
        self.time_ms = max(self.time_ms, self.now_ms if snapshot_ms is None else min(snapshot_ms, self.now_ms))
        self._is_touched = True

    def _check(self) -> None:
        doc = self.doc
        schema = by_id(doc["schemas"], "schema-id", doc["current-schema-id"])
        spec = by_id(doc["partition-specs"], "spec-id", doc["default-spec-id"])
        order = by_id(doc["sort-orders"], "order-id", doc["default-sort-order-id"])
        if schema is None or spec is None or order is None or not doc["location"]:
            raise Invalid("a table needs a current schema, a default spec, a default sort order and a location")
        schemas.check_sources("default partition spec", spec, schema)
        schemas.check_sources("default sort order", order, schema)

    def _snapshot_log(self) -> list[Json]:
        """The snapshot log without snapshots that main only passed through, and without history before a gap."""
        main = main_of(self.doc)
        passed = {number for number in self.was_main & self.added if number != main}
        log: list[Json] = []
        for entry in self.doc.get("snapshot-log") or ():
            if entry["snapshot-id"] not in self.snapshots:
                log.clear()
            elif entry["snapshot-id"] not in passed:
                log.append(entry)
        return log

    def _metadata_log(self, base_location: str) -> list[Json]:
        try:
            kept = max(1, int(self.doc["properties"].get(PREVIOUS_VERSIONS_MAX, _PREVIOUS_VERSIONS_DEFAULT)))
        except ValueError as error:
            raise Invalid(f"{PREVIOUS_VERSIONS_MAX} is not a number") from error
        entry = {"timestamp-ms": self.base["last-updated-ms"], "metadata-file": base_location}
        return [*(self.base.get("metadata-log") or ()), entry][-kept:]


LAST_ADDED = -1
"""Stands for the id of the schema, spec or order that the same request added."""
_RESERVED = ("format-version", "uuid", "snapshot-count", "current-snapshot-summary", "current-snapshot-id")


def created(
    *,
    uuid: str,
    location: str,
    schema: Json,
    spec: Json | None,
    order: Json | None,
    properties: Mapping[str, str],
    now_ms: int,
) -> Json:
    """The first metadata of a table that a client describes; field ids are assigned here."""
    version = _format_of(properties)
    try:
        fresh, ids = schemas.fresh_ids(schema)
        parts = [schemas.mapped_sources(part, ids) for part in (spec or {"fields": ()})["fields"]]
        sorts = [schemas.mapped_sources(part, ids) for part in (order or {"fields": ()})["fields"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise Invalid(f"the table's schema, spec or sort order is malformed: {error!r}") from error
    for part in parts:
        part.pop("field-id", None)
    updates: list[Json] = [
        {"action": "add-schema", "schema": fresh},
        {"action": "set-current-schema", "schema-id": LAST_ADDED},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": parts}},
        {"action": "set-default-spec", "spec-id": LAST_ADDED},
        {"action": "add-sort-order", "sort-order": {"order-id": 1, "fields": sorts}},
        {"action": "set-default-sort-order", "sort-order-id": LAST_ADDED},
        {"action": "set-location", "location": location},
        {"action": "set-properties", "updates": dict(properties)},
    ]
    return updated(empty(uuid, now_ms, version), updates, now_ms=now_ms, base_location=None)


def updated(base: Json, updates: Sequence[Json], *, now_ms: int, base_location: str | None) -> Json:
    """The base after the updates, or the base itself if nothing changes. `base_location` is the location of the base's
    file; None if it was never stored."""
    draft = Draft(base, now_ms)
    for update in updates:
        run_update(ACTIONS, draft, update)
    return draft.finished(base_location)


def _format_of(properties: Mapping[str, str]) -> int:
    try:
        version = int(properties.get("format-version", 2))
    except ValueError as error:
        raise Invalid("format-version is not a number") from error
    check_format(version)
    return version


Target = TypeVar("Target")
"""The draft that an update changes."""


def run_update(
    handlers: Mapping[str, Callable[[Target, Json], None]], draft: Target, update: Json, of: str = ""
) -> None:
    """Apply one update, or `Invalid` for one that is malformed or not known. `of` is for the sentence."""
    action = update.get("action")
    handler = handlers.get(action) if isinstance(action, str) else None
    if handler is None:
        raise Invalid(f"update action {action!r}{of} is not known")
    try:
        handler(draft, update)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Invalid(f"update {action!r}{of} is malformed: {error!r}") from error


def _assign_uuid(draft: Draft, update: Json) -> None:
    draft.put("table-uuid", _text(update, "uuid"))


def _upgrade_format_version(draft: Draft, update: Json) -> None:
    version, current = update["format-version"], draft.doc["format-version"]
    check_format(version)
    if version < current:
        raise Invalid(f"a table of format version {current} cannot become {version}")
    draft.put("format-version", version)
    if version >= 3:
        draft.doc.setdefault("next-row-id", 0)


def _add_schema(draft: Draft, update: Json) -> None:
    schema: Json = {"type": "struct", **update["schema"]}
    schemas.check_schema(schema, draft.doc["format-version"])
    highest = max(schemas.field_ids(schema), default=0)
    last = max(draft.doc["last-column-id"], highest, update.get("last-column-id") or 0)
    known = draft.doc["schemas"]
    number = next((old["schema-id"] for old in known if schemas.same_schema(old, schema)), None)
    if number is None:
        number = max((old["schema-id"] for old in known), default=-1) + 1
        draft.append("schemas", {**schema, "schema-id": number})
    draft.put("last-column-id", last)
    draft.last_schema = number


def _set_current_schema(draft: Draft, update: Json) -> None:
    number = _added(update["schema-id"], draft.last_schema, "schema")
    if by_id(draft.doc["schemas"], "schema-id", number) is None:
        raise Invalid(f"there is no schema {number}")
    draft.put("current-schema-id", number)


def _add_spec(draft: Draft, update: Json) -> None:
    known = draft.doc["partition-specs"]
    spec, last = schemas.numbered_spec(update["spec"], known, draft.doc["last-partition-id"])
    number = next((old["spec-id"] for old in known if schemas.same_spec(old, spec)), None)
    if number is None:
        number = max((old["spec-id"] for old in known), default=-1) + 1
        draft.append("partition-specs", {**spec, "spec-id": number})
        draft.put("last-partition-id", last)
    draft.last_spec = number


def _set_default_spec(draft: Draft, update: Json) -> None:
    number = _added(update["spec-id"], draft.last_spec, "partition spec")
    if by_id(draft.doc["partition-specs"], "spec-id", number) is None:
        raise Invalid(f"there is no partition spec {number}")
    draft.put("default-spec-id", number)


def _add_sort_order(draft: Draft, update: Json) -> None:
    order, known = update["sort-order"], draft.doc["sort-orders"]
    number = next((old["order-id"] for old in known if schemas.same_order(old, order)), None)
    if number is None:
        number = max((0, *(old["order-id"] for old in known))) + 1 if order["fields"] else 0
        draft.append("sort-orders", {**order, "order-id": number})
    draft.last_order = number


def _set_default_sort_order(draft: Draft, update: Json) -> None:
    number = _added(update["sort-order-id"], draft.last_order, "sort order")
    if by_id(draft.doc["sort-orders"], "order-id", number) is None:
        raise Invalid(f"there is no sort order {number}")
    draft.put("default-sort-order-id", number)


def _add_snapshot(draft: Draft, update: Json) -> None:
    snapshot: Json = {key: value for key, value in update["snapshot"].items() if value is not None}
    number, timestamp = _number(snapshot, "snapshot-id"), _number(snapshot, "timestamp-ms")
    has_sequence = draft.doc["format-version"] >= 2
    sequence = _number(snapshot, "sequence-number") if has_sequence else 0
    _text(snapshot, "manifest-list")
    _strings(snapshot.get("summary") or {})
    if number in draft.snapshots:
        raise Invalid(f"snapshot {number} is in the table already")
    last = draft.doc["last-sequence-number"]
    if has_sequence and sequence <= last and "parent-snapshot-id" in snapshot:
        raise Conflict(f"snapshot {number} has sequence number {sequence}, but the table is at {last}: make it again")
    late = int(draft.base["last-updated-ms"]) - timestamp
    if late > SKEW_MS:
        raise Conflict(
            f"snapshot {number} is {late // 1000:,} s older than the table's last change: make it again, and set the "
            "clocks of this client and of the catalog by NTP if they differ"
        )
    if draft.doc["format-version"] >= 3:
        _take_row_ids(draft, snapshot)
    draft.append("snapshots", snapshot)
    draft.snapshots.add(number)
    draft.added.add(number)
    draft.put("last-sequence-number", max(last, sequence))
    draft.touch(timestamp)


def _take_row_ids(draft: Draft, snapshot: Json) -> None:
    first, rows, following = (
        _number(snapshot, "first-row-id"),
        _number(snapshot, "added-rows"),
        draft.doc["next-row-id"],
    )
    if rows < 0:
        raise Invalid(f"snapshot {snapshot['snapshot-id']} adds {rows} rows")
    if first < following:
        raise Conflict(f"snapshot {snapshot['snapshot-id']} has first-row-id {first}, but the table is at {following}")
    draft.put("next-row-id", first + rows)


def _set_snapshot_ref(draft: Draft, update: Json) -> None:
    name, number = _text(update, "ref-name"), _number(update, "snapshot-id")
    ref = {key: value for key, value in update.items() if key not in ("action", "ref-name") and value is not None}
    if ref["type"] not in ("branch", "tag") or (name == MAIN and ref["type"] != "branch"):
        raise Invalid(f"ref {name!r} cannot be a {ref['type']!r}")
    if draft.doc["refs"].get(name) == ref:
        return
    if number not in draft.snapshots:
        raise Invalid(f"ref {name!r} cannot name snapshot {number}, which is not in the table")
    if name == MAIN:
        _move_main(draft, number)
    draft.put("refs", {**draft.doc["refs"], name: ref})


def _move_main(draft: Draft, number: int) -> None:
    draft.touch()
    if main_of(draft.doc) != number:
        draft.append("snapshot-log", {"timestamp-ms": draft.time_ms, "snapshot-id": number})
        draft.put("current-snapshot-id", number)
    draft.was_main.add(number)


def _remove_snapshot_ref(draft: Draft, update: Json) -> None:
    _remove_ref(draft, _text(update, "ref-name"))


def _remove_ref(draft: Draft, name: str) -> None:
    if name == MAIN:
        draft.put("current-snapshot-id", None if draft.doc["format-version"] >= 3 else NO_SNAPSHOT)
    draft.put("refs", {other: ref for other, ref in draft.doc["refs"].items() if other != name})


def _remove_snapshots(draft: Draft, update: Json) -> None:
    gone = set(update["snapshot-ids"])
    for key in ("snapshots", "statistics", "partition-statistics"):
        draft.keep(key, lambda item: item["snapshot-id"] not in gone)
    draft.snapshots -= gone
    for name in [name for name, ref in draft.doc["refs"].items() if ref["snapshot-id"] in gone]:
        _remove_ref(draft, name)


def _set_location(draft: Draft, update: Json) -> None:
    draft.put("location", _text(update, "location").rstrip("/"))


def _set_properties(draft: Draft, update: Json) -> None:
    changes = _strings(update.get("updates") or update.get("updated") or {})
    fresh = {key: value for key, value in changes.items() if key not in _RESERVED}
    draft.put("properties", {**draft.doc["properties"], **fresh})


def _remove_properties(draft: Draft, update: Json) -> None:
    gone = set(update.get("removals") or update.get("removed") or ())
    draft.put("properties", {key: value for key, value in draft.doc["properties"].items() if key not in gone})


def _set_file(key: str, field: str) -> Callable[[Draft, Json], None]:
    def action(draft: Draft, update: Json) -> None:
        number = _number(update[field], "snapshot-id")
        draft.keep(key, lambda item: item["snapshot-id"] != number)
        draft.append(key, update[field])

    return action


def _remove_by(key: str, field: str, item_field: str) -> Callable[[Draft, Json], None]:
    def action(draft: Draft, update: Json) -> None:
        draft.keep(key, lambda item: item[item_field] != update[field])

    return action


def _remove_unused(key: str, field: str, item_field: str, current: str) -> Callable[[Draft, Json], None]:
    def action(draft: Draft, update: Json) -> None:
        gone = set(update[field])
        if draft.doc[current] in gone:
            raise Invalid(f"{current} {draft.doc[current]} is in use and cannot be removed")
        draft.keep(key, lambda item: item[item_field] not in gone)

    return action


def _add_encryption_key(draft: Draft, update: Json) -> None:
    key = update["encryption-key"]
    draft.keep("encryption-keys", lambda item: item["key-id"] != key["key-id"])
    draft.append("encryption-keys", key)


def _enable_row_lineage(draft: Draft, update: Json) -> None:
    if draft.doc["format-version"] < 3:
        raise Invalid("row lineage needs format version 3")


def _added(number: int, last: int | None, what: str) -> int:
    if number != LAST_ADDED:
        return number
    if last is None:
        raise Invalid(f"no {what} was added, so none can be the last added")
    return last


def _number(holder: Json, key: str) -> int:
    if type(holder[key]) is not int:
        raise Invalid(f"{key} is not a whole number")
    return int(holder[key])


def _text(holder: Json, key: str) -> str:
    if not isinstance(holder[key], str) or not holder[key]:
        raise Invalid(f"{key} is not a text")
    return str(holder[key])


def _strings(properties: Mapping[str, Any]) -> dict[str, str]:
    for key, value in properties.items():
        if not isinstance(value, str):
            raise Invalid(f"property {key!r} is not a text")
    return dict(properties)


ACTIONS: dict[str, Callable[[Draft, Json], None]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade_format_version,
    "add-schema": _add_schema,
    "set-current-schema": _set_current_schema,
    "add-spec": _add_spec,
    "add-partition-spec": _add_spec,
    "set-default-spec": _set_default_spec,
    "add-sort-order": _add_sort_order,
    "set-default-sort-order": _set_default_sort_order,
    "add-snapshot": _add_snapshot,
    "set-snapshot-ref": _set_snapshot_ref,
    "remove-snapshot-ref": _remove_snapshot_ref,
    "remove-snapshots": _remove_snapshots,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
    "set-statistics": _set_file("statistics", "statistics"),
    "remove-statistics": _remove_by("statistics", "snapshot-id", "snapshot-id"),
    "set-partition-statistics": _set_file("partition-statistics", "partition-statistics"),
    "remove-partition-statistics": _remove_by("partition-statistics", "snapshot-id", "snapshot-id"),
    "remove-partition-specs": _remove_unused("partition-specs", "spec-ids", "spec-id", "default-spec-id"),
    "remove-schemas": _remove_unused("schemas", "schema-ids", "schema-id", "current-schema-id"),
    "add-encryption-key": _add_encryption_key,
    "remove-encryption-key": _remove_by("encryption-keys", "key-id", "key-id"),
    "enable-row-lineage": _enable_row_lineage,
}
"""Every update action of the protocol."""
