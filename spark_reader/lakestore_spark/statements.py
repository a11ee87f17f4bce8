"""Statements of Spark SQL by their first words: those about a table by its name, and all others, which sqlglot reads.

`EXPLAIN …` and `DESCRIBE QUERY …` are a prefix before another statement. `TABLE t` is `SELECT * FROM t`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from lakestore.errors import Invalid
from lakestore_spark.cut_tables import CutTable
from lakestore_spark.table_names import Query
from lakestore_spark.words import Edit, Word, edited, pairs, words_of

_MODES = ("EXTENDED", "CODEGEN", "COST", "FORMATTED", "LOGICAL")
_QUERY_STARTS = ("SELECT", "WITH", "FROM", "VALUES", "(")
_NAMED = {"DESCRIBE", "DESC", "SHOW", "REFRESH", "UNCACHE", "ANALYZE"}
"""First words of statements that take a table by its name, wherever it stands in them."""
_QUERY_FOLLOWS = {"AS", "UNION", "ALL", "DISTINCT", "EXCEPT", "INTERSECT", "MINUS"}


class Kind(Enum):
    """The statements that are more to us than their text."""

    OTHER = auto()
    DESCRIBE = auto()
    CACHE = auto()
    UNCACHE = auto()
    REFRESH = auto()


class _Body(Protocol):
    """A statement whose names of tables are known."""

    @property
    def names(self) -> list[str]: ...

    def check(self, ours: Collection[str]) -> None: ...

    def replaced(self, cuts: Mapping[str, CutTable]) -> str: ...


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, which may stand behind `EXPLAIN`."""

    kind: Kind
    prefix: str
    """`EXPLAIN FORMATTED `, say; empty without it."""
    body: _Body

    @staticmethod
    def of(text: str) -> Statement:
        """The statement that a text is."""
        words = words_of(text)
        inner = _inner(words)
        if inner:
            found = Statement.of(text[inner:])
            return Statement(Kind.OTHER, text[:inner] + found.prefix, found.body)
        first = words[0].text.upper() if words else ""
        if first in _NAMED:
            return Statement(_kind(words), "", _Named(text, words))
        if first == "CACHE" and _is_bare_cache(words):
            return Statement(Kind.CACHE, "", _Named(text, words))
        text = edited(text, [Edit(word.start, word.end, "SELECT * FROM") for word in _table_queries(words)])
        try:
            return Statement(Kind.OTHER, "", Query(text))
        except Invalid as error:
            return Statement(Kind.OTHER, "", _Unread(text, words_of(text), error))

    @property
    def names(self) -> list[str]:
        """Each `database.table` once, those of other systems among them."""
        return self.body.names

    def check(self, ours: Collection[str]) -> None:
        """Refuse what these tables of ours are not for, writes above all."""
        self.body.check(ours)

    def replaced(self, cuts: Mapping[str, CutTable]) -> str:
        """The text with each of these names replaced by its table at a cut."""
        return self.prefix + self.body.replaced(cuts)


class _Named:
    """A statement that takes tables by their plain names."""

    def __init__(self, text: str, words: list[Word]) -> None:
        self._text, self._pairs = text, list(pairs(words))

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(name for name, _, _ in self._pairs))

    def check(self, ours: Collection[str]) -> None:
        return

    def replaced(self, cuts: Mapping[str, CutTable]) -> str:
        edits = [Edit(start, end, cuts[name].name) for name, start, end in self._pairs if name in cuts]
        return edited(self._text, edits)


class _Unread(_Named):
    """A statement that sqlglot does not read; Spark takes it as it is where no name in it is ours."""

    def __init__(self, text: str, words: list[Word], error: Invalid) -> None:
        super().__init__(text, words)
        self._error = error

    def check(self, ours: Collection[str]) -> None:
        for name in self.names:
            if name in ours:
                raise Invalid(f"{self._error.message}; name table {name} as now.{name} and give it to spark.sql")


def _inner(words: list[Word]) -> int:
    """The character at which the statement behind a prefix begins; 0 without one."""
    said = [word.text.upper() for word in words[:3]] + ["", "", ""]
    if said[0] == "EXPLAIN":
        skipped = 2 if said[1] in _MODES else 1
    elif said[0] in ("DESCRIBE", "DESC") and (said[1] == "QUERY" or said[1] in _QUERY_STARTS):
        skipped = 2 if said[1] == "QUERY" else 1
    else:
        return 0
    return words[skipped].start if len(words) > skipped else 0


def _kind(words: list[Word]) -> Kind:
    first = words[0].text.upper()
    if first in ("DESCRIBE", "DESC", "SHOW"):
        return Kind.DESCRIBE
    return {"UNCACHE": Kind.UNCACHE, "REFRESH": Kind.REFRESH}.get(first, Kind.OTHER)


def _is_bare_cache(words: list[Word]) -> bool:
    """Whether a table is cached by its own name: the name of a query's result has one part."""
    name = 3 if len(words) > 1 and words[1].text.upper() == "LAZY" else 2
    return len(words) > name + 1 and words[name + 1].text == "."


def _table_queries(words: list[Word]) -> Iterator[Word]:
    """The words `TABLE` that begin a query."""
    inserts = bool(words) and words[0].text.upper() == "INSERT"
    for place, word in enumerate(words):
        if word.text.upper() != "TABLE" or word.is_own or not _is_name(words, place + 1):
            continue
        before = words[place - 1].text.upper() if place else ""
        behind_target = inserts and (before == ")" or _is_own(words, place - 1))
        in_parentheses = before == "(" and not _is_own(words, place - 2)
        if not place or before in _QUERY_FOLLOWS or behind_target or in_parentheses:
            yield word


def _is_name(words: list[Word], place: int) -> bool:
    return place < len(words) and words[place].is_name


def _is_own(words: list[Word], place: int) -> bool:
    """Whether a word is there, and is none of SQL's."""
    return place >= 0 and words[place].is_own
