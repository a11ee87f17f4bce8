"""Words of a Spark SQL text: its tokens and their places, comments left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import Token, TokenType
from sqlglot.errors import SqlglotError

_WORD = re.compile(r"\w+")
_HINT_START = len("/*+")


@dataclass(frozen=True, slots=True)
class Word:
    """The characters [start, end) of a text."""

    text: str
    """The token, without quotes."""
    start: int
    end: int
    is_name: bool
    """Whether the word may be a part of a name; most words of SQL may."""
    is_own: bool
    """Whether the word is none of SQL's."""
    is_hint: bool


@dataclass(frozen=True, slots=True)
class Edit:
    """The characters [start, end) of a text, and their replacement."""

    start: int
    end: int
    new: str


def words_of(text: str, begin: int = 0) -> list[Word]:
    """The words of a text from a character on; none of a text that sqlglot cannot take apart.

    Of some commands sqlglot takes the rest for one token: it is taken apart too.
    """
    try:
        tokens = sqlglot.tokenize(text[begin:], dialect="spark")
    except SqlglotError:
        return []
    if tokens and tokens[0].token_type in (TokenType.COMMAND, TokenType.SHOW):
        first = _word(tokens[0], begin)
        return [first, *words_of(text, first.end)]
    return [_word(token, begin) for token in tokens]


def _word(token: Token, begin: int) -> Word:
    kind = token.token_type
    quoted = kind is TokenType.IDENTIFIER
    plain = kind not in (TokenType.STRING, TokenType.NUMBER) and _WORD.fullmatch(token.text) is not None
    start, end = begin + token.start, begin + token.end + 1
    return Word(token.text, start, end, quoted or plain, quoted or kind is TokenType.VAR, kind is TokenType.HINT)


def pairs(words: Sequence[Word]) -> Iterator[tuple[str, int, int]]:
    """(name, start, end) of possible `database.table`s: two names with a point between them, and none around."""
    for place in range(len(words) - 2):
        first, point, last = words[place : place + 3]
        around = [words[place - 1].text if place else "", words[place + 3].text if place + 3 < len(words) else ""]
        if first.is_name and point.text == "." and last.is_name and "." not in around:
            yield f"{first.text}.{last.text}", first.start, last.end


def hinted(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, start, end) of possible `database.table`s in the hints of a text."""
    for word in words_of(text):
        if word.is_hint:
            yield from pairs(words_of(text[: word.end - 2], word.start + _HINT_START))


def edited(text: str, edits: Sequence[Edit]) -> str:
    """The text after all edits, which touch different characters."""
    # From the end backwards, so that the places in front of an edit stay right.
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.new + text[edit.end :]
    return text
