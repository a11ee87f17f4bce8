"""Syntax trees of Python files: every file is parsed and walked once, however many rules look at it."""

from __future__ import annotations

import ast
from functools import cache


@cache
def tree(text: str) -> ast.Module:
    """The tree of a file with this text."""
    return ast.parse(text)


@cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """All nodes of that tree."""
    return tuple(ast.walk(tree(text)))


def forget() -> None:
    """Let go of all trees: millions of objects, which every later collection of garbage would look at."""
    tree.cache_clear()
    nodes.cache_clear()
