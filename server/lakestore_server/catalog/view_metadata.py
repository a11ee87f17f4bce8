"""Iceberg metadata of SQL views as plain JSON: creation, updates, requirements, by the rules of Iceberg Java. Pure.

- A version has one SQL text for each dialect; a replacement that loses a dialect is refused unless the view's
  property `replace.drop-dialect.allowed` is true.
- A version that equals a kept one gets the kept one's number.
- `version.history.num-entries` versions are kept, 10 by default, the newest and the current one first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lakestore.errors import Conflict, Invalid
from lakestore_server.catalog import schemas
from lakestore_server.catalog.errors import BadView
from lakestore_server.catalog.metadata_updates import run_update
from lakestore_server.catalog.schemas import Json

FORMAT_VERSION = 1
"""The format version of Iceberg views."""
METADATA_PATH = "write.metadata.path"
_DROP_DIALECT = "replace.drop-dialect.allowed"
_HISTORY = "version.history.num-entries"
_HISTORY_DEFAULT = 10
_SCHEMA_FORMAT = 3
"""A view has a column of any type that Iceberg knows."""
LAST_ADDED = -1
"""Stands for the schema or version that the same request added."""


def created(*, uuid: str, location: str, schema: Json, version: Json, properties: Mapping[str, str]) -> Json:
    """The first metadata of a view."""
    base: Json = {
        "view-uuid": uuid,
        "format-version": FORMAT_VERSION,
        "location": location,
        "schemas": [],
        "current-version-id": 0,
        "versions": [],
        "version-log": [],
        "properties": {},
    }
    updates: tuple[Json, ...] = (
        {"action": "add-schema", "schema": schema},
        {"action": "add-view-version", "view-version": {**version, "version-id": 1, "schema-id": LAST_ADDED}},
        {"action": "set-current-view-version", "view-version-id": LAST_ADDED},
        {"action": "set-properties", "updates": properties},
    )
    return updated(base, updates, now_ms=0)


def updated(base: Json, updates: Sequence[Json], *, now_ms: int) -> Json:
    """The base after the updates, or the base itself if nothing changes."""
    draft = _Draft(base, now_ms)
    for update in updates:
        run_update(_ACTIONS, draft, update, " of a view")
    return draft.finished()


def check_requirements(requirements: Sequence[Json], base: Json) -> None:
    """`Conflict` for the first requirement that the view does not meet; `Invalid` for one that is not known."""
    for requirement in requirements:
        if requirement.get("type") != "assert-view-uuid":
            raise Invalid(f"requirement {requirement.get('type')!r} of a view is not known")
        wanted = str(requirement.get("uuid"))
        if wanted.lower() != base["view-uuid"].lower():
            raise Conflict(f"Requirement failed: view UUID does not match: expected {wanted} != {base['view-uuid']}")


class _Draft:
    """A view's metadata while updates are applied to it."""

    def __init__(self, base: Json, now_ms: int) -> None:
        self.base, self.doc, self.now_ms = base, dict(base), now_ms
        self.last_schema: int | None = None
        self.last_version: int | None = None
        self.added: set[int] = set()
        self.entry: Json | None = None
        """The entry for the version log, if the current version changes."""

    def version(self, number: int) -> Json | None:
        return next((each for each in self.doc["versions"] if each["version-id"] == number), None)

    def finished(self) -> Json:
        """The new metadata, or the base if nothing changed."""
        current = self.version(self.doc["current-version-id"])
        if current is None:
            raise BadView("Invalid view: no versions were added")
        if self.entry is not None:
            self.doc["version-log"] = [*self.doc["version-log"], self.entry]
        self._check_dialects(current)
        self._expire(current)
        return self.base if self.doc == self.base else self.doc

    def _check_dialects(self, current: Json) -> None:
        before = next(
            (each for each in self.base["versions"] if each["version-id"] == self.base["current-version-id"]), None
        )
        if before is None or self.doc["properties"].get(_DROP_DIALECT, "false").lower() == "true":
            return
        had, now = _dialects(before), _dialects(current)
        if not set(had) <= set(now):
            raise BadView(
                f"Cannot replace view due to loss of view dialects ({_DROP_DIALECT}=false):\n"
                f"Previous dialects: {had}\nNew dialects: {now}"
            )

    def _expire(self, current: Json) -> None:
        """Keep the newest versions and the current one; forget the log up to an entry of a version that is gone."""
        try:
            size = int(self.doc["properties"].get(_HISTORY, _HISTORY_DEFAULT))
        except ValueError:
            size = 0
        if size < 1:
            raise BadView(f"{_HISTORY} must be positive but was {self.doc['properties'][_HISTORY]}")
        number = current["version-id"]
        most = max(size, len(self.added | {number}))
        versions = self.doc["versions"]
        if len(versions) <= most:
            return
        others = sorted((each["version-id"] for each in versions if each["version-id"] != number), reverse=True)
        kept = {number, *others[: most - 1]}
        self.doc["versions"] = [each for each in versions if each["version-id"] in kept]
        log: list[Json] = []
        for entry in self.doc["version-log"]:
            if entry["version-id"] in kept:
                log.append(entry)
            else:
                log.clear()
        self.doc["version-log"] = log


