"""Positions in a server's history: tokens as text, and waiting for one that lies ahead."""

from __future__ import annotations

from lakestore.errors import PositionExpired, Unavailable
from lakestore.server.engine import Engine
from lakestore.server.state import View
from lakestore.token import Token

AT_WAIT_SECONDS = 30.0


def token_text(engine: Engine, lsn: int) -> str:
    """The token of an LSN of this server's history."""
    return str(Token(engine.timeline, lsn))


def parse_token(text: str, engine: Engine) -> Token:
    """A token of this server's history."""
    token = Token.parse(text)
    if token.timeline != engine.timeline:
        raise PositionExpired("the position belongs to another history of this server: read a snapshot")
    return token


def reached(engine: Engine, lsn: int) -> View:
    """A view at or beyond `lsn`, waited for if it lies ahead."""
    view = engine.view
    if view.lsn < lsn:
        view = engine.wait_beyond(lsn - 1, AT_WAIT_SECONDS)
    if view.lsn < lsn:
        raise Unavailable("the server has not reached this position yet: try again")
    return view
