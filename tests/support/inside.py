"""The server inside an in-process lake, for tests that look behind its verbs."""

from __future__ import annotations

from typing import Any

import lakestore as ls
from lakestore_server.commit.engine import Engine
from lakestore_server.main import Server


def server_of(lake: ls.Lake) -> Server:
    """The server that `ls.open` has started."""
    close: Any = lake._on_close
    server: Server = close.__self__
    return server


def engine_of(lake: ls.Lake) -> Engine:
    """The engine of that server."""
    return server_of(lake).engine
