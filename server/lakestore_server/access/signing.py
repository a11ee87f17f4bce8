"""Texts that only this server can make: access tokens and seals of leases, by an HMAC with the server's key. Pure.

- An access token is a short-lived JSON Web Token that names a principal and the token it was exchanged for. Catalog
  clients read only its `exp`.
- If the exchanged token is removed from the auth file, the access token is no longer valid.
- A seal binds a text to a principal.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass

import orjson

KEY_BYTES = 32
ID_CHARS = 16
"""Hex digits of the exchanged token's hash; enough to distinguish the tokens of a principal."""
SEAL_CHARS = 32
_CHARS_MAX = 2_048


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of an access token."""

    principal: str
    token_id: str
    until_s: int
    """Seconds since 1970."""


def sign(key: bytes, claim: Claim, now_s: int) -> str:
    """The token of a claim."""
    said = {"sub": claim.principal, "jti": claim.token_id, "iat": now_s, "exp": claim.until_s}
    signed = f"{_HEADER}.{_text(orjson.dumps(said))}"
    return f"{signed}.{_signature(key, signed)}"


def read(key: bytes, token: str, now_s: int) -> Claim | None:
    """The claim of our token; None for any other text and for an expired token."""
    head, _, rest = token.partition(".")
    said, _, signature = rest.partition(".")
    if head != _HEADER or len(token) > _CHARS_MAX or not token.isascii():
        return None
    if not hmac.compare_digest(signature, _signature(key, f"{head}.{said}")):
        return None
    try:
        data = orjson.loads(base64.urlsafe_b64decode(said + "=" * (-len(said) % 4)))
        claim = Claim(data["sub"], data["jti"], data["exp"])
    except (binascii.Error, ValueError, KeyError, TypeError):
        return None
    return claim if now_s < claim.until_s else None


def address_id(address: str) -> str:
    """The id of an access token that is good at the server with this address only."""
    return hashlib.sha256(address.encode("utf-8", "surrogateescape")).hexdigest()[:ID_CHARS]


def seal(key: bytes, owner: str, text: str) -> str:
    """The text with a mark that binds it to its owner."""
    return f"{text}.{_seal_mark(key, owner, text)}"


def unseal(key: bytes, owner: str, sealed: str) -> str | None:
    """The text of a seal for this owner; None for any other text."""
    text, _, mark = sealed.rpartition(".")
    given, made = mark.encode("utf-8", "surrogateescape"), _seal_mark(key, owner, text).encode()
    return text if hmac.compare_digest(given, made) else None


def _seal_mark(key: bytes, owner: str, text: str) -> str:
    return _mac(key, f"{owner}\0{text}").hex()[:SEAL_CHARS]


def _signature(key: bytes, signed: str) -> str:
    return _text(_mac(key, signed))


def _mac(key: bytes, said: str) -> bytes:
    """The one primitive. A sealed text has a NUL and a token has none, so neither passes for the other."""
    return hmac.new(key, said.encode("utf-8", "surrogateescape"), hashlib.sha256).digest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


_HEADER = _text(b'{"alg":"HS256","typ":"JWT"}')
