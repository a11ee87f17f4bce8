"""Texts as statements: split at semicolons, and parsed where the session itself answers.

- A statement that reads is not parsed here: its text goes to the query service as it is.
- The lexer knows Postgres's quotes and comments, so a semicolon within them splits nothing.
- A place in a text is a number of characters from the begin of the client's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from lakestore_server.edge.postgres.sqlstates import FEATURE_NOT_SUPPORTED, SYNTAX_ERROR, SqlError
from lakestore_server.queries.postgres.rows import CopyOptions

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*)
    |(?P<comment>/\*)
    |(?P<escaped>[eE]'(?:[^'\\]|\\.|'')*')
    |(?P<string>'[^']*(?:''[^']*)*')
    |(?P<dollar>\$(?:[A-Za-z_\x80-\U0010ffff][\w]*)?\$)
    |(?P<quoted>"[^"]*(?:""[^"]*)*")
    |(?P<parameter>\$\d+)
    |(?P<word>[A-Za-z_\x80-\U0010ffff][\w$]*)
    |(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_ENDS = re.compile(r"/\*|\*/")
_FIRST_WORD = re.compile(r"[\s(]*([A-Za-z]+)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class Token(NamedTuple):
    """A word, literal or sign of a text."""

    kind: str
    text: str
    begin: int
    end: int

    @property
    def folded(self) -> str:
        """A word in small letters; empty for everything else."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def value(self) -> str:
        """The text that a literal or name stands for."""
        if self.kind == "string":
            return self.text[1:-1].replace("''", "'")
        if self.kind == "escaped":
            plain = self.text[2:-1].replace("''", "'")
            return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), plain, flags=re.DOTALL)
        if self.kind == "quoted":
            return self.text[1:-1].replace('""', '"')
        if self.kind == "dollar":
            mark = self.text.index("$", 1) + 1
            return self.text[mark:-mark]
        return self.folded or self.text


def tokens_of(text: str, begin: int = 0) -> Iterator[Token]:
    """The tokens of a text, without spaces and comments. Raises `SqlError` for a quote or comment without an end."""
    place = begin
    while place < len(text):
        match = _TOKEN.match(text, place)
        kind = str(match.lastgroup) if match else "other"
        end = match.end() if match else place + 1
        if kind == "comment":
            end = _comment_end(text, place)
        elif kind == "dollar":
            mark = text[place:end]
            close = text.find(mark, end)
            if close < 0:
                raise _unended("dollar quote", place)
            end = close + len(mark)
        elif kind == "other" and text[place] in "'\"":
            raise _unended("quoted text", place)
        if kind not in ("space", "comment"):
            yield Token(kind, text[place:end], place, end)
        place = end


def _comment_end(text: str, begin: int) -> int:
    depth, place = 1, begin + 2
    while depth:
        match = _COMMENT_ENDS.search(text, place)
        if match is None:
            raise _unended("comment", begin)
        depth += 1 if match[0] == "/*" else -1
        place = match.end()
    return place


def _unended(what: str, place: int) -> SqlError:
    return SqlError(SYNTAX_ERROR, f"a {what} has no end", position=place + 1)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: here one that reads, which the query service answers."""

    text: str
    begin: int = 0
    """The place of `text` in the client's text."""
    tag: str = "SELECT"


@dataclass(frozen=True, slots=True)
class EmptyStatement(Statement):
    """No statement at all."""


@dataclass(frozen=True, slots=True)
class WriteStatement(Statement):
    """A statement that writes; it is refused."""

    verb: str = ""


@dataclass(frozen=True, slots=True)
class SetStatement(Statement):
    """SET and RESET: a value of None is the default."""

    name: str = ""
    values: tuple[str, ...] | None = None
    is_local: bool = False


@dataclass(frozen=True, slots=True)
class ShowStatement(Statement):
    """SHOW; `all` shows every variable."""

    name: str = ""


class TransactionVerb(Enum):
    """Effects of a statement on the transaction."""

    BEGIN = "BEGIN"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    SAVEPOINT = "SAVEPOINT"
    RELEASE = "RELEASE"
    ROLLBACK_TO = "ROLLBACK TO"


@dataclass(frozen=True, slots=True)
class TransactionStatement(Statement):
    """BEGIN, COMMIT, ROLLBACK, and savepoints by their name."""

    verb: TransactionVerb = TransactionVerb.BEGIN
    name: str = ""
    has_chain: bool = False


