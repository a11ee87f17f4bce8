"""Requirements of a commit on the metadata that it meets: one small check for each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakestore.errors import Conflict, Invalid
from lakestore_server.iceberg.schemas import Json

ASSERT_CREATE = "assert-create"


def creates(requirements: Sequence[Json]) -> bool:
    """Whether the request is to create the table."""
    return any(each.get("type") == ASSERT_CREATE for each in requirements)


def check(requirements: Sequence[Json], base: Json | None) -> None:
    """`Conflict` for the first requirement that the table does not meet; `Invalid` for a malformed one."""
    for requirement in requirements:
        kind = requirement.get("type")
        checker = _CHECKS.get(kind) if isinstance(kind, str) else None
        if checker is None:
            raise Invalid(f"requirement {kind!r} is not known")
        try:
            problem = checker(requirement, base)
        except KeyError as error:
            raise Invalid(f"requirement {kind!r} lacks {error}") from error
        except (TypeError, AttributeError) as error:
            raise Invalid(f"requirement {kind!r} is malformed: {error}") from error
        if problem:
            raise Conflict(f"Requirement failed: {problem}")


def _create(requirement: Json, base: Json | None) -> str:
    return "table already exists" if base is not None else ""


def _uuid(requirement: Json, base: Json | None) -> str:
    found = base["table-uuid"] if base else None
    wanted = requirement["uuid"]
    if found is not None and str(found).lower() == str(wanted).lower():
        return ""
    return f"UUID does not match: expected {found} != {wanted}"


def _ref(requirement: Json, base: Json | None) -> str:
    name, wanted = requirement["ref"], requirement.get("snapshot-id")
    found = ((base or {}).get("refs") or {}).get(name, {}).get("snapshot-id")
    if found == wanted:
        return ""
    if wanted is None:
        return f"branch or tag {name} was created concurrently"
    if found is None:
        return f"branch or tag {name} is missing, expected {wanted}"
    return f"branch or tag {name} has changed: expected id {wanted} != {found}"


def _same(field: str, asked: str, what: str) -> Callable[[Json, Json | None], str]:
    def checker(requirement: Json, base: Json | None) -> str:
        found = base[field] if base else None
        wanted = requirement[asked]
        return "" if found == wanted else f"{what} changed: expected id {wanted} != {found}"

    return checker


_CHECKS: dict[str, Callable[[Json, Json | None], str]] = {
    ASSERT_CREATE: _create,
    "assert-table-uuid": _uuid,
    "assert-ref-snapshot-id": _ref,
    "assert-last-assigned-field-id": _same("last-column-id", "last-assigned-field-id", "last assigned field id"),
    "assert-current-schema-id": _same("current-schema-id", "current-schema-id", "current schema"),
    "assert-last-assigned-partition-id": _same(
        "last-partition-id", "last-assigned-partition-id", "last assigned partition id"
    ),
    "assert-default-spec-id": _same("default-spec-id", "default-spec-id", "default partition spec"),
    "assert-default-sort-order-id": _same("default-sort-order-id", "default-sort-order-id", "default sort order"),
}