def _dialects(version: Json) -> list[str]:
    return sorted(part["dialect"].lower() for part in version["representations"] if part["type"] == "sql")


def _assign_uuid(draft: _Draft, update: Json) -> None:
    if update["uuid"] != draft.doc["view-uuid"]:
        raise BadView("Cannot reassign uuid")


def _upgrade(_: _Draft, update: Json) -> None:
    if update["format-version"] != FORMAT_VERSION:
        raise Invalid(f"format version {update['format-version']} of a view is not supported; use {FORMAT_VERSION}")


def _add_schema(draft: _Draft, update: Json) -> None:
    schema: Json = {"type": "struct", **update["schema"]}
    schemas.check_schema(schema, _SCHEMA_FORMAT)
    known = draft.doc["schemas"]
    number = next((each["schema-id"] for each in known if schemas.same_schema(each, schema)), None)
    if number is None:
        number = max((each["schema-id"] for each in known), default=-1) + 1
        draft.doc["schemas"] = [*known, {**schema, "schema-id": number}]
    draft.last_schema = number


def _add_version(draft: _Draft, update: Json) -> None:
    version = _checked(update["view-version"])
    if version["schema-id"] == LAST_ADDED:
        if draft.last_schema is None:
            raise BadView("Cannot set last added schema: no schema has been added")
        version["schema-id"] = draft.last_schema
    if all(each["schema-id"] != version["schema-id"] for each in draft.doc["schemas"]):
        raise BadView(f"Cannot add version with unknown schema: {version['schema-id']}")
    number = version["version-id"]
    for each in draft.doc["versions"]:
        if _meaning(each) == _meaning(version):
            draft.last_version = each["version-id"]
            return
        number = max(number, each["version-id"] + 1)
    draft.doc["versions"] = [*draft.doc["versions"], {**version, "version-id": number}]
    draft.added.add(number)
    draft.last_version = number


def _checked(said: Json) -> Json:
    """A copy of a version with the types that readers need; or `Invalid`."""
    version = {key: value for key, value in said.items() if value is not None}
    for key in ("version-id", "schema-id", "timestamp-ms"):
        if type(version[key]) is not int:
            raise Invalid(f"{key} of a view's version is not a whole number")
    namespace, summary, parts = version["default-namespace"], version.get("summary", {}), version["representations"]
    if not isinstance(namespace, list) or not all(isinstance(level, str) for level in namespace):
        raise Invalid("default-namespace of a view's version is not a list of texts")
    if not isinstance(version.get("default-catalog", ""), str):
        raise Invalid("default-catalog of a view's version is not a text")
    if not all(isinstance(value, str) for value in summary.values()):
        raise Invalid("summary of a view's version has a value that is not a text")
    if not isinstance(parts, list) or not parts:
        raise Invalid("a view's version has no representation: send its SQL text and the dialect")
    dialects: set[str] = set()
    for part in parts:
        if part["type"] != "sql" or not isinstance(part["sql"], str) or not isinstance(part["dialect"], str):
            raise Invalid("a representation of a view is {type: sql, sql: text, dialect: name}")
        dialect = part["dialect"].lower()
        if dialect in dialects:
            raise BadView(f"Invalid view version: Cannot add multiple queries for dialect {dialect}")
        dialects.add(dialect)
    return {**version, "summary": summary}


def _meaning(version: Json) -> list[Any]:
    """The parts of a version that readers use."""
    keys = ("summary", "representations", "default-catalog", "default-namespace", "schema-id")
    return [version.get(key) for key in keys]


def _set_current(draft: _Draft, update: Json) -> None:
    number = update["view-version-id"]
    if number == LAST_ADDED:
        if draft.last_version is None:
            raise BadView("Cannot set last version id: no current version id has been set")
        number = draft.last_version
    version = draft.version(number)
    if version is None:
        raise BadView(f"Cannot set current version to unknown version: {number}")
    if number == draft.doc["current-version-id"]:
        return
    draft.doc["current-version-id"] = number
    time_ms = version["timestamp-ms"] if number in draft.added else draft.now_ms
    draft.entry = {"timestamp-ms": time_ms, "version-id": number}


def _set_location(draft: _Draft, update: Json) -> None:
    if not isinstance(update["location"], str) or not update["location"]:
        raise Invalid("the location of a view is not a text")
    draft.doc["location"] = update["location"]


def _set_properties(draft: _Draft, update: Json) -> None:
    if not all(isinstance(value, str) for value in update["updates"].values()):
        raise Invalid("properties are texts")
    draft.doc["properties"] = {**draft.doc["properties"], **update["updates"]}


def _remove_properties(draft: _Draft, update: Json) -> None:
    gone = set(update["removals"])
    draft.doc["properties"] = {key: value for key, value in draft.doc["properties"].items() if key not in gone}


_ACTIONS: dict[str, Callable[[_Draft, Json], None]] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade,
    "add-schema": _add_schema,
    "add-view-version": _add_version,
    "set-current-view-version": _set_current,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
}
"""Every update action of a view in the protocol."""
