"""Functions whose value the session itself knows: current_setting, set_config, current_user and their kin.

A call of one of them becomes a literal before the text goes to the query service, whose process knows no session.
A text without any of these names is not parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
_KINDS: Mapping[str, tuple[str, ...]] = {
    "current_setting": ("VARCHAR", "BOOLEAN"),
    "set_config": ("VARCHAR", "VARCHAR", "BOOLEAN"),
    "current_schemas": ("BOOLEAN",),
}
"""Types of the parameters of functions that have some."""
_TRUE = frozenset({"true", "t", "on", "1"})
_BINARY_BOOLS = {b"\0": "false", b"\x01": "true"}
_KNOWN_CHARS_MAX = 4_096
"""Characters of the longest text whose search for these names is remembered."""
_ANY = re.compile("|".join(sorted(_SETTINGS | _WORDS | _CALLS)), re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of one of these functions in a text."""

    first: int
    last: int
    """Its tokens."""
    literal: str
    parameters: tuple[str, ...] = ()
    """Its arguments that are parameters, each cast to the type that Postgres's function has there."""

    @property
    def text(self) -> str:
        """The text that takes the call's place. It names the parameters, so that each keeps its number and type."""
        if not self.parameters:
            return self.literal
        return f"CASE WHEN concat({', '.join(self.parameters)}) IS NULL THEN NULL ELSE {self.literal} END"


def with_own_values(
    text: str, facts: Mapping[str, str], variables: Variables, given: Sequence[bytes | None] | None = ()
) -> str:
    """The text with a literal at each call of these functions. set_config sets its variable.

    `given` are the values of the parameters, which may be arguments of these functions. With None the text is only to
    be described: literals have no value, and no variable is set.
    """
    if not _has_own(text):
        return text
    tokens = list(tokens_of(text))
    parts, place = [], 0
    for call, name in _calls(tokens, facts, variables, given):
        parts.append(text[place : tokens[call.first].begin])
        parts.append(call.text + (f" AS {name}" if _is_whole_column(tokens, call.first, call.last) else ""))
        place = tokens[call.last].end
    return "".join([*parts, text[place:]])


def _has_own(text: str) -> bool:
    return _is_known_to_have_own(text) if len(text) <= _KNOWN_CHARS_MAX else _ANY.search(text) is not None


@lru_cache(maxsize=512)
def _is_known_to_have_own(text: str) -> bool:
    return _ANY.search(text) is not None


def _with_value(token: Token, given: Sequence[bytes | None]) -> Token:
    """A parameter as the literal that the client gave for it."""
    number = int(token.text[1:]) if token.kind == "parameter" else 0
    if not 0 < number <= len(given):
        return token
    data = given[number - 1]
    if data is None:
        return token._replace(kind="word", text="null")
    value = _BINARY_BOOLS.get(bytes(data)) or data.decode(errors="replace")
    return token._replace(kind="string", text=text_literal(value))


def _calls(
    tokens: Sequence[Token], facts: Mapping[str, str], variables: Variables, given: Sequence[bytes | None] | None
) -> Iterator[tuple[_Call, str]]:
    """Each call and its function's name."""
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
                yield _Call(first, number, text_literal(facts[name])), name
            continue
        kinds = _KINDS.get(name, ())
        casts = tuple(
            f"CAST({each.text} AS {kind})" for each, kind in zip(arguments, kinds, strict=False) if _is_parameter(each)
        )
        if given is None and name in _KINDS:
            literal: str | None = "CAST(NULL AS VARCHAR[])" if name == "current_schemas" else "CAST(NULL AS VARCHAR)"
        else:
            literal = _value(name, [_with_value(each, given or ()) for each in arguments], facts, variables)
        if literal is not None:
            yield _Call(first, last, literal, casts), name


def _is_parameter(token: Token) -> bool:
    return token.kind == "parameter"


def _value(name: str, arguments: Sequence[Token], facts: Mapping[str, str], variables: Variables) -> str | None:
    """The literal of a call; None if the query process answers it."""
    if name == "current_setting" and arguments and arguments[0].kind == "string":
        is_missing_ok = len(arguments) == 2 and arguments[1].value in _TRUE
        found = variables.get(arguments[0].value) if is_missing_ok else variables[arguments[0].value]
        return "CAST(NULL AS VARCHAR)" if found is None else text_literal(found)
    if name == "set_config" and len(arguments) == 3 and arguments[0].kind == "string":
        value = None if arguments[1].folded == "null" else (arguments[1].value,)
        variables.put(arguments[0].value, value, is_local=arguments[2].value in _TRUE)
        return text_literal(variables[arguments[0].value])
    if name == "current_schemas" and len(arguments) == 1:
        names = list(variables.reading.search_path)
        if arguments[0].value in _TRUE:
            names.insert(0, "pg_catalog")
        return f"[{', '.join(map(text_literal, names))}]"
    if name == "current_schema" and not arguments:
        return text_literal(next(iter(variables.reading.search_path), ""))
    if name in _CALLS and name in facts and not arguments:
        return facts[name] if name == "pg_backend_pid" else text_literal(facts[name])
    if name in _SETTINGS:
        raise SqlError("0A000", f"the arguments of {name} must be constants or parameters")
    return None


def _arguments(tokens: Sequence[Token], number: int) -> tuple[list[Token] | None, int]:
    """(arguments, last token) of a call; None without parentheses, or if an argument is neither a constant nor a
    parameter. Casts of an argument are dropped."""
    if _text_at(tokens, number + 1) != "(":
        return None, number
    arguments: list[list[Token]] = [[]]
    depth = 0
    for place in range(number + 2, len(tokens)):
        token = tokens[place]
        if token.text == ")" and not depth:
            bare = [_without_casts(each) for each in arguments if each]
            singles = [each[0] for each in bare if len(each) == 1]
            return (singles, place) if len(singles) == len(bare) else (None, number)
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if token.text == "," and not depth:
            arguments.append([])
        else:
            arguments[-1].append(token)
    return None, number


def _without_casts(argument: list[Token]) -> list[Token]:
    """The tokens of an argument without `::type` and `CAST(… AS type)` around them."""
    if len(argument) > 3 and argument[0].folded == "cast" and argument[1].text == "(" and argument[-1].text == ")":
        end = next((place for place, token in enumerate(argument) if token.folded == "as"), 0)
        return _without_casts(argument[2:end])
    ends = (place for place in range(1, len(argument) - 1) if argument[place].text == argument[place + 1].text == ":")
    return argument[: next(ends, len(argument))]


def _is_whole_column(tokens: Sequence[Token], first: int, last: int) -> bool:
    """Whether a call is a column of the outermost SELECT without a name of its own."""
    depth = sum({"(": 1, ")": -1}.get(token.text, 0) for token in tokens[:first])
    before = tokens[first - 1].folded or tokens[first - 1].text if first else ""
    after = _text_at(tokens, last + 1).lower()
    return not depth and before in ("select", ",") and after in ("", ",", "from", ";")


def _text_at(tokens: Sequence[Token], number: int) -> str:
    return tokens[number].text if number < len(tokens) else ""
