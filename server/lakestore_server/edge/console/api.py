"""The console's JSON: what a viewer may see, in responses so small that a page can ask every second."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import orjson
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lakestore.errors import Invalid, NotFound
from lakestore.model.outside_values import shown_name
from lakestore.release import RELEASE
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.access.admission import Admission
from lakestore_server.access.callers import Caller
from lakestore_server.access.ownership import cut_status, shown_holder
from lakestore_server.access.principals import EVERYTHING
from lakestore_server.edge.console.answers import body_of, json, number_in, problem, text_in
from lakestore_server.operate.board import COLUMNS, HELD_BY, Board, Row
from lakestore_server.operate.clients import Clients
from lakestore_server.operate.history import History
from lakestore_server.queries.rpcs import Rpcs
from lakestore_server.read.leases import Leases
from lakestore_server.state.view import View

LEASES_SHOWN = 200
_DROPPED = ("table", "table_uuid", "dropped_us", "until_us", "rows", "bytes", "going")
_PRODUCER = ("name", "owner", "last_sequence", "progress", "used_us")


class Api:
    """The endpoints for reading. Thread-safe."""

    def __init__(
        self,
        *,
        rpcs: Rpcs,
        admission: Admission,
        board: Board,
        history: History,
        clients: Clients,
        now_us: Callable[[], int],
    ) -> None:
        self._rpcs, self._admission = rpcs, admission
        self._board, self._history, self._clients, self._now_us = board, history, clients, now_us
        self._life = secrets.token_hex(8)
        """Part of each revision: revisions of another run of the server never match."""

    async def session(self, request: Request) -> Response:
        """Exchange a token that the viewer typed for a short-lived one."""
        try:
            access, token = self._admission.access, text_in(await body_of(request), "token")
            if access.is_open:
                raise Invalid("this server has no principals: nobody needs to sign in")
            return json(self._session(await run_in_threadpool(access.caller, token.strip())))
        except Exception as error:  # the edge: an error becomes a response
            return problem(error)

    def renew(self, _: Request, caller: Caller) -> Response:
        """Renew a session that has not expired."""
        return json(self._session(caller))

    @staticmethod
    def _session(caller: Caller) -> dict[str, Any]:
        token, seconds = caller.access.exchanged(caller)
        return {"token": token, "seconds": seconds, "principal": caller.principal.name}

    def me(self, _: Request, caller: Caller) -> Response:
        """The viewer's name and the rights that the page depends on."""
        principal = caller.principal
        return json(
            {
                "principal": "" if caller.access.is_open else principal.name,
                "release": RELEASE,
                "administers": principal.administers,
                "reads_all": principal.may("read", EVERYTHING),
            }
        )

    def status(self, request: Request, caller: Caller) -> Response:
        """The tables that changed since a revision, and the server's figures if they changed; 304 if nothing did."""
        kind = f"{self._life}-{self._admission.access.generation}"
        shown, _, said = request.query_params.get("since", "").rpartition(".")
        since = int(said) if shown == kind and said.isdecimal() and len(said) < 18 else 0
        page = self._board.page(since, caller.principal.sees)
        if page.is_empty and since:
            return Response(status_code=304, headers={"cache-control": "no-store"})
        return json(
            {
                "revision": f"{kind}.{page.revision}",
                "whole": page.is_whole,
                "now_us": self._now_us(),
                "server": cut_status(caller, {**page.server, "tables": []}) if page.server else {},
                "columns": COLUMNS,
                "rows": [_shown(caller, row) for row in page.rows],
                "gone": page.gone,
            }
        )

    def table(self, request: Request, caller: Caller) -> Response:
        """One table with its definition and the figures of each bucket."""
        name = request.path_params["table"]
        status = self._rpcs.call(caller, "Status", pb.StatusRequest(tables=[name])).status
        definition = self._rpcs.call(caller, "GetTable", pb.TableRequest(table=name)).definition
        found = orjson.loads(status)["tables"]
        if not found:
            raise NotFound(f"there is no table {shown_name(name)}")
        return json({"status": found[0], "definition": orjson.loads(definition)})

    def table_history(self, request: Request, caller: Caller) -> Response:
        """The curves of one table from a sample number on."""
        name = request.path_params["table"]
        definition = orjson.loads(self._rpcs.call(caller, "GetTable", pb.TableRequest(table=name)).definition)
        by_minutes = request.query_params.get("by") == "minutes"
        found = self._history.table(definition["uuid"], number_in(request, "since"), by_minutes=by_minutes)
        return json(found.as_dict())

    def history(self, request: Request, _: Caller) -> Response:
        """The curves of the server from a sample number on."""
        by_minutes = request.query_params.get("by") == "minutes"
        return json(self._history.server(number_in(request, "since"), by_minutes=by_minutes).as_dict())

    def clients(self, _: Request, caller: Caller) -> Response:
        """All connections for an administrator; for others, the principal's own."""
        own, sees_all = caller.counted_as, caller.principal.administers
        return json([asdict(each) for each in self._clients.now() if sees_all or each.principal == own])

    def streams(self, _: Request, caller: Caller) -> Response:
        """The subscriptions, producers and first registers that the viewer may see."""
        subscriptions = self._rpcs.call(caller, "ListSubscriptions", pb.ListSubscriptionsRequest()).subscriptions
        producers = self._rpcs.call(caller, "ListProducers", pb.ListProducersRequest()).producers
        registers = self._rpcs.call(caller, "ListRegisters", pb.ListRegistersRequest())
        return json(
            {
                "subscriptions": [_subscription(each) for each in subscriptions],
                "producers": [
                    _fields(each, "name", "owner", "last_sequence", "progress", "used_us") for each in producers
                ],
                "registers": [_fields(each, "name", "owner", "value", "moved") for each in registers.registers],
                "more_registers": registers.goes_on,
            }
        )


