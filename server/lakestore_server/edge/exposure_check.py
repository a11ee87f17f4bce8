"""The check of settings before a port opens: beyond this machine only with TLS and `auth`, or with `--insecure`."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from pathlib import Path

from lakestore.errors import Invalid
from lakestore_server.access import signing
from lakestore_server.edge.tls import TlsKeys, is_loopback
from lakestore_server.settings import Settings, Tls

TOKEN_KEY = "access-token.key"  # noqa: S105 (the name of a file)
_USER_INFO = re.compile(r"[a-z0-9+.-]+://[^/@]*:([^/@]*@|[^/@]*[^/@0-9][^/@]*/.*@)", re.IGNORECASE)
"""`user:password@`, also with a slash in the password; otherwise a port follows the host's colon."""


def check_exposure(settings: Settings) -> None:
    """`Invalid` for settings that expose the server to the network or hold a secret."""
    for name, place in _places(settings):
        if _USER_INFO.match(place):
            raise Invalid(f"{name} holds a user and a password: leave them out, and give them to the environment")
    if is_loopback(settings.host) or settings.insecure:
        return
    lacking = [name for name, value in (("tls.cert", settings.tls.cert), ("auth", settings.auth)) if not value]
    if lacking:
        are = "is" if len(lacking) == 1 else "are"
        raise Invalid(
            f"host {settings.host} can be reached from other machines, and {' and '.join(lacking)} {are} not set:"
            " set what is missing, listen on 127.0.0.1, or say --insecure"
        )


def _places(settings: Settings) -> tuple[tuple[str, str], ...]:
    return (
        ("warehouse", settings.warehouse),
        ("journal.url", settings.journal.url),
        ("checkpoints", settings.checkpoints),
    )


def check_shared(settings: Settings) -> None:
    """`Invalid` for a shared journal without a warehouse that the servers share, and for `checkpoints` without a shared
    journal."""
    if settings.journal.kind == "file" and settings.checkpoints:
        raise Invalid(
            "checkpoints is set and journal.kind is file: a lost disk would take the commits after the newest"
            " checkpoint with it. Set journal.kind to object or kafka, or leave checkpoints out and make backups"
        )
    if settings.journal.kind != "file" and not settings.warehouse:
        raise Invalid(
            f"journal.kind is {settings.journal.kind} and warehouse is not set: give --warehouse URI, a bucket or a"
            " mounted folder that all servers of the journal reach"
        )


def keys(tls: Tls) -> TlsKeys | None:
    """The server's keys, checked; None without TLS."""
    if not tls.cert and not tls.key:
        if tls.client_ca:
            raise Invalid("tls.client_ca goes with tls.cert and tls.key: set these too")
        return None
    if not tls.cert or not tls.key:
        raise Invalid("tls.cert and tls.key go together: set both")
    authorities = (Path(file) if file else None for file in (tls.client_ca, tls.peer_ca))
    found = TlsKeys(Path(tls.cert), Path(tls.key), *authorities)
    found.read()
    return found


def token_key(settings: Settings) -> bytes:
    """The key of access tokens. Servers that share a journal share it too, so a token is good at each of them."""
    if not settings.token_key:
        if settings.journal.kind != "file":
            raise Invalid(
                "auth with a journal that servers share needs token_key, a file with the same bytes at each server, so"
                " that an access token of one is good at the others: make it by `openssl rand -out FILE 32`"
            )
        return _own_key(settings.data)
    try:
        content = Path(settings.token_key).read_bytes()
    except OSError as error:
        raise Invalid(f"token_key {settings.token_key} cannot be read: {error.strerror}") from error
    if len(content) < signing.KEY_BYTES:
        raise Invalid(f"token_key {settings.token_key} has {len(content)} bytes: give it {signing.KEY_BYTES} or more")
    return hashlib.sha256(content).digest()


def _own_key(folder: Path) -> bytes:
    """The key of a server alone. It is made once and stored, so tokens survive a restart."""
    file = folder / TOKEN_KEY
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        key = file.read_bytes()
        if len(key) == signing.KEY_BYTES:
            return key
        file.unlink()
        return _own_key(folder)
    with os.fdopen(descriptor, "wb") as opened:
        key = secrets.token_bytes(signing.KEY_BYTES)
        opened.write(key)
        opened.flush()
        os.fsync(opened.fileno())
    return key
