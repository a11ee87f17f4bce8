"""A server on free ports and a client of it: what tests over the network and with Spark share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import lakestore as ls
from lakestore_server.main import Server
from lakestore_server.settings import Settings

settings.register_profile("lakestore", deadline=None, print_blob=True)
settings.load_profile("lakestore")
"""No example is timed: machines that do other work beside would fail them. A failure prints how to run it again."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server with both ports open."""
    running = Server(Settings(tmp_path / "data", port=0, http_port=0, lease_grace_seconds=0.0))
    running.start()
    yield running
    running.close()


@pytest.fixture
def lake(server: Server) -> Iterator[ls.Lake]:
    """A client of that server."""
    with ls.connect(server.about["grpc"]) as connected:
        yield connected
