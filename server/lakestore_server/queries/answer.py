"""The answer to a question: its columns, its cut, and parts with rows. A query process or a look-up by key makes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, TypeVar

import pyarrow as pa

from lakestore_server.queries.question import Figures, Part

_Value = TypeVar("_Value")
_NO_FIGURES = Figures()


class MayWait(Exception):
    """The answer is not there at once: ask again in a thread that may wait."""


class Answer(ABC):
    """The rows of a question, once. A context manager."""

    is_whole = False
    """Whether every row is there, so that no call of the answer waits."""

    def __init__(
        self, schema: pa.Schema, token: str, notices: Sequence[str] = (), derived: dict[Any, Any] | None = None
    ) -> None:
        self.schema, self.token, self.notices = schema, token, tuple(notices)
        """`token` is the cut of the read; empty if the text names no table."""
        self.derived: dict[Any, Any] = {} if derived is None else derived
        """Values that a door derives from the schema. Answers to the same text may share them."""
        self.figures = _NO_FIGURES
        """The figures of the whole answer, after the last part."""

    @property
    def explain(self) -> str:
        """A few lines for each table that was read; empty before the last part."""
        return self.figures.explain

    @abstractmethod
    def parts(self) -> Iterator[Part]:
        """The parts in the form that was asked for. May wait."""

    @abstractmethod
    def checked(self, read: Callable[[Any], _Value], data: object) -> _Value:
        """The value that bytes of the answer stand for. A process that sends other bytes is ended."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of an answer of the form ARROW, checked: a process may send bytes that are no batch."""
        for part in self.parts():
            yield self.checked(lambda data: part.batch(self.schema), part)  # noqa: B023

    @abstractmethod
    def recheck(self) -> None:
        """Raises an error if the caller may no longer read the rows. A door may keep rows for its client."""

    @abstractmethod
    def close(self) -> None:
        """End the answer."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
