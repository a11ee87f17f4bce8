"""Figures of a server that are read from its folder when they are asked for."""

from __future__ import annotations

from lakestore_server.commit.engine import Engine


def index_bytes(engine: Engine) -> int:
    """Bytes of the index file; 0 before there is one."""
    return engine.disk.size(engine.folder / "index" / "data.mdb") or 0


def disk_free_bytes(engine: Engine) -> int:
    """Free bytes for the data folder."""
    return engine.disk.free_bytes(engine.folder)