class Holds:
    """The endpoint for leases, which keep rows and snapshots from being removed, and for dropped tables."""

    def __init__(self, rpcs: Rpcs, leases: Leases, view: Callable[[], View]) -> None:
        """`view` returns the newest view."""
        self._rpcs, self._leases, self._view = rpcs, leases, view

    def holds(self, _: Request, caller: Caller) -> Response:
        """The oldest leases and the dropped tables that the viewer may see."""
        own, sees_all = caller.counted_as, caller.principal.administers
        held = [each for each in self._leases.holders(LEASES_SHOWN) if sees_all or each.owner == own]
        view = self._view()
        names = [_names(view, caller, each.tables) for each in held]
        dropped = self._rpcs.call(caller, "ListDroppedTables", pb.ListDroppedTablesRequest()).tables
        return json(
            {
                "dropped": [_fields(each, *_DROPPED) for each in dropped],
                "count": self._leases.count if sees_all else len(held),
                "leases": [{**asdict(each), "tables": found} for each, found in zip(held, names, strict=True)],
            }
        )


def _names(view: View, caller: Caller, uuids: Sequence[str]) -> list[str]:
    names = (view.tables[uuid].table.name for uuid in uuids if uuid in view.tables)
    return [name for name in names if caller.principal.sees(name)]


def _shown(caller: Caller, row: Row) -> Row:
    if caller.principal.administers or not row[HELD_BY]:
        return row
    held = tuple(shown_holder(caller, holder) for holder in row[HELD_BY])
    return (*row[:HELD_BY], held, *row[HELD_BY + 1 :])


def _fields(message: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(message, name) for name in names}


def _subscription(info: pb.SubscriptionInfo) -> dict[str, Any]:
    members = [
        {"name": member.name, "away": member.away, "buckets": len(member.buckets), "behind": _behind(member)}
        for member in info.members
    ]
    shown = _fields(info, "name", "acked_us", "behind", "snapshot", "shared")
    return {**shown, "tables": list(info.tables), "members": members}


def _behind(member: pb.MemberInfo) -> int:
    return sum(bucket.behind for bucket in member.buckets)
