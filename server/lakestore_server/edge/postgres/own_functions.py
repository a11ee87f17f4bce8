"""Functions whose value the session itself knows: current_setting, set_config, current_user and their kin.

A call of one of them becomes a literal before the text goes to the query service, whose process knows no session.
A text without any of these names is not parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from lakestore.rows.literals import text_literal
from lakestore_server.edge.postgres.sqlstates import SqlError
from lakestore_server.edge.postgres.statements import Token, tokens_of
from lakestore_server.edge.postgres.variables import Variables

_SETTINGS = frozenset({"current_setting", "set_config"})
_WORDS = frozenset({"current_user", "session_user", "current_role", "current_catalog", "user"})
"""Names that are called without parentheses."""
_CALLS = frozenset(
    {"current_database", "pg_backend_pid", "version", "current_schema", "current_schemas", "inet_client_addr"}
)
_KNOWN_CHARS_MAX = 4_096
"""Characters of the longest text whose search for these names is remembered."""
_ANY = re.compile("|".join(sorted(_SETTINGS | _WORDS | _CALLS)), re.IGNORECASE)


def with_own_values(
    text: str, facts: Mapping[str, str], variables: Variables, given: Sequence[bytes | None] = ()
) -> str:
    """The text with a literal at each call of these functions. set_config sets its variable. `given` are the values of
    the parameters, which may be arguments of these functions."""
    if not _has_own(text):
        return text
    tokens = [_with_value(token, given) for token in tokens_of(text)]
    parts, place = [], 0
    for first, last, literal, name in _calls(tokens, facts, variables):
        parts.append(text[place : tokens[first].begin])
        parts.append(literal + (f" AS {name}" if _is_whole_column(tokens, first, last) else ""))
        place = tokens[last].end
    return "".join([*parts, text[place:]])


def _has_own(text: str) -> bool:
    return _is_known_to_have_own(text) if len(text) <= _KNOWN_CHARS_MAX else _ANY.search(text) is not None


@lru_cache(maxsize=512)
def _is_known_to_have_own(text: str) -> bool:
    return _ANY.search(text) is not None


def has_parameters(text: str) -> bool:
    """Whether a text names a parameter."""
    return any(token.kind == "parameter" for token in tokens_of(text))


def _with_value(token: Token, given: Sequence[bytes | None]) -> Token:
    """A parameter as the literal that the client gave for it."""
    number = int(token.text[1:]) if token.kind == "parameter" else 0
    if not 0 < number <= len(given):
        return token
    data = given[number - 1]
    if data is None:
        return token._replace(kind="word", text="null")
    return token._replace(kind="string", text=text_literal(data.decode(errors="replace")))


def _calls(
    tokens: Sequence[Token], facts: Mapping[str, str], variables: Variables
) -> Iterator[tuple[int, int, str, str]]:
    """(first token, last token, literal, name) of each call."""
    for number, token in enumerate(tokens):
        name = token.folded
        if name not in _SETTINGS | _WORDS | _CALLS:
            continue
        first = number
        if number >= 2 and tokens[number - 1].text == ".":
            if tokens[number - 2].folded != "pg_catalog":
                continue  # a column of a table
            first = number - 2
        arguments, last = _arguments(tokens, number)
        if arguments is None:
            if name in _WORDS and first == number and _text_at(tokens, number + 1) not in (".", "("):
                yield first, number, text_literal(facts[name]), name
            continue
        literal = _value(name, arguments, facts, variables)
        if literal is not None:
            yield first, last, literal, name


def _value(name: str, arguments: Sequence[Token], facts: Mapping[str, str], variables: Variables) -> str | None:
    """The literal of a call; None if the query process answers it."""
    if name == "current_setting" and arguments and arguments[0].kind == "string":
        is_missing_ok = len(arguments) == 2 and arguments[1].value in ("true", "t", "on", "1")
        found = variables.get(arguments[0].value) if is_missing_ok else variables[arguments[0].value]
        return "CAST(NULL AS VARCHAR)" if found is None else text_literal(found)
    if name == "set_config" and len(arguments) == 3 and arguments[0].kind == "string":
        value = None if arguments[1].folded == "null" else (arguments[1].value,)
        variables.put(arguments[0].value, value, is_local=arguments[2].value in ("true", "t", "on", "1"))
        return text_literal(variables[arguments[0].value])
    if name == "current_schemas" and len(arguments) == 1:
        names = list(variables.reading.search_path)
        if arguments[0].value in ("true", "t"):
            names.insert(0, "pg_catalog")
        return f"[{', '.join(map(text_literal, names))}]"
    if name == "current_schema" and not arguments:
        return text_literal(next(iter(variables.reading.search_path), ""))
    if name in _CALLS and name in facts and not arguments:
        return facts[name] if name == "pg_backend_pid" else text_literal(facts[name])
    if name in _SETTINGS:
        raise SqlError("0A000", f"the arguments of {name} must be constants")
    return None


def _arguments(tokens: Sequence[Token], number: int) -> tuple[list[Token] | None, int]:
    """(arguments that are single tokens, last token) of a call; None without parentheses or with other arguments."""
    if _text_at(tokens, number + 1) != "(":
        return None, number
    arguments: list[Token] = []
    place = number + 2
    while place < len(tokens):
        token = tokens[place]
        if token.text == ")":
            return arguments, place
        if token.text != ",":
            arguments.append(token)
        place += 1
        if _text_at(tokens, place) == ":" and _text_at(tokens, place + 1) == ":":
            place += 3  # a cast such as 'x'::text
    return None, number


def _is_whole_column(tokens: Sequence[Token], first: int, last: int) -> bool:
    """Whether a call is a column of the outermost SELECT without a name of its own."""
    depth = sum({"(": 1, ")": -1}.get(token.text, 0) for token in tokens[:first])
    before = tokens[first - 1].folded or tokens[first - 1].text if first else ""
    after = _text_at(tokens, last + 1).lower()
    return not depth and before in ("select", ",") and after in ("", ",", "from", ";")


def _text_at(tokens: Sequence[Token], number: int) -> str:
    return tokens[number].text if number < len(tokens) else ""
