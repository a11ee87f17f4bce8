"""Statuses of errors: a defect alone is a 500, for clients take that for one and ask again."""

from __future__ import annotations

import inspect

import pytest

from lakestore import errors
from lakestore_server.edge.catalog_request import status_of

DEFECTS = {"LakestoreError", "Internal", "Corrupt", "NewerFormat"}
CLASSES = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.LakestoreError)
]  # fmt: skip
EXPECTED = {
    errors.OtherTimeline: 400,
    errors.PositionExpired: 400,
    errors.NothingToKeep: 400,
    errors.ProducerForgotten: 403,
    errors.PlanExpired: 503,
    errors.LimitReached: 400,
    errors.NotFresh: 503,
    errors.Stopped: 503,
}


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_that_is_no_defect_has_a_status_of_its_own(kind: type[errors.LakestoreError]) -> None:
    error = kind.__new__(kind)
    errors.LakestoreError.__init__(error, "no")
    status, _ = status_of(error)
    assert (status == 500) == (kind.__name__ in DEFECTS)
    assert status == EXPECTED.get(kind, status)
