"""Admission: checks every call on its way in and cuts its answer on the way out.

The two ports pass the token or certificate of the client. The rows of `policy` decide everything else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

from lakestore.errors import Denied, LakestoreError, NotAuthenticated, NotFound
from lakestore.wire import rpc
from lakestore_server.access import ownership, policy, principals
from lakestore_server.access.callers import Access, Caller
from lakestore_server.access.finders import HttpRequestFacts, TableFacts
from lakestore_server.access.policy import Row
from lakestore_server.access.principals import Principal
from lakestore_server.host import event_log
from lakestore_server.host.clock import Clock
from lakestore_server.host.rate_limited_log import RateLimitedLog

log = logging.getLogger("lakestore.access")
_Item = TypeVar("_Item")
RECHECK_SECONDS = 1.0
"""Seconds between two checks of a silent call."""
DENIED_LOG_SECONDS = 60.0
DENIED_LOG_LINES = 5
"""Log lines per caller, call and kind of refusal in this time. The next line has the number of suppressed ones."""


class Admission:
    """The rights of one server's callers. Thread-safe."""

    def __init__(
        self,
        access: Access,
        known: TableFacts,
        clock: Clock,
        *,
        metrics_open: bool = False,
        check_leads: Callable[[], None] = lambda: None,
    ) -> None:
        """`check_leads` raises `NotLeader` while this server follows another one."""
        self.access, self._known, self.check_leads = access, known, check_leads
        self._denied = RateLimitedLog(clock, DENIED_LOG_SECONDS, DENIED_LOG_LINES)
        self._routes = dict(policy.ROUTES)
        if metrics_open:
            self._routes["GET", "/metrics"] = Row("open", policy.ROUTES["GET", "/"].finder, "")

    def rpc(self, path: str, token: str, certificate: Sequence[str], *, reads_at_leader: bool = False) -> RpcCall:
        """A call at its begin, known by its metadata alone; `NotAuthenticated`, or `Denied` if no request of it is
        allowed."""
        caller = self._caller(policy.RPCS.get(path), token, certificate, path)
        return self.known_call(path, caller, reads_at_leader=reads_at_leader)

    def known_call(self, path: str, caller: Caller | None, *, reads_at_leader: bool = False) -> RpcCall:
        """A call of a known caller; `Denied` if no request of it is allowed."""
        row = policy.RPCS.get(path)
        what = _name_of(path)
        with self._noting(what, caller):
            policy.check_possible(row, caller.principal if caller else principals.NOBODY, what)
        return RpcCall(self, path, row, caller, reads_at_leader=reads_at_leader)

    def is_open(self, path: str) -> bool:
        """Whether an RPC needs no authentication."""
        row = policy.RPCS.get(path)
        return row is not None and row.right == "open"

    def route(self, method: str, path: str) -> Row | None:
        return self._routes.get((method, path))

    def http_caller(self, row: Row | None, token: str, certificate: Sequence[str], what: str) -> Caller | None:
        """The caller of an HTTP request; None if the route needs no authentication."""
        return self._caller(row, token, certificate, what)

    def check_right(self, row: Row | None, caller: Caller | None, asked: Any, what: str) -> None:
        """`Denied`, and logged, unless the caller has the row's right."""
        principal = caller.principal if caller else principals.NOBODY
        with self._noting(what, caller):
            policy.check_right(row, principal, asked, self._known, what)

    def check_held(self, row: Row, caller: Caller, asked: Any, what: str) -> None:
        """`Denied` unless the caller may read the tables behind the stored name in the request."""
        if row.held is not None:
            with self._noting(what, caller):
                policy.check_present(row, caller.principal, asked, self._known, row.held(asked, self._known))

    def check_present(
        self, row: Row, caller: Caller, asked: Any, what: str, known: tuple[str, ...], *, followed: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """The present names of the tables that a call reads, or `Denied`. `known` are the names at the last check,
        `followed` the uuids of further tables."""
        by_uuid = (self._known.table_of(uuid) for uuid in followed)
        read = row.present(asked, self._known) if row.present is not None else ()
        names = (*read, *(name for name in by_uuid if name is not None))
        if names != known:
            with self._noting(what, caller):
                policy.check_present(row, caller.principal, asked, self._known, names)
        return names

    def uuids_of(self, row: Row, asked: Any) -> tuple[str, ...]:
        """The uuids of the tables that a request names, if it needs the right to read them."""
        named = row.finder(asked, self._known) if row.right == "read" else ()
        uuids = (self._known.uuid_of(name) for name in named)
        return tuple(uuid for uuid in uuids if uuid is not None)

    def bind(self, asked: Any) -> None:
        ownership.bind_tables(asked, self._known)

    def _caller(self, row: Row | None, token: str, certificate: Sequence[str], what: str) -> Caller | None:
        if row is not None and row.right == "open":
            return None
        with self._noting(what, None):
            caller = self.access.caller(token, certificate)
            if caller.principal is principals.SERVER and what not in principals.SERVER_RPCS:
                raise Denied("a server calls another one for its checkpoint and for holds of snapshots only")
            return caller

    def _noting(self, what: str, caller: Caller | None) -> _Noting:
        return _Noting(self._denied, what, caller)


class _Noting:
    """Logs the refusal of its block. A class: a generator takes three times as long, and each call enters two."""

    __slots__ = ("_caller", "_denied", "_what")

    def __init__(self, denied: RateLimitedLog, what: str, caller: Caller | None) -> None:
        self._denied, self._what, self._caller = denied, what, caller

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: object, __: object) -> None:
        if isinstance(error, (Denied, NotAuthenticated)):
            who = self._caller.principal.name if self._caller else ""
            if count := self._denied.due((self._what, who, error.kind)):
                event_log.event(log, logging.INFO, "denied", what=self._what, why=error.message, count=count)