@dataclass(frozen=True, slots=True)
class DeclareStatement(Statement):
    """DECLARE of a cursor."""

    name: str = ""
    query: Statement = field(default_factory=lambda: Statement(""))
    is_binary: bool = False
    has_hold: bool = False


@dataclass(frozen=True, slots=True)
class FetchStatement(Statement):
    """FETCH or MOVE; None rows are all that are left."""

    name: str = ""
    rows: int | None = 1
    is_move: bool = False


@dataclass(frozen=True, slots=True)
class CloseStatement(Statement):
    """CLOSE of a cursor; an empty name closes all."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class PrepareStatement(Statement):
    """PREPARE."""

    name: str = ""
    query: Statement = field(default_factory=lambda: Statement(""))


@dataclass(frozen=True, slots=True)
class ExecuteStatement(Statement):
    """EXECUTE; None is NULL."""

    name: str = ""
    values: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class DeallocateStatement(Statement):
    """DEALLOCATE of a prepared statement; an empty name forgets all."""

    name: str = ""


@dataclass(frozen=True, slots=True)
class DiscardStatement(Statement):
    """DISCARD."""

    what: str = ""


@dataclass(frozen=True, slots=True)
class SilentStatement(Statement):
    """A statement that is accepted and does nothing: LISTEN, UNLISTEN."""


@dataclass(frozen=True, slots=True)
class CopyStatement(Statement):
    """COPY … TO STDOUT."""

    query: Statement = field(default_factory=lambda: Statement(""))
    format: str = "text"
    options: CopyOptions = field(default_factory=CopyOptions)


WRITES = frozenset(
    "alter analyze call checkpoint cluster comment create delete do drop grant import insert load lock merge notify"
    " reassign refresh reindex revoke security truncate update vacuum".split()
)
"""First words of statements that write, or that only have a meaning where something is written."""
_CACHED_CHARS_MAX = 4_096


def statements_of(text: str) -> tuple[Statement, ...]:
    """The statements of a client's text, without empty ones. Raises `SqlError`."""
    return _cached(text) if len(text) <= _CACHED_CHARS_MAX else _statements(text)


@lru_cache(maxsize=512)
def _cached(text: str) -> tuple[Statement, ...]:
    return _statements(text)


def _statements(text: str) -> tuple[Statement, ...]:
    bare = text.rstrip()
    semicolon = bare.find(";")
    if semicolon in (-1, len(bare) - 1):
        bare = bare.removesuffix(";")
        statement = _statement(bare, 0, len(bare))
        return () if isinstance(statement, EmptyStatement) else (statement,)
    statements = []
    begin = 0
    ends = [token.begin for token in tokens_of(text) if token.text == ";"]
    for end in (*ends, len(text)):
        statement = _statement(text, begin, end)
        if not isinstance(statement, EmptyStatement):
            statements.append(statement)
        begin = end + 1
    return tuple(statements)


def _statement(text: str, begin: int, end: int) -> Statement:
    match = _FIRST_WORD.match(text, begin, end)
    part = text[begin:end]
    if match is None:  # nothing, or a comment
        first = next((token for token in tokens_of(text[:end], begin) if token.text != "("), None)
        if first is None:
            return EmptyStatement(part, begin)
        word = first.folded
    else:
        word = match[1].lower()
    if word in WRITES:
        return WriteStatement(part, begin, verb=word.upper())
    if word == "explain":
        return Statement(part, begin, "EXPLAIN")
    parser = _PARSERS.get(word)
    return parser(_Words(text, begin, end)) if parser else Statement(part, begin)


