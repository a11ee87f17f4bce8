"""The sentences of a Python file, and words in them that stand for a noun the reader has to guess.

1. Sentences are docstrings, comments and other strings with a space in them; code in backticks is no sentence.
2. A paragraph of comments is one text, and so is a string of several pieces: a phrase may run over the end of a line.
3. `that one` is a riddle as a pronoun ("that one has"), not before a noun ("that one call fetches").
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from tests.support import syntax

FIRST = re.compile(r"\s*(Of|As|What|How|Those|Whoever|Who)\b")
_VERBS = "is|was|has|had|does|did|can|cannot|could|may|must|will|would|needs|takes|changes|goes|comes|alone|too"
ANYWHERE = re.compile(
    rf"\b(?:those\s+of|of\s+which|anew|that\s+one(?=\s*[.,;:!?)—]|'s\b|\s*$|\s+(?:{_VERBS})\b))\b", re.IGNORECASE
)
_CODE = re.compile(r"`[^`]*`")
_COMMENT_MARK = re.compile(r"\s*#\s?")


def riddles(text: str) -> Iterator[tuple[int, str]]:
    """(line, words) of each riddle in a Python file."""
    for line, sentence in (*_strings(text), *_comments(text)):
        yield from ((line, words) for words in riddles_of(sentence))


def riddles_of(sentence: str) -> list[str]:
    """The riddles in a text of any language, on one line each."""
    return [" ".join(match[0].split()) for match in ANYWHERE.finditer(_CODE.sub("`", sentence))]


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each string that is a statement: docstrings, and the ones below an attribute."""
    for node in syntax.nodes(text):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def _strings(text: str) -> Iterator[tuple[int, str]]:
    for node in syntax.nodes(text):
        if isinstance(node, ast.JoinedStr):
            pieces = (part.value if isinstance(part, ast.Constant) else "`" for part in node.values)
            yield node.lineno, "".join(map(str, pieces))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Comments on lines of their own that follow each other are one text."""
    paragraph: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if paragraph and token.start[0] != last + 1:
            yield first, " ".join(paragraph)
            paragraph = []
        first, last = first if paragraph else token.start[0], token.start[0]
        paragraph.append(_COMMENT_MARK.sub("", token.string, count=1))
    yield first, " ".join(paragraph)
