"""Lakestore: one table that is a log, a key store and an Iceberg table at once."""

import os

# Spark's JVM is started by fork and exec beside gRPC's threads; gRPC's fork handlers can end the child before it execs.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

from lakestore.client.changes import ChangeBatch, ChangeStream
from lakestore.client.credentials import TLS
from lakestore.client.lake import Commit, Lake, Snapshot, connect, open
from lakestore.client.table import Table
from lakestore.client.writer import Writer
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
    "Conflict",
    "Corrupt",
    "Denied",
    "Exhausted",
    "Fenced",
    "Internal",
    "Invalid",
    "Lake",
    "LakestoreError",
    "NotAuthenticated",
    "NotFound",
    "PlanExpired",
    "PositionExpired",
    "Scan",
    "Snapshot",
    "SqlResult",
    "Table",
    "Unavailable",
    "Writer",
    "aggregate",
    "bitmap",
    "connect",
    "open",
    "versioned",
]
