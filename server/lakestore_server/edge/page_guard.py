"""The guard against web pages: calls that a browser makes for somebody else's page, refused where no token is shown.

A page may send requests to every port of its reader's machine, and by a host name that it points there itself it may
read the answers too. So without principals a request is taken only by a host name known here, from no foreign page,
and with a body that a browser does not send for a page unasked. With a client certificate alone, which a browser shows
by itself, it is taken from no foreign page: TLS knows the host. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from lakestore.errors import Denied, Invalid
from lakestore_server.edge.tls import is_loopback

ANY_HOST = "*"
"""The entry of `http.allowed_hosts` that lets every host name pass."""


class PageGuard:
    """The rules of one server."""

    def __init__(self, allowed_hosts: Sequence[str] = ()) -> None:
        self._allowed = frozenset(_name(host) for host in allowed_hosts)

    def check(self, headers: Mapping[str, str], local_address: str) -> None:
        """`Denied` or `Invalid` for a request that a foreign page may have sent."""
        host = headers.get("host", "")
        if not self._is_ours(_name(host), local_address):
            raise Denied(f"host {host!r} is not known here: use localhost, name it in http.allowed_hosts, or set auth")
        self.check_page(headers)
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if has_body and not _is_json(headers.get("content-type", "")):
            raise Invalid("the request's body is no JSON by its head: send `Content-Type: application/json`")

    @staticmethod
    def check_page(headers: Mapping[str, str]) -> None:
        """`Denied` for a foreign page's request: a browser shows a client certificate for every page, unasked."""
        origin = headers.get("origin")
        if origin is not None and not _is_same(origin, headers.get("host", "")):
            raise Denied(f"a page of {origin!r} may not call this server without a token: it takes only its own pages")

    def _is_ours(self, name: str, local_address: str) -> bool:
        if ANY_HOST in self._allowed or name in self._allowed or name.endswith(".localhost"):
            return True
        # An address, unlike a name, leads nowhere else: the one that the connection came to is this server.
        return is_loopback(name) or (_is_address(name) and name == local_address)


def _name(host: str) -> str:
    """The host without its port, in one spelling; empty if it cannot be read."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_same(origin: str, host: str) -> bool:
    """Whether a page's origin is the very host and port that the request names."""
    return urlsplit(origin).netloc.lower() == host.lower() if "://" in origin else False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