class _Words:
    """The tokens of one statement, read in order."""

    def __init__(self, text: str, begin: int, end: int) -> None:
        self.all_text, self.begin, self.end = text, begin, end
        self._tokens = list(tokens_of(text[:end], begin))
        self._place = 1
        self.first = self._tokens[0].folded
        self.part = text[begin:end]

    @property
    def next(self) -> Token | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    @property
    def word(self) -> str:
        """The next token as a word in small letters, or as its sign."""
        token = self.next
        return "" if token is None else token.folded or (token.text if token.kind == "other" else "")

    def takes(self, *words: str) -> bool:
        """Whether these words come next; they are read then."""
        place = self._place
        for word in words:
            if self.word != word:
                self._place = place
                return False
            self._place += 1
        return True

    def expects(self, *words: str) -> None:
        if not self.takes(*words):
            raise self.unexpected()

    def token(self) -> Token:
        token = self.next
        if token is None:
            raise self.unexpected()
        self._place += 1
        return token

    def name(self) -> str:
        """A name; names without quotes are in small letters."""
        token = self.token()
        if token.kind not in ("word", "quoted"):
            self._place -= 1
            raise self.unexpected()
        return token.value

    def text_until(self, end: int | None = None) -> tuple[str, int]:
        """(text, its place) from the next token on."""
        token = self.next
        begin = self.end if token is None else token.begin
        return self.all_text[begin : self.end if end is None else end], begin

    def rest(self) -> Statement:
        """The statement that follows within this one."""
        text, begin = self.text_until()
        if not text:
            raise self.unexpected()
        return _statement(self.all_text, begin, self.end)

    def left(self) -> Sequence[Token]:
        tokens = self._tokens[self._place :]
        self._place = len(self._tokens)
        return tokens

    def unexpected(self) -> SqlError:
        token = self.next
        if token is None:
            return SqlError(SYNTAX_ERROR, "syntax error at end of input", position=self.end + 1)
        return SqlError(SYNTAX_ERROR, f'syntax error at or near "{token.text}"', position=token.begin + 1)

    def ends(self) -> None:
        if self.next is not None:
            raise self.unexpected()


def _reading(words: _Words, statement: Statement | None = None) -> Statement:
    """A statement that must read, within another one."""
    found = words.rest() if statement is None else statement
    if type(found) is not Statement or found.tag != "SELECT":
        raise SqlError(SYNTAX_ERROR, "only a query can stand here", position=found.begin + 1)
    return found


def _with(words: _Words) -> Statement:
    depth = 0
    for token in words.left():
        depth += {"(": 1, ")": -1}.get(token.text, 0) if token.kind == "other" else 0
        if depth <= 1 and token.folded in ("insert", "update", "delete", "merge"):
            following = words.all_text[token.end :].lstrip().lower()
            if following.startswith(("into ", "from ", "only ")) or token.folded == "update":
                return WriteStatement(words.part, words.begin, verb=token.folded.upper())
    return Statement(words.part, words.begin)


def _set(words: _Words) -> Statement:
    is_local = words.takes("local")
    is_session = not is_local and words.takes("session")
    if words.takes("characteristics", "as", "transaction") or (not is_session and words.takes("transaction")):
        return _transaction_modes(words)
    if words.takes("role") or (is_session and words.takes("authorization")):
        wanted = words.token().value
        if wanted not in ("none", "default"):
            raise SqlError(
                FEATURE_NOT_SUPPORTED, "a session has the rights of its own principal: connect as another one"
            )
        return SilentStatement(words.part, words.begin, "SET")
    if words.takes("constraints"):
        return SilentStatement(words.part, words.begin, "SET CONSTRAINTS")
    if words.takes("time", "zone"):
        return SetStatement(words.part, words.begin, "SET", "timezone", _zone(words), is_local)
    if words.takes("names"):
        values = _values(words) if words.next else None
        return SetStatement(words.part, words.begin, "SET", "client_encoding", values, is_local)
    if words.takes("schema"):
        return SetStatement(words.part, words.begin, "SET", "search_path", _values(words), is_local)
    name = _variable(words)
    if not (words.takes("to") or words.takes("=")):
        raise words.unexpected()
    return SetStatement(words.part, words.begin, "SET", name, _values(words), is_local)


def _variable(words: _Words) -> str:
    name = words.name()
    while words.takes("."):
        name += "." + words.name()
    return name.lower()


def _values(words: _Words) -> tuple[str, ...] | None:
    """The values of SET, and None for DEFAULT."""
    if words.word == "default":
        words.token()
        words.ends()
        return None
    values: list[str] = []
    while True:
        sign = "-" if words.takes("-") else ""
        token = words.token()
        if token.kind == "other" or token.kind == "parameter":
            raise SqlError(SYNTAX_ERROR, f'syntax error at or near "{token.text}"', position=token.begin + 1)
        values.append(sign + token.value)
        if not words.takes(","):
            words.ends()
            return tuple(values)


