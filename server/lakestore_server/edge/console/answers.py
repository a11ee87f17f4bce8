"""Responses of the console's API: JSON, or an error in the form of the whole HTTP port."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from lakestore.errors import Invalid, LakestoreError
from lakestore.wire import errors
from lakestore_server.access.callers import Caller
from lakestore_server.edge import catalog_request
from lakestore_server.edge.catalog_request import CALLER

log = logging.getLogger("lakestore.console")
HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
Verb = Callable[[Request, Caller], Response]


def json(content: Any, headers: dict[str, str] | None = None) -> Response:
    """A JSON response."""
    return Response(orjson.dumps(content), headers=HEADERS | (headers or {}), media_type="application/json")


def problem(error: Exception) -> Response:
    """The response to an error. A defect is logged; the client does not get its traceback."""
    if not isinstance(error, LakestoreError):
        log.error("a call of the console failed", exc_info=error)
        error = errors.defect(error)
    status, headers, body = catalog_request.answer(error)
    return Response(body, status, HEADERS | headers, media_type="application/json")


def caller_of(request: Request) -> Caller:
    """The viewer. The gate has put the caller into the request's scope."""
    caller: Caller = request.scope[CALLER]
    return caller


def endpoint(verb: Verb) -> Callable[[Request], Response]:
    """The endpoint of a verb. It runs in a thread pool."""

    def answer(request: Request) -> Response:
        try:
            return verb(request, caller_of(request))
        except Exception as error:  # the edge: an error becomes a response
            return problem(error)

    return answer


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body. Raises `Invalid` for anything else."""
    try:
        found = orjson.loads(await request.body() or b"{}")
    except orjson.JSONDecodeError as error:
        raise Invalid(f"the request body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Invalid("the request body is not a JSON object")
    return found


def text_in(body: dict[str, Any], name: str) -> str:
    """A text field of the body. Raises `Invalid` if it is missing or of another type."""
    found = body.get(name)
    if not isinstance(found, str):
        raise Invalid(f"field {name!r} of the request is missing or not a text")
    return found


def number_in(request: Request, name: str) -> int:
    """A whole number in the query string, 0 if missing. Raises `Invalid` for anything else."""
    said = request.query_params.get(name, "0")
    if not said.isdecimal() or len(said) > 18:
        raise Invalid(f"{name} is a whole number")
    return int(said)
