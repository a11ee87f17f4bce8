"""The query box of the console: a text from a page, answered by the query service, as JSON for the page."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import anyio.to_thread
import orjson
from starlette.requests import Request
from starlette.responses import Response

from lakestore.errors import Exhausted, Invalid, NotFound
from lakestore.limits import Limits
from lakestore.model.outside_values import shown_name
from lakestore.wire import pipe
from lakestore_server.access.callers import Caller
from lakestore_server.edge.console.answers import body_of, caller_of, json, problem, text_in
from lakestore_server.queries.question import Form, Question
from lakestore_server.queries.service import QueryService, QuerySession, RunningQuery

TEXT_CHARS_MAX = 64 << 10
THREADS_PER_PROCESS = 4
"""Requests that wait for a process or are answered by one, for each process. Further requests wait for a thread."""


class Queries:
    """The endpoint for queries."""

    def __init__(self, service: QueryService, limits: Limits) -> None:
        self._service, self._limits = service, limits
        self._threads = anyio.CapacityLimiter(max(THREADS_PER_PROCESS * limits.query_processes, 1))

    async def answer(self, request: Request) -> Response:
        """The endpoint: rows, or an error."""
        caller = caller_of(request)
        try:
            text = text_in(await body_of(request), "sql")
            if len(text) > TEXT_CHARS_MAX:
                raise Invalid(f"the query has {len(text):,} characters, the console takes {TEXT_CHARS_MAX:,}")
            return json(await self._run(request, self._service.session(caller, "console", soon=False), text))
        except Exception as error:  # the edge: an error becomes a response
            return problem(error)

    def running(self, _: Request, caller: Caller) -> Response:
        """The queries of every door that run: all for an administrator; for others, the principal's own."""
        return json([asdict(each) for each in self._running_of(caller)])

    def cancel(self, request: Request, caller: Caller) -> Response:
        """End a query that `running` shows to the viewer. Raises `NotFound` for any other number."""
        number = request.path_params["number"]
        if number not in (str(each.number) for each in self._running_of(caller)):
            raise NotFound(f"no query {shown_name(number)} of yours runs: it may have ended")
        who = "an administrator" if caller.principal.administers else "its principal"
        self._service.cancel(int(number), f"{who} has cancelled it on the console")
        return json({})

    def _running_of(self, caller: Caller) -> list[RunningQuery]:
        own, sees_all = caller.counted_as, caller.principal.administers
        return [each for each in self._service.running() if sees_all or each.principal == own]

    async def _run(self, request: Request, session: QuerySession, text: str) -> dict[str, Any]:
        """The result. The query is ended if its viewer leaves."""
        question = Question(text, form=Form.TEXTS, rows_max=self._limits.query_rows)
        work = asyncio.ensure_future(anyio.to_thread.run_sync(_answered, session, question, limiter=self._threads))
        gone = asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                session.cancel("its reader is gone")
            return await work
        finally:
            session.close()
            gone.cancel()


def _answered(session: QuerySession, question: Question) -> dict[str, Any]:
    """The result as JSON for the page."""
    rows: list[Any] = []
    with session.run(question) as answer:
        room = pipe.ASKED_BYTES_MAX
        for part in answer.parts():
            room -= len(part.data)
            if room < 0:
                raise Exhausted("the query's answer is too large for a page: ask for fewer rows")
            rows += answer.checked(orjson.loads, part.data)
    return {
        "columns": [{"name": field.name, "type": str(field.type)} for field in answer.schema],
        "rows": rows,
        "more": answer.figures.has_more,
        "token": answer.token,
        "seconds": answer.figures.seconds,
        "explain": answer.explain,
    }


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
