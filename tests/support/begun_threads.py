"""The files of the server that may begin threads; `tests/test_tidy.py` holds the list."""

from __future__ import annotations

THREADS = {
    "server/lakestore_server/commit/in_flight.py",
    "server/lakestore_server/commit/engine.py",
    "server/lakestore_server/commit/commit_verbs.py",
    "server/lakestore_server/edge/http.py",
    "server/lakestore_server/edge/postgres/port.py",
    "server/lakestore_server/edge/rpc_port.py",
    "server/lakestore_server/files/journal_file.py",
    "server/lakestore_server/journals/object_log.py",  # they put objects, and fail the sender whose they are
    "server/lakestore_server/main.py",
    "server/lakestore_server/host/child.py",  # of a child process, which it ends
    "server/lakestore_server/host/supervisor.py",
    "server/lakestore_server/host/worker.py",
    "server/lakestore_server/host/workers.py",
    "server/lakestore_server/queries/memory_watch.py",  # of the same process: it looks at its memory
    "server/lakestore_server/queries/process.py",  # of a child process: it interrupts DuckDB
}
"""Where the server begins threads: each of them tells when it ends, or ends the process."""
