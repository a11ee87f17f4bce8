"""An error that says what to call names what there is: every `name.method(` in the product's messages is looked up."""

from __future__ import annotations

import ast
import datetime
import multiprocessing
import re
from collections.abc import Iterator
from typing import Any

import polars
import pytest

import lakestore as ls
from lakestore import aio
from lakestore.client.snapshot import Snapshot
from lakestore.client.writer import Writer
from tests.support import house, syntax

OWNERS: dict[str, Any] = {
    "aio": aio,
    "commit": ls.Commit,
    "datetime": datetime.datetime,
    "lake": ls.Lake,
    "ls": ls,
    "multiprocessing": multiprocessing,
    "pl": polars,
    "snapshot": Snapshot,
    "table": ls.Table,
    "value": datetime.datetime,
    "key": str,
    "properties": dict,
    "writer": Writer,
}
"""Names in messages to what they stand for."""
CHAINED = (ls.Lake, ls.Table, Snapshot, ls.Scan, ls.ChangeBatch)
OTHERS = {"show", "load_table", "collect", "rewrite_data_files", "format", "load", "option", "mode", "save"}
"""Methods of other engines, behind a call or a name of theirs."""
CALL = re.compile(r"(?:\b([A-Za-z_]\w*)|[\])\"'])?\.([a-z_]+)\(")


def _texts() -> Iterator[tuple[str, str]]:
    """(place, text) of every text of the product that is no docstring."""
    for module, path in house.modules().items():
        nodes = syntax.nodes(path.read_text())
        docs = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                yield f"{module}:{node.lineno}", node.value


def _unknown(text: str) -> Iterator[str]:
    """Calls in a text of what there is not."""
    for owner, method in CALL.findall(text):
        if owner in OWNERS:
            known = hasattr(OWNERS[owner], method)
        else:
            known = method in OTHERS or any(hasattr(each, method) for each in CHAINED)
        if not known:
            yield f"{owner}.{method}("


@pytest.fixture(scope="module", autouse=True)
def trees_are_forgotten() -> Iterator[None]:
    """They are needed here alone."""
    yield
    syntax.forget()


def test_messages_name_methods_that_there_are() -> None:
    found = {place: wrong for place, text in _texts() if (wrong := list(_unknown(text)))}
    assert not found


def test_a_method_that_is_not_there_is_found() -> None:
    assert list(_unknown("use lake.commit() or table.rewrite() and lake.at(t).querry(x)")) == [
        "table.rewrite(",
        ".querry(",
    ]
