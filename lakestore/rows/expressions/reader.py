"""The interface of the reader of a condition. Functions and nodes ask it for the values of their arguments."""

from __future__ import annotations

from typing import Protocol

from sqlglot import exp

from lakestore.rows.expressions.kinds import Value
from lakestore.rows.literals import short


class Reader(Protocol):
    """Reads the values of one condition."""

    def value(self, node: exp.Expr) -> Value:
        """The value of a node. Raises `Invalid` that names the piece that is not understood."""

    def condition(self, node: exp.Expr) -> Value:
        """The value of a node that must be a boolean."""

    def constant_of(self, node: exp.Expr) -> object:
        """The value of a constant argument."""

    def number(self, node: exp.Expr) -> int:
        """The value of a constant integer argument."""

    def count(self, nodes: int, values: int = 0) -> None:
        """Add to the size of the condition. Raises `Invalid` if the condition is too large."""


def node_text(node: exp.Expr) -> str:
    """The node as text for an error message."""
    return short(node.sql(dialect="duckdb"))
