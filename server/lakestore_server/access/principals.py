"""Principals: the hashes of their tokens, and their rights on tables. Pure values.

- Rights are only granted; a table without a grant is denied.
- A pattern is a table's name, or a beginning of names followed by `*`. Names are case-sensitive.
- A token is 256 random bits, so only its SHA-256 is stored. Hashes are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any

from lakestore.errors import Invalid
from lakestore_server.access.scram import ITERATIONS, ScramVerifier, salt_of

RIGHTS = ("read", "write", "tier", "admin")
EVERYTHING = "*"
TOKEN_PREFIX = "lakestore_"  # noqa: S105 (what every token begins with, so that scanners for leaked secrets find it)
_IMPLIED = {"admin": frozenset(RIGHTS), "tier": frozenset({"tier", "read"})}
"""Rights that a right implies: a tierer reads the rows it moves, an administrator has every right."""
_PRINCIPAL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,127}")
_PATTERN = re.compile(r"[^*]*\*?")
_HASH = re.compile(r"[0-9a-f]{64}")
_FIELDS = {"tokens", "certificates", "grants", "shared_names"}


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights on the tables of some patterns."""

    rights: frozenset[str]
    tables: tuple[str, ...]

    def covers(self, target: str) -> bool:
        """Whether the patterns cover a table, or every table of a target that ends in `*`."""
        for pattern in self.tables:  # every call asks, and a generator takes three times as long
            if pattern == target or (pattern.endswith("*") and target.startswith(pattern[:-1])):
                return True
        return False


@dataclass(frozen=True, slots=True)
class Principal:
    """A named caller: a person, a job, an engine."""

    name: str
    grants: tuple[Grant, ...] = ()
    shared_names: bool = False
    """Whether producers and subscriptions are stored without the prefix `<principal>/`."""

    def may(self, right: str, target: str) -> bool:
        """Whether the principal has a right on a table, on all of `namespace.*`, or on everything, `*`."""
        for grant in self.grants:
            if right in grant.rights and grant.covers(target):
                return True
        return False

    def patterns(self, right: str) -> tuple[str, ...]:
        """The patterns of the tables on which the principal has a right."""
        return tuple(pattern for grant in self.grants if right in grant.rights for pattern in grant.tables)

    def may_somewhere(self, right: str) -> bool:
        """Whether the principal has a right on any table."""
        for grant in self.grants:
            if right in grant.rights and grant.tables:
                return True
        return False

    def sees(self, target: str) -> bool:
        """Whether the principal has any right on a table and so may know that it exists."""
        return any(grant.covers(target) for grant in self.grants)

    def sees_namespace(self, namespace: str) -> bool:
        """Whether the principal may see some table of the namespace."""
        inside = f"{namespace}."
        for grant in self.grants:
            for pattern in grant.tables:
                literal = pattern.removesuffix("*")
                if literal.startswith(inside) or (pattern != literal and inside.startswith(literal)):
                    return True
        return False

    @property
    def administers(self) -> bool:
        """Whether the principal has every right on every table."""
        return self.may("admin", EVERYTHING)


ANYONE = Principal("anyone", (Grant(frozenset(RIGHTS), (EVERYTHING,)),), shared_names=True)
"""Every caller of a server without `auth`."""

SERVER = Principal("(server)", (Grant(frozenset(RIGHTS), (EVERYTHING,)),))
"""Another server of the shared journal. Its name cannot stand in an auth file, and it may call `SERVER_RPCS` alone."""
SERVER_RPCS = frozenset({"/lakestore.v1.Lakestore/CopyCheckpoint", "/lakestore.v1.Lakestore/HoldSnapshots"})

NOBODY = Principal("nobody")
"""The caller of a call without authentication."""


@dataclass(frozen=True, slots=True)
class TokenHash:
    """The stored part of a token."""

    sha256: str
    until_us: int | None = None
    """The moment at which the token expires; None for a token without an end."""
    scram: ScramVerifier | None = None
    """Verifier of the token in a dialog of SCRAM; None for a token that only its hash can check."""


