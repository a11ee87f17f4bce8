"""Constant queries: `SELECT 1`, by which pools of connections ask whether a server is there.

Their answer needs no query process, so a pool does not wait for one to start, and holds none.
The answer is that of the query process: an int4 with the name `?column?`, in Postgres's dialect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pyarrow as pa

from lakestore_server.queries.answer import Answer
from lakestore_server.queries.postgres.rows import SingleRow
from lakestore_server.queries.question import Description, Dialect, Figures, Form, Part, Question

_TEXT = re.compile(r"\s*SELECT\s+([0-9]{1,9})\s*", re.IGNORECASE | re.ASCII)
_SCHEMA = pa.schema([pa.field("?column?", pa.int32())])
_Value = TypeVar("_Value")


def constant_of(question: Question) -> int | None:
    """The number that a text selects; None for every other text, and where the answer depends on more."""
    if question.dialect is not Dialect.POSTGRES or question.parameters or question.at or question.require:
        return None
    match = _TEXT.fullmatch(question.text)
    return None if match is None else int(match[1])


def described(question: Question) -> Description | None:
    """The columns of a constant query; None for every other text."""
    return None if constant_of(question) is None else Description((), _SCHEMA)


class ConstantAnswer(Answer):
    """The row of a constant query."""

    is_whole = True

    def __init__(self, number: int, binary: tuple[bool, ...]) -> None:
        super().__init__(_SCHEMA, "")
        self.part = Part(1, memoryview(SingleRow(_SCHEMA, binary).message([pa.scalar(number, pa.int32())])))
        self.figures = Figures(rows=1)

    @staticmethod
    def of(question: Question) -> ConstantAnswer | None:
        """The answer to a constant query; None for every other question."""
        is_usual = question.form is Form.ROWS and question.rows_max is None and len(question.binary) <= 1
        number = constant_of(question) if is_usual else None
        return None if number is None else ConstantAnswer(number, question.binary)

    def parts(self) -> Iterator[Part]:
        yield self.part

    def checked(self, read: Callable[[Any], _Value], data: object) -> _Value:
        return read(data)

    def recheck(self) -> None:
        """Nothing was read."""

    def close(self) -> None:
        """No-op: the answer holds nothing."""
