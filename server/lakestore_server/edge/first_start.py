"""The first start of a server whose journal others share and whose beginning is gone: copy a checkpoint, then serve.

The HTTP port is open meanwhile and says how far the copy is. The gRPC port is closed.
"""

from __future__ import annotations

import logging
import socket
import time
from dataclasses import replace

from lakestore.errors import Invalid, Unavailable
from lakestore_server.access.callers import Access
from lakestore_server.edge.addresses import joined
from lakestore_server.edge.http import HttpServer, copy_app
from lakestore_server.edge.peer_channel import PeerChannel
from lakestore_server.edge.tls import TlsKeys
from lakestore_server.files import data_folder
from lakestore_server.host.clock import Clock
from lakestore_server.host.disk import Disk
from lakestore_server.journals.checkpoint_store import CheckpointStore
from lakestore_server.journals.shared_journal import SharedJournal
from lakestore_server.operate import first_copy
from lakestore_server.operate.first_copy import FirstCopy
from lakestore_server.operate.store_copy import StoreCopy
from lakestore_server.settings import Settings
from lakestore_server.state.commit_record import LocalJournal

log = logging.getLogger("lakestore.copy")


def copied(
    settings: Settings,
    journal: LocalJournal,
    disk: Disk,
    clock: Clock,
    access: Access,
    keys: TlsKeys | None,
    store: CheckpointStore | None = None,
) -> Settings:
    """The settings to serve with, after the copy if one is due. `store` has the journal's checkpoints. A port that was
    free to choose is chosen then, because the journal is held for the server at its address."""
    if not isinstance(journal, SharedJournal):
        if data_folder.is_half_copied(settings.data):
            raise Invalid(
                f"{settings.data} holds a part of a copy from another server: start with the journal of that server, or"
                " remove the folder"
            )
        return settings
    stored = _checked(store, journal) if store else None
    if not first_copy.is_due(disk, settings.data, journal, stored):
        return settings
    settings = replace(settings, port=settings.port or _free_port(settings.host))
    channel = PeerChannel(access.server_token, keys)
    copy = FirstCopy(
        folder=settings.data,
        disk=disk,
        limits=settings.limits,
        journal=journal,
        address=settings.advertise or joined(settings.host, settings.port),
        pieces=channel.copy_checkpoint,
        clock=clock,
        sleep=time.sleep,
        store=stored,
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


def _checked(store: CheckpointStore, journal: SharedJournal) -> StoreCopy:
    """The store as a source of copies. `OtherTimeline` or `Invalid` if it must not be used. A store that does not
    answer refuses no start, because a server with its data needs none."""
    timeline = journal.timeline()
    try:
        store.check(timeline)
    except Unavailable as error:
        log.warning("the store of checkpoints is not checked: %s", error.message)
    return StoreCopy(store, timeline)


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host.strip("[]"), 0))
        port: int = probe.getsockname()[1]
        return port
