"""The whole server inside this process: `lakestore.open`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lakestore.client.lake import Lake
from lakestore.client.local import local_transport
from lakestore.limits import DEFAULT, Limits
from lakestore.release import needs_extra

if TYPE_CHECKING:
    from lakestore_server.host.clock import Clock
    from lakestore_server.host.disk import Disk


def open(
    folder: str | Path,
    *,
    warehouse: str | None = None,
    disk: Disk | None = None,
    clock: Clock | None = None,
    limits: Limits = DEFAULT,
) -> Lake:
    """The whole server inside this process, without a network. It needs the extra `server`."""
    with needs_extra("server", "lakestore.open"):
        from lakestore_server.main import Server
    from lakestore_server.settings import Settings

    server = Server(Settings(data=Path(folder), warehouse=warehouse or "", limits=limits), disk=disk, clock=clock)
    return Lake(local_transport(server.service), str(folder), server.close)