def _zone(words: _Words) -> tuple[str, ...] | None:
    if words.takes("local"):
        return None
    if words.takes("interval"):
        value = words.token().value
        words.left()
        return (value,)
    return _values(words)


def _transaction_modes(words: _Words) -> Statement:
    """The modes of a transaction: every one is allowed, because a transaction reads one cut whatever they are."""
    _modes(words)
    return SilentStatement(words.part, words.begin, "SET")


def _modes(words: _Words) -> None:
    while words.next is not None:
        if words.takes("isolation", "level"):
            if not (
                words.takes("read", "committed")
                or words.takes("read", "uncommitted")
                or words.takes("repeatable", "read")
                or words.takes("serializable")
            ):
                raise words.unexpected()
        elif not (
            words.takes("read", "only")
            or words.takes("read", "write")
            or words.takes("not", "deferrable")
            or words.takes("deferrable")
            or words.takes(",")
        ):
            raise words.unexpected()


def _reset(words: _Words) -> Statement:
    if words.takes("session", "authorization") or words.takes("role"):
        return SilentStatement(words.part, words.begin, "RESET")
    name = "timezone" if words.takes("time", "zone") else _variable(words)
    words.ends()
    return SetStatement(words.part, words.begin, "RESET", name, None)


def _show(words: _Words) -> Statement:
    if words.takes("time", "zone"):
        name = "timezone"
    elif words.takes("transaction", "isolation", "level"):
        name = "transaction_isolation"
    else:
        name = _variable(words)
    words.ends()
    return ShowStatement(words.part, words.begin, "SHOW", name)


def _begin(words: _Words) -> Statement:
    if words.first == "start" and not words.takes("transaction"):
        raise words.unexpected()
    if words.first == "begin" and not words.takes("transaction"):
        words.takes("work")
    _modes(words)
    tag = "START TRANSACTION" if words.first == "start" else "BEGIN"
    return TransactionStatement(words.part, words.begin, tag, TransactionVerb.BEGIN)


def _end(words: _Words) -> Statement:
    verb = TransactionVerb.COMMIT if words.first in ("commit", "end") else TransactionVerb.ROLLBACK
    if words.takes("prepared"):
        raise SqlError(FEATURE_NOT_SUPPORTED, "this port only reads: there are no prepared transactions")
    if not words.takes("work"):
        words.takes("transaction")
    if verb is TransactionVerb.ROLLBACK and words.takes("to"):
        words.takes("savepoint")
        name = words.name()
        words.ends()
        return TransactionStatement(words.part, words.begin, "ROLLBACK", TransactionVerb.ROLLBACK_TO, name)
    has_chain = words.takes("and", "chain")
    if not has_chain:
        words.takes("and", "no", "chain")
    words.ends()
    return TransactionStatement(words.part, words.begin, verb.value, verb, has_chain=has_chain)


def _savepoint(words: _Words) -> Statement:
    is_release = words.first == "release"
    if is_release:
        words.takes("savepoint")
    name = words.name()
    words.ends()
    verb = TransactionVerb.RELEASE if is_release else TransactionVerb.SAVEPOINT
    return TransactionStatement(words.part, words.begin, verb.value, verb, name)


def _declare(words: _Words) -> Statement:
    name = words.name()
    is_binary = has_hold = False
    while not words.takes("cursor"):
        if words.takes("binary"):
            is_binary = True
        elif words.takes("scroll"):
            raise _no_scroll()
        elif not (words.takes("no", "scroll") or words.takes("insensitive") or words.takes("asensitive")):
            raise words.unexpected()
    if words.takes("with", "hold"):
        has_hold = True
    else:
        words.takes("without", "hold")
    words.expects("for")
    query = _reading(words)
    return DeclareStatement(words.part, words.begin, "DECLARE CURSOR", name, query, is_binary, has_hold)


def _no_scroll() -> SqlError:
    return SqlError("55000", "a cursor of this port only moves forward: declare it NO SCROLL")


def _fetch(words: _Words) -> Statement:
    is_move = words.first == "move"
    rows = _fetch_rows(words)
    if not words.takes("from"):
        words.takes("in")
    name = words.name()
    words.ends()
    return FetchStatement(words.part, words.begin, "MOVE" if is_move else "FETCH", name, rows, is_move)


