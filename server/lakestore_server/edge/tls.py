"""TLS: the server's certificate, its key, and the authority of client certificates, as PEM files that may change."""

from __future__ import annotations

import hashlib
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from lakestore.errors import Invalid


@dataclass(frozen=True, slots=True)
class TlsKeys:
    """The files of certificate and key. Only their names are ever shown."""

    cert: Path
    """The server's certificate and its chain."""
    key: Path
    client_ca: Path | None = None
    """Authority of client certificates; None: the server asks for none."""
    ca: Path | None = None
    """Authority of other servers' certificates, beside those that the system knows and this server's own one."""

    def read(self) -> tuple[bytes, bytes, bytes | None]:
        """(certificate, key, client CA), or `Invalid` that names the file."""
        self.context()
        return _bytes(self.cert), _bytes(self.key), _bytes(self.client_ca) if self.client_ca else None

    def authority(self) -> bytes | None:
        """The certificate of `ca`; None without one."""
        return _bytes(self.ca) if self.ca else None

    def stamp(self) -> tuple[int, ...]:
        """Changes when a file changes; zeros for missing files."""
        files = [self.cert, self.key, *([self.client_ca] if self.client_ca else [])]
        return tuple(file.stat().st_mtime_ns if file.exists() else 0 for file in files)

    def binding(self) -> bytes:
        """The hash of the certificate to which a client may bind a proof (RFC 5929, `tls-server-end-point`); empty if
        its signature has no hash of its own."""
        text = _bytes(self.cert).decode(errors="replace")
        begin = text.find(_PEM)
        if begin < 0:
            return b""
        whole = ssl.PEM_cert_to_DER_cert(text[begin : text.index(_PEM_END, begin) + len(_PEM_END)])
        name = _SIGNATURES.get(_signature_of(whole), "")
        return hashlib.new(name, whole).digest() if name else b""

    def context(self) -> ssl.SSLContext:
        """The HTTP context: a client certificate is optional but must be valid."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load(context)
        return context

    def trust(self) -> ssl.SSLContext:
        """The context of a connection to another server."""
        context = ssl.create_default_context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # servers may share a certificate
        for file in (self.cert, self.ca):
            if file is not None:
                _load_authority(context, file)
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Load the present files into a context; new connections use them."""
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise Invalid(
                f"certificate {self.cert} and key {self.key} cannot be used ({_reason(error)}):"
                " they must be PEM files that belong together, the key without a password"
            ) from None
        if self.client_ca is None:
            return
        _load_authority(context, self.client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL


_PEM, _PEM_END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_RSA, _ECDSA = "2a864886f70d0101", "2a8648ce3d04"
_SIGNATURES = {
    **dict.fromkeys((f"{_RSA}04", f"{_RSA}05", f"{_ECDSA}01"), "sha256"),  # MD5 and SHA-1: SHA-256 stands for them
    **{f"{_RSA}0e": "sha224", f"{_RSA}0b": "sha256", f"{_RSA}0c": "sha384", f"{_RSA}0d": "sha512"},
    **{f"{_ECDSA}030{place}": name for place, name in enumerate(("sha224", "sha256", "sha384", "sha512"), start=1)},
}
"""The hash of a certificate by the number of its signature's algorithm (OID, as DER in hexadecimal digits)."""


def _signature_of(certificate: bytes) -> str:
    """The number of the algorithm by which a certificate is signed: SEQUENCE { content, SEQUENCE { OID, … }, … }."""
    body, _ = _der(certificate, 0)
    _, after = _der(certificate, body)
    algorithm, _ = _der(certificate, after)
    begin, end = _der(certificate, algorithm)
    return certificate[begin:end].hex()


def _der(data: bytes, at: int) -> tuple[int, int]:
    """Begin and end of the content of the DER value at a position."""
    size, begin = data[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        size, begin = int.from_bytes(data[begin : begin + count]), begin + count
    return begin, begin + size


def is_loopback(host: str) -> bool:
    """Whether a listening address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def names_of(certificate: object) -> list[str]:
    """Common name and alternative names of a peer's certificate, in the form of `ssl`."""
    if not isinstance(certificate, dict):
        return []
    common = [value for part in certificate.get("subject", ()) for field, value in part if field == "commonName"]
    return [*common, *(value for _, value in certificate.get("subjectAltName", ()) if isinstance(value, str))]


def _load_authority(context: ssl.SSLContext, file: Path) -> None:
    try:
        context.load_verify_locations(file)
    except (ssl.SSLError, OSError) as error:
        raise Invalid(f"CA {file} cannot be used: {_reason(error)}") from None


def _no_password() -> str:
    raise ValueError("the key has a password")


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror}") from error


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
