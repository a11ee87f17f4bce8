"""Verifiers of SCRAM-SHA-256 (RFC 5802, 7677): what a server stores to check a token that it never gets.

- A verifier is text in Postgres's form: `SCRAM-SHA-256$4096:<salt>$<StoredKey>:<ServerKey>`.
- The salt comes from the principal's name. So all tokens of a principal have one salt, and the dialog, which has room
  for one salt, can try each of them. A token has 256 random bits, which no table of hashes covers: the salt need not
  be random.
- The salt of a name that is no principal is made in the same way, so a dialog does not show who exists.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Self

ITERATIONS = 4096
_TEXT = re.compile(r"SCRAM-SHA-256\$(\d{4,7}):([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]{44}):([A-Za-z0-9+/=]{44})")


def salt_of(principal: str) -> bytes:
    """The salt of a principal's verifiers."""
    return hashlib.sha256(b"lakestore scram " + principal.encode()).digest()[:16]


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """The stored part of a token for SCRAM."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, principal: str, token: str) -> Self:
        """The verifier of a principal's token."""
        salt = salt_of(principal)
        salted = hashlib.pbkdf2_hmac("sha256", token.encode(), salt, ITERATIONS)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        server_key = hmac.digest(salted, b"Server Key", "sha256")
        return cls(ITERATIONS, salt, hashlib.sha256(client_key).digest(), server_key)

    @classmethod
    def parsed(cls, text: str) -> Self | None:
        """The verifier of a text; None for a text of another form."""
        match = _TEXT.fullmatch(text)
        if match is None:
            return None
        try:
            salt, stored, server = (base64.b64decode(part, validate=True) for part in match.groups()[1:])
        except ValueError:
            return None
        return cls(int(match[1]), salt, stored, server) if len(stored) == len(server) == 32 else None

    def text(self) -> str:
        """The verifier as the auth file has it."""
        salt, stored, server = (
            base64.b64encode(part).decode() for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"SCRAM-SHA-256${self.iterations}:{salt}${stored}:{server}"

    def admits(self, proof: bytes, auth_message: bytes) -> bool:
        """Whether a client's proof shows that it has the token."""
        signature = hmac.digest(self.stored_key, auth_message, "sha256")
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        return hmac.compare_digest(hashlib.sha256(client_key).digest(), self.stored_key)

    def signature(self, auth_message: bytes) -> bytes:
        """The server's proof to the client."""
        return hmac.digest(self.server_key, auth_message, "sha256")
