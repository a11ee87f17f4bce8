"""Names that the rule of nouns refuses, and names that it lets stand."""

from __future__ import annotations

import pytest

from tests.support.nouns import names_without_noun
from tests.test_tidy import Source


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("server/kept.py", ""),
        ("server/piped/__init__.py", ""),
        ("server/x.py", "class RowWanted:\n    pass\n"),
        ("server/x.py", "class Merged(Protocol):\n    pass\n"),
        ("server/x.py", "def everything() -> None: ...\n"),
        ("server/x.py", "def last_of_each() -> None: ...\n"),
        ("server/x.py", "async def write_encoded() -> None: ...\n"),
    ],
)
def test_other_planted_names_without_noun_are_found(path: str, text: str) -> None:
    assert list(names_without_noun(Source(path, text)))


@pytest.mark.parametrize(
    "text",
    [
        "class RowMissing(lakestore.errors.Invalid): ...\nclass ChildGone(Exception): ...\nclass Feed: ...\n",
        "def encoded() -> bytes: ...\ndef is_shared() -> bool: ...\ndef _kept() -> None: ...\n",
        "class _Held: ...\nclass HeldCut:\n    def known(self) -> bool: ...\n",
    ],
)
def test_names_of_nouns_errors_and_questions_may_stand(text: str) -> None:
    assert not list(names_without_noun(Source("server/x.py", text)))
