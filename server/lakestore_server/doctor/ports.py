"""The ports: whether they are free, and whether certificate and rights are fit to open them."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

from lakestore_server.access.callers import Access
from lakestore_server.doctor.finding import Finding
from lakestore_server.edge import exposure_check
from lakestore_server.edge.tls import TlsKeys
from lakestore_server.host.clock import RealClock
from lakestore_server.settings import Settings

DAY_SECONDS = 86_400
RENEW_DAYS = 14
"""Days that a certificate should still hold."""
_IN_USE = "end the program that has it, or name another port; `lakestore doctor --server` asks a server that runs"


def free(settings: Settings) -> Iterator[Finding]:
    """Both ports, by listening on them for a moment."""
    for about, port in (("port of gRPC", settings.port), ("port of HTTP", settings.http_port)):
        if port == 0:
            yield Finding(about, "ok", "any free one")
            continue
        error = _listen(settings.host, port)
        where = f"{settings.host}:{port}"
        yield Finding(about, "failed", f"{where}: {error}", _IN_USE) if error else Finding(about, "ok", where)


def _listen(host: str, port: int) -> str:
    """The reason for which nobody can listen there; empty if one can."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def safe(settings: Settings) -> Iterator[Finding]:
    """Exposure, certificate and auth file."""
    exposure_check.check(settings)
    keys = exposure_check.keys(settings.tls)
    if keys is None:
        yield Finding("tls", "ok", f"none; {settings.host} is listened on")
    else:
        keys.read()
        yield from certificate(keys)
    if not settings.auth:
        yield Finding("auth", "ok", "none: everyone who reaches the ports may everything")
        return
    access = Access(Path(settings.auth), RealClock(), b"")
    yield Finding("auth", "ok", f"{len(access.principals())} principals in {settings.auth}")


def certificate(keys: TlsKeys, now: float | None = None) -> Iterator[Finding]:
    """The time for which a certificate holds."""
    try:
        ends = _end_of(keys)
    except ssl.SSLCertVerificationError as error:
        yield Finding("tls", "failed", f"{keys.cert}: {error.verify_message}", "put a good certificate there")
        return
    days = (ssl.cert_time_to_seconds(ends) - (time.time() if now is None else now)) / DAY_SECONDS
    if days < RENEW_DAYS:
        yield Finding("tls", "warning", f"{keys.cert} ends {ends}", "renew it: a running server reads it again")
    else:
        yield Finding("tls", "ok", f"{keys.cert} holds until {ends}")


def _end_of(keys: TlsKeys) -> str:
    """The end of a certificate, as a client that trusts just this one is shown it: a handshake in memory."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(keys.cert)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(down, up)
    server = keys.context().wrap_bio(up, down, server_side=True)
    for side in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return str((client.getpeercert() or {})["notAfter"])
