"""The sections `lakestore.owner` and `lakestore.schemaChanges`: the principals that decide about a table.

- The owner and the delegates change the contract, and whatever rows mean: key, event time, retention, schema policy.
- They and the approvers decide about changes of columns that the policy says need an approval.
- Names are principals of the server's auth file. A server without one cannot tell callers apart: see docs/owners.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakestore.errors import Invalid
from lakestore.model import ttl
from lakestore.model.contract.document import Entry
from lakestore.model.outside_values import excerpt

OWNER, SCHEMA_CHANGES = "lakestore.owner", "lakestore.schemaChanges"
ALLOW, APPROVE, REFUSE = "allow", "approve", "refuse"
KINDS = ("add", "widen", "rename", "drop")
"""Kinds of changes of columns."""
NAMES_MAX = 100
"""Delegates, or approvers, of one table."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """The principals that decide about a table."""

    owner: str
    delegates: tuple[str, ...] = ()
    approvers: tuple[str, ...] = ()

    def is_owner(self, principal: str) -> bool:
        """Whether a principal is the owner or a delegate."""
        return principal in (self.owner, *self.delegates)

    def is_approver(self, principal: str) -> bool:
        """Whether a principal decides about proposals: the owner, a delegate or an approver."""
        return self.is_owner(principal) or principal in self.approvers

    @property
    def all_approvers(self) -> list[str]:
        """Everybody who decides about proposals, the owner first."""
        return list(dict.fromkeys((self.owner, *self.delegates, *self.approvers)))


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """The rule for changes of columns, by kind."""

    add: str = ALLOW
    widen: str = ALLOW
    rename: str = ALLOW
    drop: str = ALLOW
    old_names_seconds: int = 0
    """Seconds for which queries may use the name that a column had before a rename."""

    def of(self, kind: str) -> str:
        """`allow`, `approve` or `refuse` for a kind of change."""
        return str(getattr(self, kind))


def read_owner(properties: Mapping[str, Entry]) -> Ownership | None:
    """The owner that a contract names; None if it names none. Raises `Invalid` with the line."""
    entry = properties.get(OWNER)
    if entry is None:
        return None
    entry.check_keys("owner", "delegates", "approvers")
    owner = entry.text("owner")
    if not owner:
        raise entry.error("has no owner: name a principal")
    return Ownership(owner, _names(entry, "delegates"), _names(entry, "approvers"))


def read_policy(properties: Mapping[str, Entry], owner: Ownership | None) -> SchemaPolicy:
    """The policy of schema changes. A kind that is left out is allowed. Raises `Invalid` with the line."""
    entry = properties.get(SCHEMA_CHANGES)
    if entry is None:
        return SchemaPolicy()
    entry.check_keys(*KINDS, "oldNames")
    said = {kind: entry.text(kind, ALLOW) for kind in KINDS}
    for kind, value in said.items():
        if value not in (ALLOW, APPROVE, REFUSE):
            place = entry.field(kind) or entry
            raise place.error(f"is {ALLOW}, {APPROVE} or {REFUSE}, not {excerpt(value)}")
        if value == APPROVE and owner is None:
            place = entry.field(kind) or entry
            raise place.error(f"needs somebody who approves: add the property {OWNER}")
    return SchemaPolicy(**said, old_names_seconds=_old_names(entry))


def _old_names(entry: Entry) -> int:
    place = entry.field("oldNames")
    if place is None:
        return 0
    try:
        return ttl.seconds(place.value, "oldNames")
    except Invalid as error:
        raise place.error("is a span of time such as '30d'") from error


def _names(entry: Entry, key: str) -> tuple[str, ...]:
    found: list[str] = []
    for place in entry.listed(key):
        if not isinstance(place.value, str) or not place.value:
            raise place.error(f"is the name of a principal, not {excerpt(place.value)}")
        if place.value in found:
            raise place.error(f"names {excerpt(place.value)} twice")
        found.append(place.value)
    if len(found) > NAMES_MAX:
        raise (entry.field(key) or entry).error(f"names more than {NAMES_MAX} principals")
    return tuple(found)


def without_owner(document: Any) -> Any:
    """The values of a document without every `lakestore.owner`: two documents that name other owners are equal."""
    if isinstance(document, dict):
        return {
            key: [each for each in value if not _is_owner(each)]
            if key == "customProperties" and isinstance(value, list)
            else without_owner(value)
            for key, value in document.items()
        }
    return [without_owner(each) for each in document] if isinstance(document, list) else document


def _is_owner(value: Any) -> bool:
    return isinstance(value, dict) and value.get("property") == OWNER
