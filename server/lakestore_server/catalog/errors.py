"""The catalog's refusals; the HTTP port gives them the status and name of the Iceberg REST protocol."""

from __future__ import annotations

from lakestore.errors import Conflict, Invalid, NotFound


class NoSuchNamespace(NotFound):
    """The namespace does not exist."""


class NoSuchTable(NotFound):
    """The table does not exist."""


class NoSuchView(NotFound):
    """The view does not exist."""


class BadView(Invalid):
    """A view that the rules of Iceberg's views forbid."""


class NoSuchWarehouse(NotFound):
    """The catalog has no warehouse of that name and no prefix."""


class AlreadyExists(Conflict):
    """The name is taken."""


class NamespaceNotEmpty(Conflict):
    """The namespace still holds tables."""


class Forbidden(Invalid):
    """A change that policy forbids for good; the message names the alternative."""
