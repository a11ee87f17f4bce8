"""Shrinking: the smallest case that still fails, found by trying smaller ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

CaseT = TypeVar("CaseT")


def shrunk(
    case: CaseT, smaller: Callable[[CaseT], Iterable[CaseT]], fails: Callable[[CaseT], bool], go_on: Callable[[], bool]
) -> CaseT:
    """A case none of whose smaller ones fails, or the smallest found until `go_on` says no.

    `smaller` gives cases that are one step smaller, the biggest steps first; `case` itself is known to fail.
    """
    while True:
        for each in smaller(case):
            if not go_on():
                return case
            if fails(each):
                case = each
                break
        else:
            return case
