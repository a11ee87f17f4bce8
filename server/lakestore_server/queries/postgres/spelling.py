"""Spellings of PostgreSQL that DuckDB's parser does not read, or reads as something else.

The rest of the text stays as it is: a position in the new text is a position in the old one plus the edits before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lakestore_server.queries.postgres.names import OID

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<string>[eE]'(?:[^'\\]|\\.|'')*'|[nNbBxX]?'(?:[^']|'')*'|\$(?P<tag>[A-Za-z_]\w*)?\$.*?\$(?(tag)(?P=tag))\$)
    |(?P<name>"(?:[^"]|"")*")
    |(?P<word>[^\W\d][\w$]*)
    |(?P<operator>(?:(?!--|/\*)[-+*/<>=~!@\#%^&|`?])+)
    |(?P<other>::|\d[\w.]*|\$\d+|.)""",
    re.VERBOSE | re.DOTALL,
)
OPERATORS = {
    "~": "<~>",
    "!~": "!<~>",
    "#>>": "|->>",
    "#>": "|->",
    "?": "@~",
    "?|": "@~|",
    "?&": "@~&",
    "#": "@~^",
}
"""Operators that DuckDB reads as others, or not at all, and the operators that stand for them in its tree."""
_NUMERIC = frozenset({"numeric", "decimal", "dec"})
_SIZED = frozenset({"varchar", "char", "character", "bpchar"})
_NUMERIC_SIZE = "(38,10)"
"""Digits of a `numeric` without precision: DuckDB's own default has 3 decimals, and drops the others."""


@dataclass(slots=True)
class Spelling:
    """A text that DuckDB's parser reads."""

    text: str
    edits: list[tuple[int, int, int]] = field(default_factory=list)
    """(position in the new text, its length there, its length in the old text) of each change."""
    sizes: Mapping[int, int] = field(default_factory=dict)
    """Number of characters that a cast keeps, by the position of the cast in bytes of the new text."""
    symmetric: frozenset[int] = frozenset()
    """Positions of BETWEEN SYMMETRIC in bytes of the new text."""

    def original(self, position: int) -> int:
        """The position in the old text of a position in the new one."""
        moved = 0
        for begin, new, old in self.edits:
            if begin >= position:
                break
            moved += min(new, position - begin) - old if position < begin + new else new - old
        return max(position - moved, 0)


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a text; spaces and comments are tokens too."""

    kind: str
    text: str
    begin: int

    @property
    def end(self) -> int:
        return self.begin + len(self.text)


def spelled(text: str) -> Spelling:
    """The text with PostgreSQL's spellings replaced. Names without quotes become lowercase, as in PostgreSQL."""
    tokens = [each for each in tokens_of(text) if each.kind != "space"]
    changes = sorted(_changes(tokens))
    parts: list[str] = []
    edits: list[tuple[int, int, int]] = []
    done = length = 0
    places: dict[int, int] = {}
    for begin, end, new in changes:
        parts += [text[done:begin], new]
        length += begin - done
        if len(new) != end - begin:
            edits.append((length, len(new), end - begin))
        places[begin] = length
        length += len(new)
        done = end
    made = Spelling("".join([*parts, text[done:]]), edits)
    made.sizes = _sizes(made.text)
    symmetric = (places[begin] for begin, end, new in changes if new == "between" and end - begin > len(new))
    made.symmetric = frozenset(len(made.text[:place].encode()) for place in symmetric)
    return made


def tokens_of(text: str) -> Iterator[Token]:
    """The tokens of a text in order."""
    for match in _TOKEN.finditer(text):
        yield Token("string" if match.lastgroup == "tag" else str(match.lastgroup), match[0], match.start())


def _changes(tokens: list[Token]) -> Iterator[tuple[int, int, str]]:
    """(begin, end, new text) of each change; none overlaps another."""
    calls: list[str] = []
    done = 0
    for place, token in enumerate(tokens):
        if token.begin < done:
            continue
        if token.text == "(":
            calls.append(_word(tokens, place - 1))
            if patterns := _patterns(tokens, place):
                calls[-1] = patterns
                yield token.begin, token.end, f"({patterns}("
        elif token.text == ")" and calls and calls.pop() in _PATTERNS.values():
            yield token.begin, token.end, "))"
        change = None
        if token.kind == "operator" and token.text in OPERATORS:
            change = token.begin, token.end, OPERATORS[token.text]
        elif token.kind == "word":
            change = _word_change(tokens, place, is_cast=bool(calls) and calls[-1] in _CASTS)
        if change is not None:
            done = change[1]
            yield change


