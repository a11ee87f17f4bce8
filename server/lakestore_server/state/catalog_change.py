"""Changes of the Iceberg catalog as values, and their effect on namespaces, pointers and tier records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lakestore.errors import Conflict, LimitReached, NotFound

DROPPED = "\0dropped"
"""The namespace of the pointers of dropped tables, by uuid; no catalog name begins like it."""

NAMESPACES_MAX = 100_000
"""The most databases of a server, because every checkpoint and the memory hold them."""
PROPERTIES_TOTAL_BYTES_MAX = 32 << 20
"""The most bytes of all databases' properties, because every checkpoint and the memory hold them."""

VIEWS_TOTAL_CHARS_MAX = 32 << 20
"""The most characters of the metadata of all SQL views, because every checkpoint and the memory hold them."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """The location of an Iceberg table's current metadata."""

    location: str
    """URI of metadata.json."""
    uuid: str
    """The Iceberg table's uuid; our own tables have the Lakestore table's uuid."""


@dataclass(frozen=True, slots=True)
class SqlView:
    """A SQL view of the catalog. Its metadata is here and not only in the warehouse."""

    location: str
    """URI of a file with the same metadata. It changes with every change of the view."""
    uuid: str
    document: str
    """The Iceberg metadata of the view, as JSON."""


@dataclass(frozen=True, slots=True)
class TierRecord:
    """A snapshot of main that holds a table's state exactly as of a tier point."""

    snapshot_id: int
    tier_point: tuple[int, ...]
    """Per bucket, the offset below which everything is in the lake."""
    live_sums: tuple[int, ...]
    """Per bucket, the live sum at the tier point."""
    lsn: int
    """The commit whose end is the tier point."""
    epoch: int
    live_rows: int | None = None
    """Live rows at the tier point; None in older records."""
    schema_id: int = 0
    """The snapshot's version of the table's definition."""
    is_numbered: bool = False
    """True if a table that was adopted has no data file without columns for row numbers in this snapshot."""


@dataclass(frozen=True, slots=True)
class SetPointer:
    """Create (`expected` is None) or move one pointer; `Conflict` if `expected` is not current."""

    namespace: str
    name: str
    expected: str | None
    pointer: Pointer
    tiers: tuple[TierRecord, ...] = ()
    """Tier records to add: a flush, or a replace that gives the last tier point to a new snapshot."""
    forget: tuple[int, ...] = ()
    """Expired snapshot ids, whose tier records are removed."""


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


@dataclass(frozen=True, slots=True)
class SetView:
    """Create (`expected` is None) or change one SQL view; `Conflict` if `expected` is not its location."""

    namespace: str
    name: str
    expected: str | None
    view: SqlView


@dataclass(frozen=True, slots=True)
class DropView:
    """Remove one SQL view."""

    namespace: str
    name: str


CatalogStep = SetPointer | DropPointer | SetNamespace | DropNamespace | SetView | DropView


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """Steps that happen together or not at all."""

    steps: tuple[CatalogStep, ...]
    idempotency_key: str = ""


Namespaces = dict[str, Mapping[str, str]]


Pointers = dict[tuple[str, str], Pointer]


SqlViews = dict[tuple[str, str], SqlView]


def check_change(
    change: CatalogChange,
    namespaces: Mapping[str, Mapping[str, str]],
    pointers: Mapping[tuple[str, str], Pointer],
    views: Mapping[tuple[str, str], SqlView],
) -> None:
    """Refuse a change whose expectations are not met, before anything is written."""
    known = set(namespaces)
    tables: Locations = {}
    shown: Locations = {}
    for step in change.steps:
        if isinstance(step, SetNamespace):
            if step.namespace not in known and len(known) >= NAMESPACES_MAX:
                raise LimitReached(f"the server has {NAMESPACES_MAX:,} databases, its limit: drop some that are empty")
            known.add(step.namespace)
            _check_properties(step, namespaces)
        elif isinstance(step, DropNamespace):
            if any(namespace == step.namespace for namespace, _ in (*pointers, *views)):
                raise Conflict(f"namespace {step.namespace} is not empty")
            known.discard(step.namespace)
        elif step.namespace not in known and step.namespace != DROPPED:
            raise NotFound(f"there is no namespace {step.namespace}")
        elif isinstance(step, SetPointer | DropPointer):
            _check_pointer(step, tables, pointers)
            if isinstance(step, SetPointer) and step.expected is None and (step.namespace, step.name) in views:
                raise Conflict(f"there is a view {step.namespace}.{step.name}: choose another name")
        else:
            _check_view(step, shown, views)
            if isinstance(step, SetView) and (step.namespace, step.name) in pointers:
                raise Conflict(f"there is a table {step.namespace}.{step.name}: choose another name")


