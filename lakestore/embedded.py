"""The whole server inside this process: `lakestore.open`."""

from __future__ import annotations

from pathlib import Path

from lakestore.client.lake import Lake
from lakestore.client.local import local_transport
from lakestore.limits import DEFAULT, Limits
from lakestore_server.host.clock import Clock
from lakestore_server.host.disk import Disk
from lakestore_server.main import Server
from lakestore_server.settings import Settings


def open(
    folder: str | Path,
    *,
    warehouse: str | None = None,
    disk: Disk | None = None,
    clock: Clock | None = None,
    limits: Limits = DEFAULT,
) -> Lake:
    """The whole server inside this process, without a network."""
    server = Server(Settings(data=Path(folder), warehouse=warehouse or "", limits=limits), disk=disk, clock=clock)
    return Lake(local_transport(server.service), str(folder), server.close)