def _patterns(tokens: list[Token], place: int) -> str:
    """The call that marks the patterns of `LIKE ANY (…)`, at its parenthesis; empty at another one."""
    if _word(tokens, place - 1) not in _QUANTIFIERS or _word(tokens, place + 1) in ("select", "with", "values"):
        return ""
    return _PATTERNS.get(_word(tokens, place - 2), "")


def _like_change(tokens: list[Token], place: int) -> tuple[int, int, str] | None:
    """`LIKE ANY` as `= ANY`, and `NOT LIKE ALL` as `<> ALL`."""
    if _word(tokens, place) == "not":
        is_all = _word(tokens, place + 1) in _PATTERNS and _word(tokens, place + 2) == "all"
        return (tokens[place].begin, tokens[place + 1].end, "<>") if is_all else None
    is_any = _word(tokens, place + 1) in _QUANTIFIERS - {"all"} and _patterns(tokens, place + 2)
    return (tokens[place].begin, tokens[place].end, "=") if is_any else None


def _phrase_change(tokens: list[Token], place: int, word: str) -> tuple[int, int, str] | None:
    """The change at the first word of LIKE ANY or BETWEEN SYMMETRIC, and at a column named `at`."""
    before, after = _word(tokens, place - 1), _word(tokens, place + 1)
    if word in _PATTERNS or word == "not":
        return _like_change(tokens, place)
    if word == "between" and after == "symmetric" and before != "not":
        return tokens[place].begin, tokens[place + 1].end, "between"
    if word == "at" and after not in ("(", "time"):
        return tokens[place].begin, tokens[place].end, '"at"'
    return None


def _word_change(tokens: list[Token], place: int, *, is_cast: bool) -> tuple[int, int, str] | None:
    """The change at a word; `is_cast` is true inside CAST (…)."""
    token = tokens[place]
    before, after, word = _word(tokens, place - 1), _word(tokens, place + 1), token.text.translate(_FOLD)
    if word == "operator" and after == "(":
        closed = next((at for at in range(place, len(tokens)) if tokens[at].text == ")"), None)
        if closed is not None:
            symbol = tokens[closed - 1].text
            return token.begin, tokens[closed].end, f" {OPERATORS.get(symbol, symbol)} "
    of_type = before == "::" or (before == "as" and is_cast)
    if word == "pg_catalog" and after == "." and of_type:
        return token.begin, tokens[place + 1].end, ""
    if word == "oid" and (of_type or _is_catalog_type(tokens, place)):
        return token.begin, token.end, OID
    if word in _NUMERIC and (of_type or before == ".") and after != "(":
        return token.begin, token.end, word + _NUMERIC_SIZE
    change = _phrase_change(tokens, place, word)
    if change is not None:
        return change
    if word == "select" and after in ("from", "where"):
        return token.begin, token.end, "select 1"
    return (token.begin, token.end, word) if word != token.text else None


def _is_catalog_type(tokens: list[Token], place: int) -> bool:
    """Whether a word follows `::pg_catalog.` or `AS pg_catalog.`."""
    before = [_word(tokens, place - back) for back in (1, 2, 3)]
    return before[:2] == [".", "pg_catalog"] and before[2] in ("::", "as")


_FOLD = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_CASTS = frozenset({"cast", "try_cast"})
_QUANTIFIERS = frozenset({"any", "some", "all"})
_PATTERNS = {"like": "like_patterns", "ilike": "ilike_patterns"}
"""Calls that stand around the patterns of LIKE ANY, which DuckDB's parser does not read."""


def _word(tokens: list[Token], place: int) -> str:
    return tokens[place].text.lower() if 0 <= place < len(tokens) else ""


def _sizes(text: str) -> dict[int, int]:
    """The sizes of casts to texts of bounded length. DuckDB's tree does not have them."""
    if "char" not in text:
        return {}
    tokens = [each for each in tokens_of(text) if each.kind != "space"]
    found: dict[int, int] = {}
    casts: list[int | None] = []
    for place, token in enumerate(tokens):
        if token.text == "(":
            casts.append(tokens[place - 1].begin if _word(tokens, place - 1) in _CASTS else None)
        elif token.text == ")" and casts:
            casts.pop()
        if _word(tokens, place) not in _SIZED:
            continue
        first = place
        while _word(tokens, first - 1) == "." and first >= 2:
            first -= 2
        after = place + 1 + (_word(tokens, place + 1) == "varying")
        if _word(tokens, after) != "(" or not _word(tokens, after + 1).isdecimal():
            continue
        if _word(tokens, first - 1) == "::":
            at = tokens[first - 1].begin
        elif _word(tokens, first - 1) == "as" and casts and casts[-1] is not None:
            at = casts[-1]
        else:
            continue
        found[len(text[:at].encode())] = int(tokens[after + 1].text)
    return found
