"""Short-lived access tokens: a JSON Web Token signed with the server's own key, naming a principal and its token.

Catalog clients read its `exp`; nothing else in it is for them. A token whose origin was removed from the auth file
is no longer valid, whatever its time. Pure.
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
"""How much of the hash of the token it was got for is named; enough to tell the tokens of a principal apart."""
_CHARS_MAX = 2_048


@dataclass(frozen=True, slots=True)
class Claim:
    """What an access token says."""

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
    """What a token of ours claims; None for any other text and when its time is over."""
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


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _signature(key: bytes, signed: str) -> str:
    return _text(hmac.new(key, signed.encode(), hashlib.sha256).digest())


_HEADER = _text(b'{"alg":"HS256","typ":"JWT"}')
