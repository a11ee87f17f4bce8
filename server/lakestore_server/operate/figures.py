"""Figures of a server's folder, read when they are asked for."""

from __future__ import annotations

from lakestore_server.commit.engine import Engine
from lakestore_server.files import data_folder
from lakestore_server.files.segment import Segment
from lakestore_server.state.view import View


def index_bytes(engine: Engine) -> int:
    """Bytes of the index's files: LMDB's, and the runs that look-ups search."""
    runs = sum(run.size for run in engine.index.runs)
    return runs + (engine.disk.size(engine.folder / data_folder.INDEX / "data.mdb") or 0)


def disk_free_bytes(engine: Engine) -> int:
    """Free bytes for the data folder."""
    return engine.disk.free_bytes(engine.folder)


def kept_bytes(view: View) -> int:
    """Bytes of the journal files that are kept for rows of a view, each file whole."""
    chunks = (chunk for state in view.tables.values() for log in state.logs for chunk in log.chunks)
    files = (file for chunk in chunks if isinstance(chunk, Segment) for file in chunk.files)
    return sum({file.path: int(file.data.size) for file in files}.values())
