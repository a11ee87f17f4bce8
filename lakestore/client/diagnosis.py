"""The reason for which a server cannot be greeted, found by asking its port itself.

gRPC tells a refused connection, a port of HTTP, and TLS on one side only by words that change with its release. A probe
of a few bytes tells them apart by type. Other reasons, and addresses that are no host and port, stay gRPC's to tell.
"""

from __future__ import annotations

import contextlib
import socket
import ssl

from lakestore.client.credentials import Credentials, Pem
from lakestore.errors import Invalid, LakestoreError, NotAuthenticated, Unavailable

PROBE_SECONDS = 2.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
_SETTINGS = b"\x04"
"""The type of the first frame of every HTTP/2 server, behind three bytes of its length."""
_NOT_TLS = {"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", None}
"""Reasons of Python's `ssl` for bytes that are no TLS."""


def diagnosis(address: str, credentials: Credentials, seconds: float) -> LakestoreError | None:
    """The error that a connection to an address ends in; None if nothing is wrong that a probe can see."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or host.startswith(("unix:", "ipv4:", "ipv6:", "dns:")):
        return None
    place, limit = (host, int(port)), min(PROBE_SECONDS, max(seconds, 0.05))
    try:
        if credentials.pem is None:
            return _in_the_clear(address, place, limit)
        return _by_tls(address, place, limit, credentials.pem)
    except ConnectionRefusedError:
        return Unavailable(
            f"nothing listens at {address}: start the server there (lakestore serve), or name the address where it runs"
        )
    except TimeoutError:
        return Unavailable(f"the server at {address} does not answer in time: is it running there?")
    except socket.gaierror as error:
        return Unavailable(f"{host!r} is no machine that is known here ({error.strerror}): name the server's address")
    except OSError as error:
        return Unavailable(
            f"the server at {address} cannot be reached ({error.strerror or error}): is it running there?"
        )


def _in_the_clear(address: str, place: tuple[str, int], seconds: float) -> LakestoreError | None:
    said = _clear_words(place, seconds)
    if said[3:4] == _SETTINGS:
        return None
    if said.startswith(b"HTTP/"):
        return _http(address)
    if _speaks_tls(place, seconds):
        return Invalid(
            f"the server at {address} wants TLS: connect with tls=ls.TLS(ca=…), or --tls-ca FILE on the command line"
        )
    return None


def _by_tls(address: str, place: tuple[str, int], seconds: float, pem: Pem) -> LakestoreError | None:
    try:
        context = ssl.create_default_context(cadata=pem.ca.decode() if pem.ca else None)
        context.set_alpn_protocols(["h2"])
        for _ in range(2):  # a server that just goes down refuses the second connection
            with _connected(place, seconds) as raw, context.wrap_socket(raw, server_hostname=place[0]) as port:
                port.sendall(_PREFACE)
                if port.recv(1):
                    return None
    except ssl.SSLCertVerificationError as error:
        return Invalid(
            f"the certificate of the server at {address} is not trusted ({error.verify_message}): name its authority by"
            " tls=ls.TLS(ca=…), or --tls-ca FILE on the command line"
        )
    except ssl.SSLError as error:
        if error.reason not in _NOT_TLS:
            return _not_let_in(address, pem)
    except ConnectionResetError:
        pass
    else:
        return _not_let_in(address, pem)
    said_in_clear = _clear_words(place, seconds)
    if said_in_clear.startswith(b"HTTP/"):
        return _http(address)
    if said_in_clear[3:4] == _SETTINGS:
        return Invalid(
            f"the server at {address} speaks without TLS: connect without tls=, or set tls.cert and tls.key there"
        )
    return None


def _not_let_in(address: str, pem: Pem) -> NotAuthenticated:
    said = "takes no client without a certificate" if pem.cert is None else "did not take this client's certificate"
    return NotAuthenticated(
        f"the server at {address} {said}: give tls=ls.TLS(cert=…, key=…) of an authority that it trusts"
    )


def _http(address: str) -> Invalid:
    return Invalid(f"the server at {address} speaks HTTP: name the gRPC port, by default 7340")


def _connected(place: tuple[str, int], seconds: float) -> socket.socket:
    return socket.create_connection(place, timeout=seconds)


def _clear_words(place: tuple[str, int], seconds: float) -> bytes:
    """The first bytes of the answer to a beginning of HTTP/2; nothing if the other end closes."""
    said = b""
    with _connected(place, seconds) as port, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        port.sendall(_PREFACE)
        while len(said) < 9 and (more := port.recv(9 - len(said))):
            said += more
    return said


def _speaks_tls(place: tuple[str, int], seconds: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with _connected(place, seconds) as raw, context.wrap_socket(raw, server_hostname=place[0]):
            return True
    except ssl.SSLError as error:
        return error.reason not in _NOT_TLS
    except ConnectionResetError:
        return False
