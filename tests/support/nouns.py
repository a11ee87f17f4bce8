"""The rule that names are nouns: no module, class or public function is named by a pronoun or a participle.

The last word of a name is the thing that it names. `names_without_noun` is one of the rules of `tests/test_tidy.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from lakestore import errors

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
"""The words of a name in snake or camel case."""
_PRONOUNS = (
    "anybody anything both each either everybody everything here itself mine neither nobody nothing now one ones other"
    " others ours same self somebody something such that them there these this those what which who whom whose"
)
_PARTICIPLES = (
    "begun broken brought built caught chosen done drawn driven fallen forgotten found frozen given gone gotten grown"
    " heard held hidden kept known laid left lent lost made meant met paid risen said seen sent shown slept spent"
    " spoken stood stolen struck taken taught thought thrown told torn understood withdrawn won written"
)
NO_NOUNS = frozenset(f"{_PRONOUNS} {_PARTICIPLES}".split())
"""Pronouns, and participles that do not end in -ed."""
NOUNS_IN_ED = frozenset(("feed", "need", "seed", "speed"))
QUESTIONS = frozenset(("is", "are", "has", "check"))
"""First words of functions that answer yes or no, or raise."""
FIXED = frozenset(
    (
        "lakestore/embedded.py",  # users import it
        "Truncated",  # users get it from `truncate`
    )
)
"""Names that stay because users have them."""


class Source(Protocol):
    """A parsed file of the checkout."""

    @property
    def path(self) -> str:
        """Its path in the checkout."""

    @property
    def product(self) -> bool:
        """True if the file is part of the package."""

    @property
    def tree(self) -> ast.Module:
        """Its syntax tree."""

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the tree."""


def names_without_noun(source: Source) -> Iterator[str]:
    """Complaints about the names of a file of the product.

    Three kinds of names may stand: errors, which say what happened, as in `NotFound`; questions such as `is_shared`;
    functions of one word in -ed that say what comes back, as Python's `sorted` does.
    """
    if not source.product:
        return
    path = Path(source.path)
    module = path.parent.name if path.name == "__init__.py" else path.stem
    if _lacks_noun(module) and source.path not in FIXED:
        yield f"1: the module {module} is named by no noun"
    for node in source.nodes:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not _is_error(node):
            if _lacks_noun(node.name) and node.name not in FIXED:
                yield f"{node.lineno}: the class {node.name} is named by no noun"
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            words = _WORDS.findall(node.name)
            names_result = len(words) == 1 and words[0].endswith("ed")
            if _lacks_noun(node.name) and not names_result and words[0] not in QUESTIONS:
                yield f"{node.lineno}: the function {node.name} is named by no noun"


def _lacks_noun(name: str) -> bool:
    word = _WORDS.findall(name)[-1].lower() if _WORDS.search(name) else ""
    return word in NO_NOUNS or (word.endswith("ed") and word not in NOUNS_IN_ED)


def _is_error(node: ast.ClassDef) -> bool:
    bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
    return any(base.endswith(("Error", "Exception")) or hasattr(errors, base) for base in bases)