@dataclass(frozen=True, slots=True)
class AuthEntry:
    """A principal with its tokens and certificates."""

    principal: Principal
    tokens: tuple[TokenHash, ...]
    certificates: tuple[str, ...]
    """Names in a client certificate: common name or alternative names."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A principal and the token or certificate that proved it, to check the proof again later."""

    principal: Principal
    token: str = ""
    """Hash of the token; empty for a certificate."""
    certificate: str = ""
    until_us: int | None = None
    """The moment at which the access token expires; None if the proof is no access token."""

    def holds(self, now_us: int) -> bool:
        """Whether the access token, if the proof is one, is still valid."""
        return self.until_us is None or now_us < self.until_us


class Book:
    """All principals of one auth file."""

    def __init__(self, entries: Iterable[AuthEntry] = ()) -> None:
        self._entries = {entry.principal.name: entry for entry in entries}

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """Principal to the patterns of the tables that it may read."""
        return {name: entry.principal.patterns("read") for name, entry in self._entries.items()}

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def named(self, name: str) -> Principal | None:
        entry = self._entries.get(name)
        return entry.principal if entry else None

    def by_token(self, token: str, now_us: int) -> Proof | None:
        """The holder of this token. Every hash is compared, so the time reveals nothing."""
        digest = hash_of(token)
        found = None
        for entry in self._entries.values():
            for known in entry.tokens:
                if hmac.compare_digest(known.sha256, digest) and _is_valid(known, now_us):
                    found = Proof(entry.principal, token=digest)
        return found

    def verifiers(self, name: str, now_us: int) -> tuple[bool, list[TokenHash]]:
        """(whether a dialog of SCRAM is due, valid tokens that it can try) for a name. A name that is no principal gets
        the dialog of the principal that a hash of the name picks, and no token: the dialog does not show who exists."""
        entry = self._entries.get(name)
        tokens = [known for known in entry.tokens if known.scram and _is_valid(known, now_us)] if entry else []
        if entry is None and self._entries:
            picked = int.from_bytes(salt_of(name)) % len(self._entries)
            entry = list(self._entries.values())[picked]
        return entry is None or any(known.scram for known in entry.tokens), tokens

    def by_certificate(self, names: Sequence[str]) -> Proof | None:
        """The principal with a certificate of one of these names; None if several principals claim them."""
        found = [
            Proof(entry.principal, certificate=name)
            for entry in self._entries.values()
            for name in entry.certificates
            if name in names
        ]
        return found[0] if len({proof.principal.name for proof in found}) == 1 else None

    def by_id(self, name: str, token_id: str, now_us: int) -> Proof | None:
        """The principal of this name, if one of its valid tokens has a hash that begins with `token_id`."""
        entry = self._entries.get(name)
        for known in entry.tokens if entry else ():
            if token_id and known.sha256.startswith(token_id) and _is_valid(known, now_us):
                return Proof(entry.principal, token=known.sha256) if entry else None
        return None

    def renewed(self, proof: Proof, now_us: int) -> Proof | None:
        """The same caller in this book; None if its token or certificate is no longer valid."""
        if proof.certificate:
            return self.by_certificate([proof.certificate])
        found = self.by_id(proof.principal.name, proof.token, now_us) if proof.holds(now_us) else None
        return replace(found, until_us=proof.until_us) if found else None


def hash_of(token: str) -> str:
    """The SHA-256 of a token, in hex."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def book_of(data: Any) -> Book:
    """The principals in a file's content; `Invalid` names the mistake and no part of a secret."""
    if not isinstance(data, dict) or set(data) != {"principals"} or not isinstance(data["principals"], dict):
        raise Invalid("it must hold one field, principals:, with an entry for each name")
    entries = [_entry(name, said) for name, said in data["principals"].items()]
    owners: dict[str, str] = {}
    for entry in entries:
        for known in entry.tokens:
            if owners.setdefault(known.sha256, entry.principal.name) != entry.principal.name:
                raise Invalid(f"principals {owners[known.sha256]} and {entry.principal.name} have the same token")
    return Book(entries)


