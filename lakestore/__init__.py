"""Lakestore: one table that is a log, a key store and an Iceberg table at once.

Names come from their modules when first asked for, so that importing the package, or `lakestore.errors` alone, loads
neither Arrow nor gRPC, and sets nothing in the environment. docs/api.md lists what is public.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakestore.client.changes import ChangeBatch, ChangeStream
    from lakestore.client.commit import Commit, CommitToken, WriteResult
    from lakestore.client.credentials import TLS
    from lakestore.client.lake import Lake, connect
    from lakestore.client.named_writes import NamedWrites
    from lakestore.client.producer import NamedProducer
    from lakestore.client.registers import Register, Registers
    from lakestore.client.snapshot import Snapshot
    from lakestore.client.table import Table
    from lakestore.client.writer import Writer
    from lakestore.embedded import open
    from lakestore.errors import (
        Conflict,
        Corrupt,
        Denied,
        Exhausted,
        Fenced,
        Internal,
        Invalid,
        LakestoreError,
        NotAuthenticated,
        NotFound,
        NotFresh,
        NothingToKeep,
        PlanExpired,
        PositionExpired,
        Unavailable,
    )
    from lakestore.model.merge_engines import aggregate, versioned
    from lakestore.rows.bitmaps import bitmap
    from lakestore.union.scan import Scan
    from lakestore.union.sql import SqlResult

__all__ = [
    "TLS",
    "ChangeBatch",
    "ChangeStream",
    "Commit",
    "CommitToken",
    "Conflict",
    "Corrupt",
    "Denied",
    "Exhausted",
    "Fenced",
    "Internal",
    "Invalid",
    "Lake",
    "LakestoreError",
    "NamedProducer",
    "NamedWrites",
    "NotAuthenticated",
    "NotFound",
    "NotFresh",
    "NothingToKeep",
    "PlanExpired",
    "PositionExpired",
    "Register",
    "Registers",
    "Scan",
    "Snapshot",
    "SqlResult",
    "Table",
    "Unavailable",
    "WriteResult",
    "Writer",
    "aggregate",
    "bitmap",
    "connect",
    "open",
    "versioned",
]

_HOMES = {
    "lakestore.client.changes": ("ChangeBatch", "ChangeStream"),
    "lakestore.client.credentials": ("TLS",),
    "lakestore.client.commit": ("Commit", "CommitToken", "WriteResult"),
    "lakestore.client.lake": ("Lake", "connect"),
    "lakestore.client.producer": ("NamedProducer",),
    "lakestore.client.named_writes": ("NamedWrites",),
    "lakestore.client.registers": ("Register", "Registers"),
    "lakestore.client.snapshot": ("Snapshot",),
    "lakestore.client.table": ("Table",),
    "lakestore.client.writer": ("Writer",),
    "lakestore.embedded": ("open",),
    "lakestore.errors": (
        "Conflict",
        "Corrupt",
        "Denied",
        "Exhausted",
        "Fenced",
        "Internal",
        "Invalid",
        "LakestoreError",
        "NotAuthenticated",
        "NotFound",
        "NotFresh",
        "NothingToKeep",
        "PlanExpired",
        "PositionExpired",
        "Unavailable",
    ),
    "lakestore.model.merge_engines": ("aggregate", "versioned"),
    "lakestore.rows.bitmaps": ("bitmap",),
    "lakestore.union.scan": ("Scan",),
    "lakestore.union.sql": ("SqlResult",),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}
_PUBLIC_MODULES = ("aio", "errors", "evolution", "limits", "spark")

if not TYPE_CHECKING:  # a type checker sees the imports above, and no others

    def __getattr__(name: str) -> object:
        """A public name or module, imported when first asked for."""
        if name in _PUBLIC_MODULES:
            return import_module(f"lakestore.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'lakestore' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_PUBLIC_MODULES})
