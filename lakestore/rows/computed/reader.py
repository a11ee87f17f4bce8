"""The reader of a condition's values as its parts see it: functions and nodes ask it for the values inside them."""

from __future__ import annotations

from typing import Protocol

from sqlglot import exp

from lakestore.rows.computed.kinds import Value
from lakestore.rows.literals import short


class Reader(Protocol):
    """Reads the values of one condition."""

    def value(self, node: exp.Expr) -> Value:
        """The value of a node, or `Invalid` that names the piece that is not understood."""

    def condition(self, node: exp.Expr) -> Value:
        """The truth of a node."""

    def constant_of(self, node: exp.Expr) -> object:
        """The value of a constant argument."""

    def number(self, node: exp.Expr) -> int:
        """The value of a constant argument that is a whole number."""

    def count(self, nodes: int, values: int = 0) -> None:
        """Count parts of the condition, or refuse it."""


def said(node: exp.Expr) -> str:
    """The node as it may stand in an error."""
    return short(node.sql(dialect="duckdb"))
