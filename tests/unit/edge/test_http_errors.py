"""Statuses of errors: a defect alone is a 500, for clients take that for one and ask again."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from starlette.requests import Request
from starlette.responses import Response

from lakestore import errors
from lakestore_server.edge.catalog_request import CatalogRequest, Endpoints, Sources, answer, empty_answer, status_of

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
    errors.NotLeader: 503,
    errors.Stopped: 503,
}


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_that_is_no_defect_has_a_status_of_its_own(kind: type[errors.LakestoreError]) -> None:
    error = kind.__new__(kind)
    errors.LakestoreError.__init__(error, "no")
    status, _ = status_of(error)
    assert (status == 500) == (kind.__name__ in DEFECTS)
    assert status == EXPECTED.get(kind, status)


def test_a_503_says_when_to_try_again() -> None:
    soon, later = errors.NotLeader.of("b:7340"), errors.Exhausted("no", retry_after=1.2)
    assert answer(soon)[:2] == (503, {"retry-after": "1"})
    assert answer(later)[:2] == (503, {"retry-after": "2"})
    assert answer(errors.Invalid("no"))[:2] == (400, {})


def test_a_request_past_the_gate_has_no_rights() -> None:
    """Without a caller in the scope no verb runs, whatever the route is."""
    ran: list[CatalogRequest] = []

    def verb(request: CatalogRequest) -> Response:
        ran.append(request)
        return empty_answer()

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [], "path_params": {}}
    endpoints = Endpoints(Sources(None), 1 << 20)  # type: ignore[arg-type]

    async def answered() -> Response:
        return await endpoints.endpoint_for(verb)(Request(scope, receive))

    answer = asyncio.run(answered())
    assert (answer.status_code, ran) == (401, [])
