"""Credentials of a client: its token or certificate and the authority it trusts. Never printed.

A token is sent over TLS or to this machine. Anything else needs an explicit `tls=False`.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lakestore.errors import Invalid, LakestoreError, NotAuthenticated, Unavailable

TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "LAKESTORE_TOKEN", "LAKESTORE_TOKEN_FILE"
TLS_VARIABLE = "LAKESTORE_TLS"
_FILE_VARIABLES = {"ca": "LAKESTORE_CA", "cert": "LAKESTORE_CERT", "key": "LAKESTORE_KEY"}
TOKEN_VARIABLES = TOKEN_VARIABLE, TOKEN_FILE_VARIABLE
TLS_VARIABLES = TLS_VARIABLE, *_FILE_VARIABLES.values()
Token = str | Callable[[], str]
_OPTIONS = {"ca": "tls_ca", "cert": "tls_cert", "key": "tls_secret_key"}
"""Option names whose values Spark hides, because they contain `secret` or `token`."""


@dataclass(frozen=True, slots=True)
class TLS:
    """PEM files of a connection by TLS."""

    ca: str | Path | None = None
    """Authority of the server's certificate; None: gRPC's defaults."""
    cert: str | Path | None = None
    """The client's certificate, if the server asks for one."""
    key: str | Path | None = None


@dataclass(frozen=True, slots=True)
class Pem:
    """The contents of a `TLS`."""

    ca: bytes | None = None
    cert: bytes | None = None
    key: bytes | None = None

    def __repr__(self) -> str:
        return "Pem(…)"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Token and TLS of one connection."""

    token: Token | None = None
    pem: Pem | None = None
    """None: no TLS."""

    def __repr__(self) -> str:
        shown = "with a token" if self.token else "without a token"
        return f"Credentials({shown}, {'by TLS' if self.pem else 'in the clear'})"

    @property
    def bearer(self) -> str:
        """The current token; empty without one. Raises `Invalid` for an invalid token.

        If a program's function fails to give one, `Unavailable` for an error of files or the network, and
        `NotAuthenticated` for any other.
        """
        token = _given_by(self.token) if callable(self.token) else (self.token or "").strip()
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise Invalid(
                "the token is invalid, because a token is one word of ASCII: look at its file, or at LAKESTORE_TOKEN"
            )
        return token

    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        token = self.bearer
        return (("authorization", f"Bearer {token}"),) if token else ()

    def options(self) -> dict[str, str]:
        """Options of a Spark data source, under names whose values Spark hides."""
        found = {"token": self.bearer} if self.token else {}
        if self.pem:
            found["tls"] = "true"
            for field, option in _OPTIONS.items():
                if value := getattr(self.pem, field):
                    found[option] = value.decode()
        return found

    @staticmethod
    def from_options(options: Mapping[str, str]) -> Credentials:
        pem = None
        if options.get("tls") == "true":
            values = {field: options.get(option, "").encode() or None for field, option in _OPTIONS.items()}
            pem = Pem(**values)
        return Credentials(options.get("token"), pem)


NOTHING = Credentials()


def _given_by(function: Callable[[], str]) -> str:
    try:
        return function().strip()
    except LakestoreError:
        raise
    except OSError as error:
        raise Unavailable(f"the function of the token failed: {error!r}") from error
    except Exception as error:
        raise NotAuthenticated(f"the function of the token failed: {error!r}") from error


def addresses_of(text: str) -> tuple[str, ...]:
    """The servers of an address: one, or several that share a journal, separated by commas."""
    if "," not in text:
        return (text,)
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        raise Invalid(f"{text!r} has a comma without an address beside it: name servers as a:7340,b:7340")
    return tuple(dict.fromkeys(found))


def credentials_for(address: str, token: Token | None = None, tls: TLS | bool | None = None) -> Credentials:
    """The given credentials, otherwise the environment's. Raises `Invalid` for a token without TLS."""
    token = token if token is not None else _token_of_environment()
    if tls is None:
        tls = _tls_of_environment()
    pem = _read(TLS() if tls is True else tls) if tls else None
    far = [each for each in addresses_of(address) if not is_this_machine(each)]
    if token and pem is None and tls is not False and far:
        raise Invalid(f"a token would go to {far[0]} in the clear: connect with tls=True, or tls=False to allow it")
    return Credentials(token, pem)


def token_in(file: str | Path) -> Callable[[], str]:
    """A token in a file. The file is read at each use, so it can be replaced."""

    def read() -> str:
        try:
            return Path(file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(
                f"token file {file} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8'}"
            ) from error

    return read


def _token_of_environment() -> Token | None:
    if file := os.environ.get(TOKEN_FILE_VARIABLE):
        return token_in(file)
    return os.environ.get(TOKEN_VARIABLE) or None


def _tls_of_environment() -> TLS | bool | None:
    """Files imply TLS. LAKESTORE_TLS alone means gRPC's default authorities."""
    said = os.environ.get(TLS_VARIABLE, "").lower()
    if said and said not in ("true", "false"):
        raise Invalid(f"{TLS_VARIABLE} is true or false")
    files = {field: value for field, name in _FILE_VARIABLES.items() if (value := os.environ.get(name))}
    if said == "false":
        return False
    return TLS(**files) if files or said else None


def _read(tls: TLS) -> Pem:
    if (tls.cert is None) != (tls.key is None):
        raise Invalid("a client certificate and its key go together: give TLS both")
    return Pem(_pem(tls.ca, "CERTIFICATE"), _pem(tls.cert, "CERTIFICATE"), _pem(tls.key, "PRIVATE KEY"))


def _pem(file: str | Path | None, holds: str) -> bytes | None:
    try:
        data = Path(file).read_bytes() if file is not None else None
    except OSError as error:
        raise Invalid(f"{file} cannot be read: {error.strerror or error}") from error
    if data is not None and f"{holds}-----".encode() not in data:
        raise Invalid(f"{file} holds no {holds.lower()} in PEM: give the file that begins with -----BEGIN")
    return data


def is_this_machine(address: str) -> bool:
    """True for a loopback address or a socket of this machine."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