def _entry(name: Any, said: Any) -> AuthEntry:
    if not isinstance(name, str) or not _PRINCIPAL.fullmatch(name):
        raise Invalid("a principal's name is 1 to 128 letters, digits and _ . @ -")
    if not isinstance(said, dict) or not set(said) <= _FIELDS:
        raise Invalid(f"principal {name} has fields other than {', '.join(sorted(_FIELDS))}")
    shared = said.get("shared_names", False)
    if not isinstance(shared, bool):
        raise Invalid(f"shared_names of principal {name} is true or false")
    grants = tuple(_grant(name, each) for each in _list(name, said, "grants"))
    certificates = _list(name, said, "certificates") if "certificates" in said else [name]
    if not all(isinstance(each, str) and each for each in certificates):
        raise Invalid(f"certificates of principal {name} are names")
    tokens = tuple(_token(name, each) for each in _list(name, said, "tokens"))
    return AuthEntry(Principal(name, grants, shared), tokens, tuple(certificates))


def _list(name: str, said: Mapping[str, Any], field: str) -> list[Any]:
    found = said.get(field, [])
    if not isinstance(found, list):
        raise Invalid(f"{field} of principal {name} is a list")
    return found


def _grant(name: str, said: Any) -> Grant:
    if not isinstance(said, dict) or set(said) != {"rights", "tables"}:
        raise Invalid(f"a grant of principal {name} has rights: and tables:, and nothing else")
    rights, tables = said["rights"], said["tables"]
    if not isinstance(rights, list) or not rights or not all(right in RIGHTS for right in rights):
        raise Invalid(f"rights of principal {name} are some of {', '.join(RIGHTS)}")
    if not isinstance(tables, list) or not all(isinstance(each, str) and _PATTERN.fullmatch(each) for each in tables):
        raise Invalid(f"tables of principal {name} are names such as shop.orders, shop.* or *")
    if not all(tables):
        raise Invalid(f"a table of principal {name} has an empty name: write * for every table")
    held = frozenset(implied for right in rights for implied in _IMPLIED.get(right, {right}))
    return Grant(held, tuple(tables))


def _token(name: str, said: Any) -> TokenHash:
    if not isinstance(said, dict) or not {"sha256"} <= set(said) <= {"sha256", "until", "scram"}:
        raise Invalid(
            f"a token of principal {name} has sha256: and perhaps until: and scram:, as `lakestore token` prints them"
        )
    if not isinstance(said["sha256"], str) or not _HASH.fullmatch(said["sha256"]):
        raise Invalid(f"a token of principal {name} is not the 64 hex digits that `lakestore token` prints")
    scram = _scram(name, said["scram"]) if "scram" in said else None
    return TokenHash(said["sha256"], _moment(name, said["until"]) if "until" in said else None, scram)


def _scram(name: str, said: Any) -> ScramVerifier:
    made = ScramVerifier.parsed(said) if isinstance(said, str) else None
    if made is None or made.salt != salt_of(name) or made.iterations != ITERATIONS:
        raise Invalid(f"scram of a token of principal {name} is not what `lakestore token {name}` prints")
    return made


def _moment(name: str, said: Any) -> int:
    try:
        found = datetime.fromisoformat(said.isoformat() if isinstance(said, date) else said)
    except (TypeError, ValueError) as error:
        raise Invalid(f"until of a token of principal {name} is a day or a time, as in 2030-12-31") from error
    moment = found if found.tzinfo else found.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000_000)


def _is_valid(known: TokenHash, now_us: int) -> bool:
    return known.until_us is None or now_us < known.until_us