def _fetch_rows(words: _Words) -> int | None:
    if words.word in ("prior", "first", "last", "absolute", "backward") or words.takes("-"):
        raise _no_scroll()
    if words.takes("next"):
        return 1
    is_relative = words.takes("relative")
    is_forward = not is_relative and words.takes("forward")
    if not is_relative and words.takes("all"):
        return None
    token = words.next
    if token is not None and token.kind == "number" and token.text.isdigit():
        words.token()
        if is_relative and token.text != "1":
            raise _no_scroll()
        return int(token.text)
    if is_relative:
        raise words.unexpected()
    return 1 if not is_forward or token is not None else None


def _close(words: _Words) -> Statement:
    name = "" if words.takes("all") else words.name()
    words.ends()
    return CloseStatement(words.part, words.begin, "CLOSE CURSOR" if name else "CLOSE CURSOR ALL", name)


def _prepare(words: _Words) -> Statement:
    if words.takes("transaction"):
        raise SqlError(FEATURE_NOT_SUPPORTED, "this port only reads: there are no prepared transactions")
    name = words.name()
    types = _type_names(words) if words.takes("(") else []
    words.expects("as")
    query = _reading(words)
    if types:
        query = Statement(_with_types(query.text, types), query.begin)
    return PrepareStatement(words.part, words.begin, "PREPARE", name, query)


def _type_names(words: _Words) -> list[str]:
    """The types between parentheses, as they stand in the text."""
    types: list[str] = []
    begin, depth = words.text_until()[1], 0
    while True:
        token = words.token()
        if token.text == "(":
            depth += 1
        elif token.text == ")" and depth:
            depth -= 1
        elif token.text in (",", ")") and not depth:
            types.append(words.all_text[begin : token.begin])
            begin = token.end
            if token.text == ")":
                return types


def _with_types(text: str, types: Sequence[str]) -> str:
    """The text with a cast at each parameter of a known type."""
    parts, place = [], 0
    for token in tokens_of(text):
        number = int(token.text[1:]) if token.kind == "parameter" else 0
        if 0 < number <= len(types):
            parts.append(f"{text[place : token.begin]}CAST({token.text} AS {types[number - 1]})")
            place = token.end
    return "".join([*parts, text[place:]])


def _execute(words: _Words) -> Statement:
    name = words.name()
    values: list[str | None] = []
    if words.takes("(") and not words.takes(")"):
        while True:
            sign = "-" if words.takes("-") else ""
            token = words.token()
            is_literal = token.kind in ("string", "escaped", "dollar", "number")
            if not (is_literal or token.folded in ("true", "false", "null")) or words.word not in (",", ")"):
                raise SqlError(
                    FEATURE_NOT_SUPPORTED,
                    "EXECUTE takes constants only: give the values by the protocol of your driver",
                    position=token.begin + 1,
                )
            values.append(None if token.folded == "null" else sign + token.value)
            if words.takes(")"):
                break
            words.token()
    words.ends()
    return ExecuteStatement(words.part, words.begin, "EXECUTE", name, tuple(values))


def _deallocate(words: _Words) -> Statement:
    words.takes("prepare")
    name = "" if words.takes("all") else words.name()
    words.ends()
    return DeallocateStatement(words.part, words.begin, "DEALLOCATE" if name else "DEALLOCATE ALL", name)


def _discard(words: _Words) -> Statement:
    what = words.name()
    words.ends()
    if what not in ("all", "plans", "sequences", "temp", "temporary"):
        raise SqlError(SYNTAX_ERROR, f'syntax error at or near "{what}"')
    return DiscardStatement(words.part, words.begin, f"DISCARD {what.upper()}", what)


def _listen(words: _Words) -> Statement:
    return SilentStatement(words.part, words.begin, words.first.upper())


def _copy(words: _Words) -> Statement:
    is_binary = words.takes("binary")
    query = _copied_query(words)
    if words.takes("from"):
        return WriteStatement(words.part, words.begin, verb="COPY FROM")
    words.expects("to")
    if not words.takes("stdout"):
        raise SqlError("42501", "COPY writes to STDOUT only: this port has no files and no programs")
    options = {"format": "binary"} if is_binary else {}
    options |= _copy_options(words)
    form = options.pop("format", "text").lower()
    if form not in ("text", "csv", "binary"):
        raise SqlError("22023", f'COPY format "{form}" not recognized')
    return CopyStatement(words.part, words.begin, "COPY", query, form, _copy_form(form, options))