class RpcCall:
    """One RPC from begin to end."""

    def __init__(
        self, admission: Admission, path: str, row: Row | None, caller: Caller | None, *, reads_at_leader: bool
    ) -> None:
        self._admission, self.path, self._row, self._caller = admission, path, row, caller
        self._what = _name_of(path)
        self._method, self.reads_at_leader = rpc.METHODS.get(self._what), reads_at_leader
        self._generation = admission.access.generation
        self._asked: Any = None
        self._present: tuple[str, ...] = ()
        """Names at the last check of the tables that are read by uuid."""
        self._followed: tuple[str, ...] = ()
        """Uuids of the tables that the request named, if the caller continues to read them."""
        self._recheck_due = 0.0

    @property
    def is_open(self) -> bool:
        return self._row is not None and self._row.right == "open"

    def other(self, path: str) -> RpcCall:
        """Another RPC of the same caller; `Denied` if no request of it is allowed."""
        return self._admission.known_call(path, self._caller, reads_at_leader=self.reads_at_leader)

    @property
    def caller(self) -> Caller | None:
        """The caller with its present rights; None if the call needs no authentication."""
        return self._caller

    @property
    def owner(self) -> str:
        """The principal whose quota the call uses; empty on a server without principals."""
        return self._caller.counted_as if self._caller else ""

    @property
    def principal(self) -> Principal:
        """The principal for whom the call is answered."""
        return self._caller.principal if self._caller else principals.NOBODY

    def request(self, request: Any) -> Any:
        """The request as the server must see it, or `Denied` or `NotLeader`. Each request of a stream is checked."""
        self._renew()
        self._check(request)
        self._check_role(request)
        self._present, self._followed = (), ()
        if self._caller is not None and self._row is not None:
            ownership.to_stored_names(self._caller, self._row, request)
            if not self._caller.access.is_open:
                self._admission.bind(request)
                self._admission.check_held(self._row, self._caller, request, self._what)
        self._asked = request
        return request

    def answer(self, answer: Any) -> Any:
        if self._caller is not None and self._row is not None:
            ownership.to_shown_names(self._caller, self._row, answer)
        return answer

    def told(self, error: LakestoreError) -> LakestoreError:
        """The error as the caller may know it. Only a caller who sees the table learns its new name or that it was
        dropped."""
        if not isinstance(error, NotFound):
            return error
        name = error.renamed_to or error.dropped_as
        if not name or (self._caller is not None and not self._caller.principal.sees(name)):
            return error
        said = f"the table was renamed to {name!r}: open it by that name"
        if not error.renamed_to:
            said = f"table {name!r} was dropped: `lakestore undrop {name}` has it back while it is kept"
        return NotFound(said, applied=error.applied)

    def tick(self, now: float) -> None:
        """Check again if the time has come; `now` is monotonic seconds."""
        if now >= self._recheck_due:
            self._recheck_due = now + RECHECK_SECONDS
            self.recheck()

    def recheck(self) -> None:
        """Raise unless the caller still has the right and a valid token or certificate. A stream may run for weeks.
        Tables read by uuid are checked by their present names, so a rename to a name that the caller may not read ends
        the stream. `NotLeader` if only a leader answers the request and another server leads by now."""
        has_changed = self._renew()
        row, caller = self._row, self._caller
        self._check_role(self._asked)
        if self._asked is None or row is None or caller is None or caller.access.is_open:
            return
        if row.present is not None or self._followed:
            self._present = self._presently(caller, row, self._asked, () if has_changed else self._present)
        elif has_changed:
            self._check(self._asked)

    def follow(self) -> None:
        """Let `recheck` include the tables of the request, because the caller reads them after the answer."""
        if self._row is not None and self._caller is not None and not self._caller.access.is_open:
            self._followed = self._admission.uuids_of(self._row, self._asked)
            self._present = ()

    def next_item(self, items: Iterator[_Item]) -> _Item:
        """The next item of a streamed answer. The item is made before the right is checked, so no rename is missed."""
        try:
            item = next(items)
        except NotFound:  # `told` leaves out what the caller may not know
            self._check_role(self._asked)
            raise
        except LakestoreError:
            self.recheck()
            raise
        self.recheck()
        return item

    def _renew(self) -> bool:
        access = self._admission.access
        if self._caller is None or access.is_open:
            return False
        self._caller = access.renewed(self._caller)
        changed, self._generation = self._generation != access.generation, access.generation
        return changed

    def _presently(self, caller: Caller, row: Row, request: Any, known: tuple[str, ...]) -> tuple[str, ...]:
        return self._admission.check_present(row, caller, request, self._what, known, followed=self._followed)

    def _check_role(self, request: Any) -> None:
        """Raise `NotLeader` if this server follows and only a leader may answer. Before the first request it is None.

        A stream of commits is checked by the commit loop, which knows what became of each commit.
        """
        method = self._method
        if method is not None and request is not None and not method.streams_in:
            if method.needs_leader(request, reads_too=self.reads_at_leader):
                self._admission.check_leads()

    def _check(self, request: Any) -> None:
        self._admission.check_right(self._row, self._caller, request, self._what)


@cache
def _name_of(path: str) -> str:
    """The name of the RPC with a path."""
    return path.rsplit("/", 1)[-1]


def facts_of(path: dict[str, str], body: Any) -> HttpRequestFacts:
    """The facts of an HTTP request on which rights depend; a body that is not an object names nothing."""
    return HttpRequestFacts(path, body if isinstance(body, dict) else {})
