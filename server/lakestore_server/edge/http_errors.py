"""Errors as the HTTP port answers them: status, name and body of the Iceberg REST protocol.

403 is policy and fencing, which no retry mends; 409 is a true conflict, which clients retry by themselves.
"""

from __future__ import annotations

import orjson

from lakestore.errors import LakestoreError
from lakestore_server.iceberg.errors import (
    AlreadyExists,
    Forbidden,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchView,
    NoSuchWarehouse,
)

_NAMES: dict[type[LakestoreError], tuple[int, str]] = {
    NoSuchNamespace: (404, "NoSuchNamespaceException"),
    NoSuchTable: (404, "NoSuchTableException"),
    NoSuchView: (404, "NoSuchViewException"),
    NoSuchWarehouse: (404, "NoSuchWarehouseException"),
    AlreadyExists: (409, "AlreadyExistsException"),
    NamespaceNotEmpty: (409, "NamespaceNotEmptyException"),
    Forbidden: (403, "ForbiddenException"),
}
_KINDS = {
    "Invalid": (400, "BadRequestException"),
    "PositionExpired": (400, "BadRequestException"),
    "NotFound": (404, "NotFoundException"),
    "Conflict": (409, "CommitFailedException"),
    "Fenced": (403, "ForbiddenException"),
    "Denied": (403, "ForbiddenException"),
    "NotAuthenticated": (401, "NotAuthorizedException"),
    "Unavailable": (503, "ServiceUnavailableException"),
    "Exhausted": (503, "SlowDownException"),
    "LimitReached": (400, "BadRequestException"),
    "NotFresh": (503, "ServiceUnavailableException"),
    "PlanExpired": (503, "ServiceUnavailableException"),
}
"""A kind that is not here is answered as the nearest class above it that is."""
UNKNOWN = (500, "CommitStateUnknownException")


class ClientStalled(LakestoreError):
    """The client stopped within its request."""

    kind = "Invalid"


def status_of(error: LakestoreError) -> tuple[int, str]:
    """HTTP status and protocol name of an error; a change that may have been applied is always UNKNOWN."""
    if error.applied == "unknown":
        return UNKNOWN
    if isinstance(error, ClientStalled):
        return 408, "BadRequestException"
    above = (each.kind for each in type(error).__mro__ if issubclass(each, LakestoreError))
    known = (_KINDS[kind] for kind in (error.kind, *above) if kind in _KINDS)
    return _NAMES.get(type(error)) or next(known, (500, "InternalServerError"))


def answer(error: LakestoreError) -> tuple[int, bytes]:
    """HTTP status and body of an error."""
    status, name = status_of(error)
    return status, _body(status, name, error.message)


def no_such_call(status: int, call: str) -> tuple[int, bytes]:
    """HTTP status and body for a path or method that the port does not have."""
    name = "UnsupportedOperationException" if status == 405 else "NoSuchCallException"
    return status, _body(
        status, name, f"{call[:200]}: there is no such call here; GET /iceberg/v1/config lists the catalog's"
    )


def _body(status: int, name: str, message: str) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": name, "code": status}})