_MARKS, _OF_CSV = ("quote", "escape"), ("quote", "escape", "force_quote")
_COPY_FIELDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "header": lambda value: {"has_header": value.lower() in ("true", "on", "1")},
    "delimiter": lambda value: {"delimiter": value},
    "null": lambda value: {"null": value},
    _MARKS[0]: lambda value: {"quote_mark": value, "escape": value},
    "escape": lambda value: {"escape": value},
    "force_quote": lambda value: {"quoted": tuple(value.split("\n"))},
}


def _copy_form(form: str, options: dict[str, str]) -> CopyOptions:
    """The options of COPY in text or CSV."""
    made = CopyOptions.csv() if form == "csv" else CopyOptions()
    for name, value in sorted(options.items(), reverse=True):  # quote before escape
        if name in ("delimiter", *_MARKS) and (len(value) != 1 or ord(value) > 127 or value in "\r\n"):
            raise SqlError("22023", f"COPY {name} must be a single one-byte character")
        if form == "binary" and name != "encoding":
            raise SqlError(SYNTAX_ERROR, f"cannot specify {name.upper()} in BINARY mode")
        if name in _COPY_FIELDS and (form == "csv" or name not in _OF_CSV):
            made = replace(made, **_COPY_FIELDS[name](value))
        elif name != "encoding" or value.upper() not in ("UTF8", "UTF-8"):
            raise SqlError(FEATURE_NOT_SUPPORTED, f"COPY of this port has no option {name.upper()} of this value")
    if made.delimiter in made.null or (form == "csv" and made.delimiter == made.quote_mark):
        raise SqlError("22023", "COPY delimiter must not appear in the NULL specification, and must differ from quote")
    return made


def _copied_query(words: _Words) -> Statement:
    """The query of COPY, or the one that reads its table."""
    if not words.takes("("):
        begin = words.text_until()[1]
        words.name()
        while words.takes("."):
            words.name()
        table_end = words.text_until()[1]
        table, columns = words.all_text[begin:table_end].strip(), "*"
        if words.takes("("):
            begin = words.text_until()[1]
            columns = words.all_text[begin : _closing(words).begin]
        return Statement(f"SELECT {columns} FROM {table}", begin)  # noqa: S608 (the query process checks the text)
    begin = words.text_until()[1]
    query = _statement(words.all_text, begin, _closing(words).begin)
    return _reading(words, query)


def _closing(words: _Words) -> Token:
    """The parenthesis that closes the one before."""
    depth = 1
    while True:
        token = words.token()
        if token.kind == "other":
            depth += {"(": 1, ")": -1}.get(token.text, 0)
        if not depth:
            return token


def _copy_options(words: _Words) -> dict[str, str]:
    """The options of both forms, `WITH (FORMAT csv, HEADER)` and `WITH CSV HEADER`."""
    words.takes("with")
    options: dict[str, str] = {}
    if words.takes("("):
        while True:
            name = words.name()
            options[name] = "true" if words.word in (",", ")") else _copy_value(words)
            if words.takes(")"):
                words.ends()
                return options
            words.expects(",")
    while words.next is not None:
        name = words.name()
        if name in ("csv", "binary"):
            options["format"] = name
        elif name == "header":
            options[name] = "true"
        else:
            words.takes("as")
            options[name] = words.token().value
    return options


def _copy_value(words: _Words) -> str:
    """The value of an option. A list of columns is one name a line."""
    if not words.takes("("):
        return words.token().value
    names = [words.name()]
    while words.takes(","):
        names.append(words.name())
    words.expects(")")
    return "\n".join(names)


_PARSERS = {
    "with": _with,
    "set": _set,
    "reset": _reset,
    "show": _show,
    "begin": _begin,
    "start": _begin,
    "commit": _end,
    "end": _end,
    "rollback": _end,
    "abort": _end,
    "savepoint": _savepoint,
    "release": _savepoint,
    "declare": _declare,
    "fetch": _fetch,
    "move": _fetch,
    "close": _close,
    "prepare": _prepare,
    "execute": _execute,
    "deallocate": _deallocate,
    "discard": _discard,
    "listen": _listen,
    "unlisten": _listen,
    "copy": _copy,
}
