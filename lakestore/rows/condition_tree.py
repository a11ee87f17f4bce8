"""The tree of a condition's text, read in bounded work: the parser tries nested names of types again at each level."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlglot import Dialect, TokenType, exp
from sqlglot.errors import SqlglotError
from sqlglot.parsers.duckdb import DuckDBParser

from lakestore.errors import Invalid
from lakestore.rows.literals import short

NODES_MAX = 1_000
"""Comparisons, negations and connections of a condition; the values of IN are counted apart."""
VALUES_MAX = 10_000
"""Values in all lists of IN together."""
_TOKENS_MAX = 8 * NODES_MAX + 2 * VALUES_MAX
_STEPS_PER_TOKEN, _STEPS_MORE = 16, 10_000
"""Steps of the parser from token to token: one or two each, unless it goes back often."""
_LEVELS_MAX = 256
"""Levels of the tree, of which a chain of AND or OR is one: more than the reader of conditions goes down."""
_TREES_KEPT = 4
_ARGUMENTS = frozenset({"this", "expression", "expressions"})
"""The arguments that every kind of node may have. The readers of conditions read all of them."""
_MORE_ARGUMENTS: dict[type[exp.Expr], frozenset[str]] = {
    exp.Between: frozenset({"low", "high"}),
    exp.Case: frozenset({"ifs", "default"}),
    exp.Cast: frozenset({"to"}),
    exp.Column: frozenset({"table", "db", "catalog"}),
    exp.Concat: frozenset({"safe", "coalesce"}),
    exp.DPipe: frozenset({"safe"}),
    exp.DataType: frozenset({"nested"}),
    exp.DateTrunc: frozenset({"unit"}),
    exp.Greatest: frozenset({"ignore_nulls"}),
    exp.ILike: frozenset({"negate"}),
    exp.Identifier: frozenset({"quoted"}),
    exp.If: frozenset({"true", "false"}),
    exp.In: frozenset({"query", "unnest"}),
    exp.Interval: frozenset({"unit"}),
    exp.Least: frozenset({"ignore_nulls"}),
    exp.Like: frozenset({"negate"}),
    exp.Literal: frozenset({"is_string"}),
    exp.Replace: frozenset({"replacement"}),
    exp.Round: frozenset({"decimals"}),
    exp.Substring: frozenset({"start", "length"}),
    exp.TimestampTrunc: frozenset({"unit"}),
    exp.Trim: frozenset({"position"}),
    exp.TryCast: frozenset({"to"}),
}
"""More arguments, by kind. `safe`, `coalesce` and `ignore_nulls` are set by the parser for DuckDB's own meaning."""


class _TooManySteps(Exception):
    """The parser went back too often; none of its own errors, which it takes as a sign to try something else."""


class _Parser(DuckDBParser):
    """DuckDB's. It gives up after so many steps, and drops no argument."""

    steps_left = 0

    def _advance(self, times: int = 1) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise _TooManySteps
        super()._advance(times)

    def validate_expression(self, expression: Any, args: list[Any] | None = None) -> Any:
        """Refuse a call of which the parser keeps fewer arguments than were written: a zone of date_trunc, say."""
        kept = sum(len(value) if isinstance(value, list) else bool(value) for value in expression.args.values())
        if args and kept < len(args):
            text = f"{short(expression.sql(dialect='duckdb'))!r} with {len(args)} arguments"
            raise Invalid(f"{text} is not understood in a condition: the last one is refused")
        return super().validate_expression(expression, args)


@lru_cache(maxsize=_TREES_KEPT)
def tree(text: str) -> exp.Expr:
    """The tree of a condition's text, which nobody changes: a stream of many tables reads it for each.

    `Invalid` for a text that is none or too large, `RecursionError` for one that nests too deep.
    """
    dialect = Dialect.get_or_raise("duckdb")
    try:
        tokens = dialect.tokenize(text)
        brackets = sum(token.token_type is TokenType.L_BRACKET for token in tokens)  # each is read with all before it
        if len(tokens) > _TOKENS_MAX or brackets > NODES_MAX:
            raise too_large()
        parser = _Parser(dialect=dialect)
        parser.steps_left = _STEPS_PER_TOKEN * len(tokens) + _STEPS_MORE
        found = parser.parse_into(exp.Condition, tokens, text)
    except SqlglotError as error:
        raise not_whole(text) from error
    except _TooManySteps:
        raise RecursionError from None
    if len(found) != 1 or found[0] is None:
        raise not_whole(text)
    _check_levels(found[0])
    for node in found[0].walk():
        _check_arguments(node)
    return found[0]


def _check_arguments(node: exp.Expr) -> None:
    """Refuse an argument that no reader knows, such as SYMMETRIC of BETWEEN: unread, it would change the answer."""
    known = _ARGUMENTS | _MORE_ARGUMENTS.get(type(node), frozenset())
    strange = sorted(name for name, value in node.args.items() if value and name not in known)
    if isinstance(node.args.get("unit"), exp.IntervalSpan):
        strange.append("unit")
    if strange:
        raise Invalid(
            f"{short(node.sql(dialect='duckdb'))!r} is not understood in a condition: {strange[0]} is refused"
        )


def _check_levels(root: exp.Expr) -> None:
    """Refuse a deep tree at once: each level that is read writes all below it, for errors."""
    level = [root]
    for _ in range(_LEVELS_MAX):
        below: list[exp.Expr] = []
        for node in level:
            is_chain = isinstance(node, exp.And | exp.Or)
            below.extend(node.flatten() if is_chain else node.iter_expressions())
        if not below:
            return
        level = below
    raise RecursionError


def not_whole(text: str) -> Invalid:
    """The error of a text that cannot be read."""
    return Invalid(f"{short(text)!r} is not a whole condition in SQL, such as amount > 10")


def too_large() -> Invalid:
    """The error of a condition that is beyond the bounds of its size."""
    return Invalid(
        f"a condition has at most {NODES_MAX} comparisons and connections and {VALUES_MAX} values of IN: look the rows"
        " up by their keys, or use lake.sql"
    )
