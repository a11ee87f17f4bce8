"""Callers, recognised by the auth file, by access tokens and by certificates.

The file is read again when it changes. If it cannot be used, the last good file stays in force and the log says so.
This module never logs, shows or raises a token.
"""

from __future__ import annotations

import base64
import logging
import stat
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lakestore.errors import Invalid, NotAuthenticated
from lakestore.model import yaml_text
from lakestore_server.access import principals, signing
from lakestore_server.access.principals import ANYONE, Book, Principal, Proof, TokenHash
from lakestore_server.host.clock import Clock

log = logging.getLogger("lakestore.access")
CHECK_SECONDS = 1.0
"""Seconds for which a read auth file is taken as current."""
_Stamp = tuple[int, int, int]
"""Modification time, change time and inode. The change time tells that the mode of a refused file was set right."""


class Access:
    """The auth file and the key of access tokens. Without a file every caller is `principals.ANYONE`. Thread-safe."""

    def __init__(self, file: Path | None, clock: Clock, key: bytes, token_seconds: int = 3_600) -> None:
        self._file, self._clock, self._key, self._token_seconds = file, clock, key, token_seconds
        self._lock = threading.Lock()
        self._book = Book()
        self._stamp: _Stamp | None = None
        self._checked = clock.monotonic()
        self.address = ""
        """Where other servers reach this one: their access tokens are good there alone."""
        self.generation = 0
        """Changes whenever rights may have changed."""
        if file is not None:
            self._stamp = _stamp_of(file)
            self._book = _load(file)

    @property
    def is_open(self) -> bool:
        """Whether every caller has every right."""
        return self._file is None

    def refresh(self) -> None:
        """Read the file again now if it has changed. Otherwise it is read within `CHECK_SECONDS`."""
        if self._file is None:
            return
        with self._lock:
            self._checked = self._clock.monotonic()
            try:
                stamp = _stamp_of(self._file)
                if stamp == self._stamp:
                    return
                self._stamp = stamp
                self._book = _load(self._file)
            except Invalid as error:
                log.error("the rights stay unchanged: %s", error.message)
                return
            self.generation += 1
        log.info("%s was read again", self._file)

    def caller(self, token: str = "", certificate: Sequence[str] = ()) -> Caller:
        """The caller with this token or, without a token, with this client certificate; else `NotAuthenticated`."""
        self._refresh_when_due()
        if self._file is None:
            return Caller(self, Proof(ANYONE))
        if token:
            proof = self._by_token(token)
        else:
            proof = self._book.by_certificate(certificate)
        if proof is None:
            raise NotAuthenticated(_refusal(token, certificate))
        return Caller(self, proof)

    def verifiers(self, name: str) -> tuple[bool, list[TokenHash]]:
        """(whether a dialog of SCRAM is due, the tokens that it can try) for a name that a client gives."""
        self._refresh_when_due()
        return self._book.verifiers(name, self._clock.now_us())

    def holder(self, name: str, token: TokenHash) -> Caller:
        """The caller who has shown in a dialog that it has a token of `verifiers`."""
        proof = self._book.by_id(name, token.sha256, self._clock.now_us())
        if proof is None:
            raise NotAuthenticated(_refusal(name, ()))
        return Caller(self, proof)

    def exchanged(self, caller: Caller) -> tuple[str, int]:
        """(access token, seconds of validity) for a caller with a token."""
        if not caller.proof.token and not self.is_open:
            raise NotAuthenticated("an access token is exchanged for a token: send a token")
        seconds = self._token_seconds
        now_s = self._clock.now_us() // 1_000_000
        token_id = caller.proof.token[: signing.ID_CHARS]
        claim = signing.Claim(caller.principal.name, token_id, now_s + seconds)
        return signing.sign(self._key, claim, now_s), seconds

    def server_token(self, address: str) -> str:
        """An access token for the server at an address, which has the same key; empty without principals."""
        if self.is_open:
            return ""
        now_s = self._clock.now_us() // 1_000_000
        claim = signing.Claim(principals.SERVER.name, signing.address_id(address), now_s + self._token_seconds)
        return signing.sign(self._key, claim, now_s)

    def renewed(self, caller: Caller) -> Caller:
        """The caller with its present rights; `NotAuthenticated` if its token or certificate is no longer valid."""
        self._refresh_when_due()
        if self._file is None:
            return caller
        now_us = self._clock.now_us()
        if caller.principal is principals.SERVER:
            proof = caller.proof if caller.proof.holds(now_us) else None
        else:
            proof = self._book.renewed(caller.proof, now_us)
        if proof is None:
            raise NotAuthenticated(
                f"the token or certificate of {caller.principal.name} is no longer valid: use a new one"
            )
        return Caller(self, proof)

    def is_principal(self, name: str) -> bool:
        return name in self._book

    def may_read(self, name: str, table: str) -> bool:
        """Whether a principal may read a table; always true on a server without principals."""
        principal = self._book.named(name)
        return self.is_open or (principal is not None and principal.may("read", table))

    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """Principal to the patterns of the tables that it may read. On a server without principals `""`, everybody, may
        read every table."""
        if self.is_open:
            return {"": (principals.EVERYTHING,)}
        return self._book.readers

    def principals(self) -> Sequence[str]:
        return list(self._book)

    def seal(self, principal: Principal, text: str) -> str:
        """The text with a mark for this principal that only the server can make."""
        return signing.seal(self._key, principal.name, text)

    def unseal(self, principal: Principal, text: str) -> str | None:
        """The text of a seal for this principal; None for any other text."""
        return signing.unseal(self._key, principal.name, text)

    def _by_token(self, token: str) -> Proof | None:
        now_us = self._clock.now_us()
        claim = signing.read(self._key, token, now_us // 1_000_000)
        if claim is not None and claim.principal == principals.SERVER.name:
            is_for_us = bool(self.address) and claim.token_id == signing.address_id(self.address)
            return Proof(principals.SERVER, claim.token_id, until_us=claim.until_s * 1_000_000) if is_for_us else None
        if claim is not None:
            proof = self._book.by_id(claim.principal, claim.token_id, now_us)
            return replace(proof, until_us=claim.until_s * 1_000_000) if proof else None
        return self._book.by_token(token, now_us)

    def _refresh_when_due(self) -> None:
        if self._clock.monotonic() - self._checked > CHECK_SECONDS:
            self.refresh()


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request."""

    access: Access
    proof: Proof

    @property
    def principal(self) -> Principal:
        return self.proof.principal

    @property
    def counted_as(self) -> str:
        """The name whose quota the caller uses; empty on a server without principals."""
        return "" if self.access.is_open else self.principal.name

    @property
    def owns_by_name(self) -> bool:
        """Whether producers and subscriptions of the caller are stored under `<principal>/`."""
        return not (self.principal.shared_names or self.principal.administers)


def basic(said: str) -> tuple[str, str]:
    """(name, secret) of a Basic authorization, or `NotAuthenticated`."""
    try:
        text = said.strip()
        padded = text + "=" * (-len(text) % 4)  # ADBC leaves the padding out
        name, colon, secret = base64.b64decode(padded, validate=True).decode().partition(":")
    except ValueError:  # invalid base64 or UTF-8
        name = colon = secret = ""
    if not colon or not secret:
        raise NotAuthenticated("the Authorization header is no `Basic` name and token")
    return name, secret


def _load(file: Path) -> Book:
    try:
        mode = file.stat().st_mode
        text = file.read_text()
    except UnicodeDecodeError as error:
        raise Invalid(f"auth file {file} cannot be read: it is not UTF-8") from error
    except OSError as error:
        raise Invalid(f"auth file {file} cannot be read: {error.strerror}") from error
    if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        raise Invalid(f"auth file {file} may be read or changed by others: chmod 600 {file}")
    try:
        return principals.book_of(yaml_text.values(text))
    except yaml_text.Unreadable as error:
        where = f" at line {error.line}" if error.line else ""
        raise Invalid(f"auth file {file} is not YAML{where}") from None
    except Invalid as error:
        raise Invalid(f"auth file {file}: {error.message}") from error


def _stamp_of(file: Path) -> _Stamp:
    try:
        found = file.stat()
    except OSError as error:
        raise Invalid(f"auth file {file} cannot be read: {error.strerror}") from error
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _refusal(token: str, certificate: Sequence[str]) -> str:
    if token:
        return "the token is not known, or no longer valid: ask the server's operator for one"
    if certificate:
        return "the names in the client certificate are no principal: ask the server's operator"
    return "the server asks who you are: send a token, as in connect(…, token=…) or LAKESTORE_TOKEN"
