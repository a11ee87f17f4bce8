"""Tickets: a question with a seal, which only its principal can redeem, at this server until it restarts. Pure.

A ticket has the whole question, so nothing is kept between `GetFlightInfo` and `DoGet`.
"""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass

from lakestore.errors import NotFound
from lakestore_server.access import signing
from lakestore_server.queries.question import Bounds, Question

_NUMBER_BYTES = 16
_UNBOUND = Bounds(0, 0, "")
"""The query service sets the bounds when the question is asked."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """A question that a principal may ask once or often."""

    number: bytes
    """Random; the name by which the query is cancelled."""
    question: Question


class Seals:
    """The seals of one server process. Thread-safe."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(signing.KEY_BYTES)

    def seal(self, owner: str, question: Question) -> bytes:
        """A new ticket of a principal."""
        data = secrets.token_bytes(_NUMBER_BYTES) + question.to_bytes(_UNBOUND)
        return signing.seal(self._key, owner, base64.b64encode(data).decode()).encode()

    def open(self, owner: str, sealed: bytes) -> Ticket:
        """The ticket in the bytes; `NotFound` unless this server made them for this principal."""
        text = signing.unseal(self._key, owner, sealed.decode("ascii", "replace"))
        if text is None:
            raise NotFound("the ticket is not of this server or not of this principal: ask for the query's info again")
        data = base64.b64decode(text)
        return Ticket(data[:_NUMBER_BYTES], Question.from_bytes(data[_NUMBER_BYTES:])[0])
