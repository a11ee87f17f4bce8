"""The place in a client's text that DuckDB marks in the text that it was asked.

- DuckDB prints a part of one line of its text, and a caret below the token that it means.
- The token is the n-th of its kind in DuckDB's text. The n-th such token of the client's text is meant.
- If the two texts have different numbers of such tokens, the place is unknown.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lakestore.errors import Invalid
from lakestore_server.queries.postgres.spelling import Token, tokens_of

_CARET = re.compile(r"\n(LINE (\d+): )(.*)\n( *)\^\s*$")
_BOUND = ("Binder Error", "Catalog Error")
"""Errors before the first row. PostgreSQL gives no place to an error that a row makes."""
_OTHERS = ("Cannot deduce template type", "Cannot mix values of type")
"""Errors that DuckDB marks at another place than PostgreSQL."""
_CUT = "..."
_OPERATORS = {token: "regexp_matches" for token in ("~", "!~", "~*", "!~*")}
"""Operators of PostgreSQL that are calls in DuckDB's text."""


@contextmanager
def placed(text: str, asked: str) -> Iterator[None]:
    """Add the place in `text` to an error of DuckDB about `asked`, in the words of the parser's errors."""
    try:
        yield
    except Invalid as error:
        said = str(error.__cause__)
        is_marked = said.startswith(_BOUND) and not any(part in said for part in _OTHERS)
        place = place_of(said, text, asked) if is_marked else 0
        if not place:
            raise
        raise Invalid(f"{error.message} at character {place}") from error


def place_of(said: str, text: str, asked: str) -> int:
    """The character of `text` that DuckDB's message about `asked` means, counted from 1; 0 if it is unknown."""
    begin = _marked(said, asked)
    marks, tokens = _tokens(asked), _tokens(text)
    meant = next((value for value, token in marks if token.begin == begin), None)
    if meant is None:
        return 0
    before = [token.begin for value, token in marks if value == meant]
    places = [place for place, (value, _) in enumerate(tokens) if value == meant]
    if len(before) != len(places):
        return 0
    return tokens[_first(tokens, places[before.index(begin)])][1].begin + 1


def _tokens(text: str) -> Sequence[tuple[tuple[str, str], Token]]:
    """The tokens of a text without spaces. The first value of each is the same in both texts."""
    tokens = [each for each in tokens_of(text) if each.kind != "space"]
    after = [*(each.text for each in tokens[1:]), ""]
    return [(_value(token, is_call=next_text == "("), token) for token, next_text in zip(tokens, after, strict=True)]


def _value(token: Token, *, is_call: bool) -> tuple[str, str]:
    if token.text in _OPERATORS:
        return "call", _OPERATORS[token.text]
    if token.kind in ("word", "name"):
        name = token.text[1:-1].replace('""', '"') if token.kind == "name" else token.text
        return "call" if is_call else "word", name.lower()
    return token.kind, token.text


def _marked(said: str, asked: str) -> int:
    """The place of the caret in the text that DuckDB was asked, counted from 0; -1 if it is unknown."""
    match = _CARET.search(said)
    lines = asked.split("\n")
    if match is None or int(match[2]) > len(lines):
        return -1
    above, line = lines[: int(match[2]) - 1], lines[int(match[2]) - 1]
    part, column = match[3], len(match[4]) - len(match[1])
    place = next((place for place in range(len(part)) if _width(part[:place]) >= column), len(part))
    if part not in line:
        place -= len(_CUT) * part.startswith(_CUT)
        part = part.removeprefix(_CUT).removesuffix(_CUT)
    found = line.find(part)
    return sum(len(each) + 1 for each in above) + found + place if found >= 0 else -1


def _width(part: str) -> int:
    """The columns of a terminal that a text takes: DuckDB puts the caret by them."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in part
    )


def _first(tokens: Sequence[tuple[tuple[str, str], Token]], place: int) -> int:
    """The first part of the name whose part is at `place`: an error of PostgreSQL is at the whole name."""
    while place >= 2 and tokens[place - 1][1].text == "." and tokens[place - 2][1].kind in ("word", "name"):
        place -= 2
    return place