Locations = dict[tuple[str, str], str | None]
"""Name to location, or None once it is dropped, for the names that earlier steps of a change have set."""


def _check_view(step: SetView | DropView, current: Locations, views: Mapping[tuple[str, str], SqlView]) -> None:
    here = views.get((step.namespace, step.name))
    _check_move("view", step, here.location if here else None, current)
    if isinstance(step, DropView):
        return
    more = len(step.view.document) - (len(here.document) if here else 0)
    if more > 0 and more + sum(len(view.document) for view in views.values()) > VIEWS_TOTAL_CHARS_MAX:
        raise LimitReached(
            f"the metadata of all views would take more than {VIEWS_TOTAL_CHARS_MAX:,} characters, the limit: drop some"
        )
    current[step.namespace, step.name] = step.view.location


def _check_properties(step: SetNamespace, namespaces: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse properties that exceed the limit of all databases together."""
    more = size_of(step.properties) - size_of(namespaces.get(step.namespace, {}))
    if more > 0 and more + sum(map(size_of, namespaces.values())) > PROPERTIES_TOTAL_BYTES_MAX:
        raise LimitReached(
            f"the properties of all databases would take more than {PROPERTIES_TOTAL_BYTES_MAX:,} bytes, the limit:"
            " remove properties, or drop databases that are empty"
        )


def size_of(properties: Mapping[str, str]) -> int:
    """The bytes of some properties."""
    return sum(len(key.encode()) + len(value.encode()) for key, value in properties.items())


def _check_pointer(
    step: SetPointer | DropPointer,
    current: Locations,
    pointers: Mapping[tuple[str, str], Pointer],
) -> None:
    here = pointers.get((step.namespace, step.name))
    _check_move("table", step, here.location if here else None, current)
    if isinstance(step, SetPointer):
        current[step.namespace, step.name] = step.pointer.location


def _check_move(
    noun: str, step: SetPointer | DropPointer | SetView | DropView, here: str | None, current: Locations
) -> None:
    """Refuse to drop what is not there, or to set what another commit has changed. A drop is noted."""
    key = (step.namespace, step.name)
    location = current.get(key, here)
    if isinstance(step, SetPointer | SetView):
        if location != step.expected:
            raise Conflict(f"{noun} {step.namespace}.{step.name} was changed by another commit")
        return
    if location is None:
        raise NotFound(f"there is no {noun} {step.namespace}.{step.name}")
    current[key] = None


def apply(change: CatalogChange, namespaces: Namespaces, pointers: Pointers, views: SqlViews) -> None:
    """Apply a checked change."""
    for step in change.steps:
        if isinstance(step, SetNamespace):
            namespaces[step.namespace] = step.properties
        elif isinstance(step, DropNamespace):
            namespaces.pop(step.namespace, None)
        elif isinstance(step, DropPointer):
            pointers.pop((step.namespace, step.name), None)
        elif isinstance(step, SetPointer):
            pointers[step.namespace, step.name] = step.pointer
        elif isinstance(step, DropView):
            views.pop((step.namespace, step.name), None)
        else:
            views[step.namespace, step.name] = step.view


def tier_changes(change: CatalogChange) -> Iterator[tuple[str, tuple[TierRecord, ...], frozenset[int]]]:
    """(table uuid, records to add, snapshot ids to remove) of each step that has any."""
    for step in change.steps:
        if isinstance(step, SetPointer) and (step.tiers or step.forget):
            yield step.pointer.uuid, step.tiers, frozenset(step.forget)
