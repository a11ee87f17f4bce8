"""Moving a table's log start without a lake, so that reads do without one too."""

from __future__ import annotations

from lakestore_server.commit.engine import Engine
from lakestore_server.files.segment import Segment
from lakestore_server.main import Server
from lakestore_server.state.commit_record import CommitRecord, LogStart
from lakestore_server.state.state import State


def move_log_start(engine: Engine, name: str, lsn: int | None = None) -> int:
    """Let a table's log begin behind a commit, by default the newest one, as the retention duty does; that LSN."""

    def plan(state: State, record: CommitRecord) -> int:
        table = state.view.named(name)
        start = max(state.view.lsn if lsn is None else lsn, table.log_start_lsn, table.created_lsn)
        record.starts.append(LogStart(table.table.uuid, start))
        return start

    return engine.operate(plan).result


def compact(server: Server) -> None:
    """Checkpoints until they rewrite nothing more."""
    while True:
        before = _chunks(server.engine)
        server.upkeep.checkpoint()
        merger = server.upkeep.checkpointer.merger
        if merger._rewrites:
            merger.run_once()
            server.upkeep.checkpoint()
        if _chunks(server.engine) == before:
            return


def _chunks(engine: Engine) -> list[tuple[str, int, str]]:
    return [
        (uuid, bucket, chunk.path.name if isinstance(chunk, Segment) else "memory")
        for uuid, state in engine.view.tables.items()
        for bucket, log in enumerate(state.logs)
        for chunk in log.chunks
    ]
