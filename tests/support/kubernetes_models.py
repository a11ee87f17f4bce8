"""The types of Kubernetes' documents, read from the sources of the package `lightkube-models`.

They are not imported, for they ask for a client of Kubernetes that nobody needs here.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from tests.support import syntax

_PLAIN: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "bool": bool, "float": (int, float), "dict": dict}


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of a type: name to its annotation, and those that must be there."""

    types: dict[str, str]
    required: frozenset[str]


@cache
def _types(module: str) -> dict[str, Fields]:
    """The types of a module such as `apps_v1`."""
    place = Path(str(distribution("lightkube-models").locate_file("lightkube/models"))) / f"{module}.py"
    found = {}
    for each in syntax.nodes(place.read_text(encoding="utf-8")):
        if isinstance(each, ast.ClassDef):
            told = [line for line in each.body if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)]
            names = {ast.unparse(line.target): str(ast.literal_eval(line.annotation)) for line in told}
            required = frozenset(ast.unparse(line.target) for line in told if line.value is None)
            found[each.name] = Fields(names, required)
    return found


def check(data: Any, kind: str, module: str, place: str) -> None:
    """Hold data against a type: no field is unknown, none that must be there lacks, plain values are of their type."""
    outer = re.fullmatch(r"(Optional|List|Dict)\[(.*)\]", kind)
    if outer and outer[1] == "Optional":
        check(data, outer[2], module, place)
    elif outer:
        assert isinstance(data, list if outer[1] == "List" else dict), place
        inner = outer[2] if outer[1] == "List" else outer[2].partition(", ")[2]
        for key, each in enumerate(data) if isinstance(data, list) else data.items():
            check(each, inner, module, f"{place}.{key}")
    elif kind in _PLAIN:
        assert isinstance(data, _PLAIN[kind]), f"{place} is {data!r}"
        assert isinstance(data, bool) == (kind == "bool"), f"{place} is {data!r}"
    else:
        away, _, name = kind.rpartition(".")
        _check_fields(data, name, away or module, place)


def _check_fields(data: Any, name: str, module: str, place: str) -> None:
    fields = _types(module).get(name)
    if fields is None:  # a name for plain values, such as a quantity
        assert not isinstance(data, dict | list), place
        return
    assert isinstance(data, dict), place
    assert set(data) <= set(fields.types), f"{place} has no {sorted(set(data) - set(fields.types))}"
    assert fields.required <= set(data), f"{place} lacks {sorted(fields.required - set(data))}"
    for each, value in data.items():
        check(value, fields.types[each], module, f"{place}.{each}")
