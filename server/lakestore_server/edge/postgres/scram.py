"""The server's side of SCRAM-SHA-256 (RFC 5802, 7677), as values.

    client-first   n,,n=,r=CLIENTNONCE                       the user stands in the StartMessage
    server-first   r=CLIENTNONCE+SERVERNONCE,s=SALT,i=4096
    client-final   c=biws,r=…,p=PROOF
    server-final   v=SIGNATURE

- A dialog tries every token of the principal: they have one salt.
- A name without tokens gets the same dialog and the same time as one with tokens.
- Over TLS a client may bind the dialog to the server's certificate (`SCRAM-SHA-256-PLUS`).
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence
from typing import Generic, TypeVar

from lakestore_server.access.scram import ITERATIONS, ScramVerifier, salt_of

MECHANISM, BOUND_MECHANISM = "SCRAM-SHA-256", "SCRAM-SHA-256-PLUS"
NONCE_CHARS_MAX = 256
BINDING = "tls-server-end-point"
_Token = TypeVar("_Token")


class MalformedDialog(Exception):
    """A message of the client that SCRAM does not allow."""


class ScramDialog(Generic[_Token]):
    """One dialog. `first` and then `final` get the client's messages."""

    def __init__(
        self,
        user: str,
        tokens: Sequence[tuple[ScramVerifier, _Token]],
        nonce: str,
        certificate_hash: bytes = b"",
    ) -> None:
        """`certificate_hash` is that of the server's certificate; empty without TLS."""
        self._user, self._tokens, self._nonce = user, tokens, nonce
        self._hash = certificate_hash
        self._is_bound = False
        self._header = self._both = ""
        self._asked = ""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """Mechanisms of SASL that the server offers."""
        return (BOUND_MECHANISM, MECHANISM) if self._hash else (MECHANISM,)

    def first(self, mechanism: str, data: bytes) -> bytes:
        """The server's first message."""
        if mechanism not in self.mechanisms:
            raise MalformedDialog(f"the server offers {' and '.join(self.mechanisms)}, not {mechanism!r}")
        self._is_bound = mechanism == BOUND_MECHANISM
        flag, _, rest = _text(data).partition(",")
        identity, _, bare = rest.partition(",")
        if self._is_bound != flag.startswith("p="):
            raise MalformedDialog("the client's channel binding does not go with its mechanism")
        if flag not in ("n", "y", f"p={BINDING}") or (flag == "y" and self._hash):
            raise MalformedDialog("the client asks for a channel binding that the server does not have")
        if identity:
            raise MalformedDialog("the client asks to act as another user")
        fields = dict(_pairs(bare))
        nonce = fields.get("r", "")
        if "m" in fields or not 1 <= len(nonce) <= NONCE_CHARS_MAX:
            raise MalformedDialog("the client's first message has no nonce")
        self._header, self._both = f"{flag},,", nonce + self._nonce
        salt = base64.b64encode(salt_of(self._user)).decode()
        answer = f"r={self._both},s={salt},i={ITERATIONS}"
        self._asked = f"{bare},{answer}"
        return answer.encode()

    def final(self, data: bytes) -> tuple[_Token, bytes] | None:
        """(token, the server's last message); None if the proof is none of any token."""
        text = _text(data)
        without_proof, comma, proof = text.rpartition(",p=")
        fields = dict(_pairs(without_proof))
        if not comma or fields.get("r") != self._both:
            raise MalformedDialog("the client's last message does not go with its first one")
        binding = self._header.encode() + (self._hash if self._is_bound else b"")
        if not hmac.compare_digest(_decoded(fields.get("c", "")), binding):
            raise MalformedDialog("the client speaks to another certificate: somebody may stand between")
        given = _decoded(proof)
        if len(given) != 32:
            raise MalformedDialog("the client's proof has another length")
        message = f"{self._asked},{without_proof}".encode()
        match = None
        if not self._tokens:
            _NOBODY.admits(given, message)  # the time of a dialog does not show that the name has no token
        for verifier, token in self._tokens:
            if verifier.admits(given, message):
                match = token, b"v=" + base64.b64encode(verifier.signature(message))
        return match


_NOBODY = ScramVerifier(ITERATIONS, b"", bytes(32), bytes(32))
"""The verifier of a name without tokens, which admits no proof that can be found."""


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MalformedDialog("a message of SCRAM is not UTF-8") from error


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(part[0], part[2:]) for part in text.split(",") if part[1:2] == "="]


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise MalformedDialog("a message of SCRAM has a field that is not base64") from error
