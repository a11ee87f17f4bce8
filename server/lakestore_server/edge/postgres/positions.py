"""The place of an error in a statement: a parser tells the character, other errors quote a name or a literal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lakestore_server.edge.postgres.statements import Token, tokens_of

_CHARACTER = re.compile(r" at character (\d+)$")
_LITERAL = re.compile(
    r'(?:invalid input syntax for type [^:]+|field value out of range): "(.*)"$'
    r"|Could not convert string '(.*)' to \w+$"
    r'|invalid (?:date|time|timestamp) field format: "(.*)", expected',
    re.DOTALL,
)
_GROUPED = re.compile(r"GROUP BY term out of range - should be between 1 and (\d+)")


@dataclass(frozen=True, slots=True)
class _Name:
    """A name in a statement, of one part or several."""

    parts: Sequence[str]
    begin: int
    is_call: bool

    def is_column(self, quoted: str) -> bool:
        return self.parts == [quoted] and not self.is_call

    def is_field(self, quoted: str) -> bool:
        return len(self.parts) > 1 and self.parts[-1] == quoted

    def is_of_table(self, quoted: str) -> bool:
        return len(self.parts) > 1 and self.parts[0] == quoted

    def is_table(self, quoted: str) -> bool:
        return f".{quoted}".endswith("." + ".".join(self.parts)) and not self.is_call

    def is_type(self, quoted: str) -> bool:
        return self.parts[-1] == quoted

    def is_function(self, quoted: str) -> bool:
        return self.is_call and self.parts[-1] == quoted


_RULES: Sequence[tuple[re.Pattern[str], Callable[[_Name, str], bool]]] = (
    (re.compile(r'Referenced column "(.+?)" not found'), _Name.is_column),
    (re.compile(r'Ambiguous reference to column name "(.+?)"'), _Name.is_column),
    (re.compile(r'column "?(.+?)"? must appear in the GROUP BY'), lambda name, text: name.parts[-1] == text),
    (re.compile(r'does not have a column named "(.+?)"'), _Name.is_field),
    (re.compile(r'Referenced table "(.+?)" not found'), _Name.is_of_table),
    (re.compile(r"there is no table '(.+?)'"), _Name.is_table),
    (re.compile(r"the function (\S+) is on no list"), _Name.is_function),
    (re.compile(r"given name and number of arguments '(.+?)'"), _Name.is_function),
    (re.compile(r"Macro (\S+)\(\) does not support"), _Name.is_function),
    (re.compile(r"Error: (\S+) is not an aggregate function"), _Name.is_function),
    (re.compile(r'Function "(.+?)" is a Scalar Function'), _Name.is_function),
    (re.compile(r"Scalar Function with name (\S+) does not exist"), _Name.is_function),
    (re.compile(r"the type (\S+) is refused"), _Name.is_type),
    (re.compile(r'window "(.+?)" does not exist'), _Name.is_column),
)
"""Parts of sentences that quote a name, and whether a name of the statement is meant."""


def place_of(message: str, text: str) -> int:
    """The character of a statement at which its error is, counted from 1; 0 if the sentence does not tell."""
    if said := _CHARACTER.search(message):
        return int(said[1])
    if said := _LITERAL.search(message):
        quoted = next(each for each in said.groups() if each is not None)
        begins = (each.begin for each in tokens_of(text) if each.kind in ("string", "escaped") and each.value == quoted)
        return next(begins, -1) + 1
    if said := _GROUPED.search(message):
        return _grouped(text, int(said[1])) + 1
    for pattern, fits in _RULES:
        if said := pattern.search(message):
            quoted = said[1].lower()
            return next((name.begin for name in _names(text) if fits(name, quoted)), -1) + 1
    return 0


def _grouped(text: str, columns: int) -> int:
    """The place of the first number after GROUP BY that is no column of the result; -1 if there is none."""
    words = [""]
    for token in tokens_of(text):
        words.append(token.text.lower())
        is_listed = words[-2] in ("by", ",") and "group" in words
        if is_listed and token.text.isdecimal() and not 1 <= int(token.text) <= columns:
            return token.begin
    return -1


def _names(text: str) -> Iterator[_Name]:
    tokens = [*tokens_of(text), Token("end", "", len(text), len(text))]
    place = 0
    while place < len(tokens):
        first, parts = tokens[place], list[str]()
        while tokens[place].kind in ("word", "quoted"):
            parts.append(tokens[place].value.lower())
            place += 1
            if tokens[place].text != ".":
                break
            place += 1
            if tokens[place].text == "*":
                parts.append("*")
                break
        if parts:
            yield _Name(parts, first.begin, tokens[place].text == "(")
        else:
            place += 1
