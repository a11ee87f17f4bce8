"""The first start of a server whose journal others share and whose beginning is gone: copy a checkpoint, then serve.

The HTTP port is open meanwhile and says how far the copy is. The gRPC port is closed.
"""

from __future__ import annotations

import socket
import time
from dataclasses import replace

from lakestore.errors import Invalid
from lakestore_server.access.callers import Access
from lakestore_server.edge.http import HttpServer, copy_app
from lakestore_server.edge.peer_channel import PeerChannel
from lakestore_server.edge.tls import TlsKeys
from lakestore_server.files import data_folder
from lakestore_server.host.clock import Clock
from lakestore_server.host.disk import Disk
from lakestore_server.journals.shared_journal import SharedJournal
from lakestore_server.operate import first_copy
from lakestore_server.operate.first_copy import FirstCopy
from lakestore_server.settings import Settings
from lakestore_server.state.commit_record import LocalJournal


def copied(
    settings: Settings, journal: LocalJournal, disk: Disk, clock: Clock, access: Access, keys: TlsKeys | None
) -> Settings:
    """The settings to serve with, after the copy if one is due. A port that was free to choose is chosen then, because
    the journal is held for the server at its address."""
    if not isinstance(journal, SharedJournal):
        if data_folder.is_half_copied(settings.data):
            raise Invalid(
                f"{settings.data} holds a part of a copy from another server: start with the journal of that server, or"
                " remove the folder"
            )
        return settings
    if not first_copy.is_due(disk, settings.data, journal):
        return settings
    settings = replace(settings, port=settings.port or _free_port(settings.host))
    channel = PeerChannel(access.server_token, keys)
    copy = FirstCopy(
        folder=settings.data,
        disk=disk,
        limits=settings.limits,
        journal=journal,
        address=settings.advertise or f"{settings.host}:{settings.port}",
        pieces=channel.copy_checkpoint,
        clock=clock,
        sleep=time.sleep,
    )
    port = HttpServer(
        application=copy_app(copy.progress),
        host=settings.host,
        port=settings.http_port,
        keys=keys,
        limits=settings.limits,
    )
    port.start()
    try:
        copy.run()
    finally:
        port.stop()
    return settings


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host.strip("[]"), 0))
        port: int = probe.getsockname()[1]
        return port
