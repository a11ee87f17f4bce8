"""The console: a page with a server's tables, as far as its reader may know of them."""

from __future__ import annotations

import html
from collections.abc import Callable

from lakestore_server.operate.status import ServerStatus


def page(status: ServerStatus, sees: Callable[[str], bool]) -> str:
    """The HTML of the tables that `sees` lets through."""
    rows = "".join(
        f"<tr><td>{html.escape(table.name)}<td>{table.rows:,}<td>{table.hot:,}<td>{table.buckets}<td>{table.freshness}"
        for table in (served.table for served in status.tables)
        if sees(table.name)
    )
    head = "<tr><th>table<th>live rows<th>offsets not yet tiered<th>buckets<th>freshness"
    return f"<!doctype html><title>Lakestore</title><h1>Lakestore</h1><table border=1>{head}{rows}</table>"
