"""The clock in conditions: `now()` and its like become the moment of the call, one for the whole cut.

They are replaced in the text before it is read or sent, so that every file, bucket, server and later message of a
stream is asked the same question; statistics then see a literal.
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlglot
from sqlglot import TokenType
from sqlglot.errors import SqlglotError

_MOMENTS = {"now", "current_timestamp", "get_current_timestamp", "transaction_timestamp"}
_DAYS = {"current_date", "today"}
_LOCAL = {"localtimestamp", "current_localtimestamp"}
_BARE = {"current_timestamp", "current_date", "localtimestamp"}
"""Words that need no parentheses."""


def fixed(text: str, at: datetime | None = None) -> str:
    """The condition with its words of the clock as literals of one moment; that of the call unless one is given."""
    lowered = text.lower()
    if not any(word in lowered for word in _MOMENTS | _DAYS | _LOCAL):
        return text
    try:
        tokens = sqlglot.tokenize(text, read="duckdb")
    except SqlglotError:
        return text  # whoever reads the condition says what is wrong with it
    moment = (datetime.now(UTC) if at is None else at).astimezone(UTC)
    said, done = [], 0
    for place, token in enumerate(tokens):
        word = token.text.lower()
        called = [each.token_type for each in tokens[place + 1 : place + 3]] == [TokenType.L_PAREN, TokenType.R_PAREN]
        quoted = token.token_type in (TokenType.STRING, TokenType.IDENTIFIER, TokenType.NUMBER)
        inside = place > 0 and tokens[place - 1].token_type is TokenType.DOT
        literal = "" if quoted or inside or not (called or word in _BARE) else _literal(word, moment)
        if literal:
            said += [text[done : token.start], literal]
            done = (tokens[place + 2].end if called else token.end) + 1
    return "".join([*said, text[done:]])


def _literal(word: str, moment: datetime) -> str:
    naive = moment.replace(tzinfo=None)
    if word in _MOMENTS:
        return f"TIMESTAMPTZ '{naive.isoformat(' ', 'microseconds')}+00'"
    if word in _DAYS:
        return f"DATE '{moment.date().isoformat()}'"
    return f"TIMESTAMP '{naive.isoformat(' ', 'microseconds')}'" if word in _LOCAL else ""
