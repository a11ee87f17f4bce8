"""How the catalog says no: Lakestore's errors with the status and name that the Iceberg REST protocol gives them.

403 is policy and fencing, which no retry mends; 409 is a true conflict, which clients retry by themselves.
"""

from __future__ import annotations

from lakestore.errors import Conflict, Invalid, LakestoreError, NotFound


class NoSuchNamespace(NotFound):
    """The namespace does not exist."""


class NoSuchTable(NotFound):
    """The table does not exist."""


class NoSuchView(NotFound):
    """The view does not exist: no view does."""


class AlreadyExists(Conflict):
    """Something of that name exists."""


class NamespaceNotEmpty(Conflict):
    """The namespace still holds tables."""


class Forbidden(Invalid):
    """Policy: this will not be done, however often it is asked; the message names what to do instead."""


_NAMES: dict[type[LakestoreError], tuple[int, str]] = {
    NoSuchNamespace: (404, "NoSuchNamespaceException"),
    NoSuchTable: (404, "NoSuchTableException"),
    NoSuchView: (404, "NoSuchViewException"),
    AlreadyExists: (409, "AlreadyExistsException"),
    NamespaceNotEmpty: (409, "NamespaceNotEmptyException"),
    Forbidden: (403, "ForbiddenException"),
}
_KINDS = {
    "Invalid": (400, "BadRequestException"),
    "NotFound": (404, "NotFoundException"),
    "Conflict": (409, "CommitFailedException"),
    "Fenced": (403, "ForbiddenException"),
    "Denied": (403, "ForbiddenException"),
    "NotAuthenticated": (401, "NotAuthorizedException"),
    "Unavailable": (503, "ServiceUnavailableException"),
    "Exhausted": (503, "SlowDownException"),
}
UNKNOWN = (500, "CommitStateUnknownException")


def status_of(error: LakestoreError) -> tuple[int, str]:
    """HTTP status and protocol name of an error; what may have been applied is always UNKNOWN."""
    if error.applied == "unknown":
        return UNKNOWN
    return _NAMES.get(type(error)) or _KINDS.get(error.kind, (500, "InternalServerError"))
