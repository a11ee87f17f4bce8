"""Lags: the curves of the subscriptions and bridges that are furthest behind, of those that a viewer may know of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from lakestore.model.names import HIDDEN
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.access.callers import Caller
from lakestore_server.access.ownership import own_name
from lakestore_server.edge.console.answers import json
from lakestore_server.edge.console.rpcs import Rpcs
from lakestore_server.operate.history import Curves, History, Kind, Series

SHOWN_MAX = 12
"""Curves of one kind in an answer: as many as a page shows."""


class Lags:
    """The endpoint. Thread-safe."""

    def __init__(self, rpcs: Rpcs, history: History) -> None:
        self._rpcs, self._history = rpcs, history

    def lags(self, request: Request, caller: Caller) -> Response:
        """The curves, over hours or days, of streams whose names have all words of `filter`."""
        asked = request.query_params
        by_minutes, words = asked.get("by") == "minutes", asked.get("filter", "").lower().split()
        answer = self._rpcs.call(caller, "ListSubscriptions", pb.ListSubscriptionsRequest())
        readable = {each.name for each in answer.subscriptions if HIDDEN not in each.tables}
        own = {kind: self._own(caller, kind) for kind in (Kind.SUBSCRIPTION, Kind.BRIDGE)}
        own[Kind.SUBSCRIPTION] = {name: at for name, at in own[Kind.SUBSCRIPTION].items() if name in readable}
        found: dict[str, Any] = {}
        for kind, named in own.items():
            matching = {name: at for name, at in named.items() if all(word in name.lower() for word in words)}
            names = sorted(sorted(matching, key=lambda name: (-matching[name][1], name))[:SHOWN_MAX])
            series = [Series(kind, matching[name][0]) for name in names]
            curves = self._history.streams(series, 0, by_minutes=by_minutes)
            found[kind.value] = {"count": len(matching), **_drawn(zip(names, curves, strict=True))}
        return json(found)

    def _own(self, caller: Caller, kind: Kind) -> Mapping[str, tuple[str, float]]:
        """The viewer's streams: the name as the viewer knows it to the one it is kept under, and its newest lag."""
        shown = ((own_name(caller, kept_as), kept_as, lag) for kept_as, lag in self._history.newest(kind).items())
        return {name: (kept_as, lag) for name, kept_as, lag in shown if name is not None}


def _drawn(curves: Iterable[tuple[str, Curves]]) -> dict[str, Any]:
    """Curves that end together: the times of the longest once, and the values of each, which may begin later."""
    times: list[int] = []
    drawn = []
    for name, each in curves:
        times = max(times, each.times_us, key=len)
        drawn.append({"name": name, "values": each.values[0]})
    return {"times_us": times, "curves": drawn}
