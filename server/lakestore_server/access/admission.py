"""Admission: the way in and out of every call, with its caller, right, own things, and the answer as it may be seen.

The two ports hand in the token or certificate that a client showed; everything else about rights is decided here,
by the rows of `policy`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from lakestore.errors import Denied, LakestoreError, NotAuthenticated, NotFound
from lakestore_server.access import ownership, policy, principals
from lakestore_server.access.callers import Access, Caller
from lakestore_server.access.finders import HttpRequestFacts, TableFacts
from lakestore_server.access.policy import Row
from lakestore_server.host import event_log
from lakestore_server.host.clock import Clock
from lakestore_server.host.rate_limited_log import RateLimitedLog

log = logging.getLogger("lakestore.access")
_Item = TypeVar("_Item")
RECHECK_SECONDS = 1.0
"""Time between two checks of a call that is silent."""
DENIED_LOG_SECONDS = 60.0
DENIED_LOG_LINES = 5
"""Lines for each caller, call and kind of refusal in that time; the next one has the number of those left out."""


class Admission:
    """The rights of one server's callers. Thread-safe."""

    def __init__(self, access: Access, known: TableFacts, clock: Clock, *, metrics_open: bool = False) -> None:
        self.access, self._known = access, known
        self._denied = RateLimitedLog(clock, DENIED_LOG_SECONDS, DENIED_LOG_LINES)
        self._routes = dict(policy.ROUTES)
        if metrics_open:
            self._routes["GET", "/metrics"] = Row("open", policy.ROUTES["GET", "/"].finder, "")

    def rpc(self, path: str, token: str, certificate: Sequence[str]) -> RpcCall:
        """A call that begins, by its metadata alone: or `NotAuthenticated`, or `Denied` whatever it asks for."""
        return self.of(path, self._caller(policy.RPCS.get(path), token, certificate, path))

    def of(self, path: str, caller: Caller | None) -> RpcCall:
        """A call of a caller who is known, or `Denied` whatever it asks for."""
        row = policy.RPCS.get(path)
        what = path.rsplit("/", 1)[-1]
        with self._noting(what, caller):
            policy.check_possible(row, caller.principal if caller else principals.NOBODY, what)
        return RpcCall(self, path, row, caller)

    def is_open(self, path: str) -> bool:
        """Whether everybody may call an RPC, unasked."""
        row = policy.RPCS.get(path)
        return row is not None and row.right == "open"

    def route(self, method: str, path: str) -> Row | None:
        """The rule of an HTTP route."""
        return self._routes.get((method, path))

    def http_caller(self, row: Row | None, token: str, certificate: Sequence[str], what: str) -> Caller | None:
        """The caller of an HTTP request; None where nobody is asked."""
        return self._caller(row, token, certificate, what)

    def check(self, row: Row | None, caller: Caller | None, asked: Any, what: str) -> None:
        """`Denied`, and logged, unless the caller has the row's right."""
        principal = caller.principal if caller else principals.NOBODY
        with self._noting(what, caller):
            policy.check(row, principal, asked, self._known, what)

    def check_held(self, row: Row, caller: Caller, asked: Any, what: str) -> None:
        """`Denied` unless the caller may read the tables of what the request names by its kept name."""
        if row.held is not None:
            with self._noting(what, caller):
                policy.check_present(row, caller.principal, asked, self._known, row.held(asked, self._known))

    def check_present(
        self, row: Row, caller: Caller, asked: Any, what: str, known: tuple[str, ...], *, followed: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """The present names of the tables that a call reads, or `Denied`.

        `known` are the names that it had the right to when it was asked last, `followed` uuids of further tables.
        """
        by_uuid = (self._known.table_of(uuid) for uuid in followed)
        read = row.present(asked, self._known) if row.present is not None else ()
        names = (*read, *(name for name in by_uuid if name is not None))
        if names != known:
            with self._noting(what, caller):
                policy.check_present(row, caller.principal, asked, self._known, names)
        return names

    def uuids_of(self, row: Row, asked: Any) -> tuple[str, ...]:
        """The uuids of the tables that a request names, where the right to read them was asked for."""
        named = row.finder(asked, self._known) if row.right == "read" else ()
        uuids = (self._known.uuid_of(name) for name in named)
        return tuple(uuid for uuid in uuids if uuid is not None)

    def bind(self, asked: Any) -> None:
        """Tie a request to the tables that have its names now."""
        ownership.bound(asked, self._known)

    def _caller(self, row: Row | None, token: str, certificate: Sequence[str], what: str) -> Caller | None:
        if row is not None and row.right == "open":
            return None
        with self._noting(what, None):
            return self.access.caller(token, certificate)

    @contextmanager
    def _noting(self, what: str, caller: Caller | None) -> Iterator[None]:
        """Log a refusal; a caller in a loop gets a few lines of each kind, then one now and then with the number."""
        try:
            yield
        except (Denied, NotAuthenticated) as error:
            who = caller.principal.name if caller else ""
            if count := self._denied.due((what, who, error.kind)):
                event_log.event(log, logging.INFO, "denied", what=what, why=error.message, count=count)
            raise


class RpcCall:
    """One RPC from its beginning to its end."""

    def __init__(self, admission: Admission, path: str, row: Row | None, caller: Caller | None) -> None:
        self._admission, self.path, self._row, self._caller = admission, path, row, caller
        self._what = path.rsplit("/", 1)[-1]
        self._generation = admission.access.generation
        self._asked: Any = None
        self._present: tuple[str, ...] = ()
        """The names of the tables that are read by uuid, when the right to read them was asked for last."""
        self._followed: tuple[str, ...] = ()
        """Uuids of the tables that a request named, once the caller goes on with them."""
        self._recheck_due = 0.0

    @property
    def is_open(self) -> bool:
        """Whether everybody may make it, unasked."""
        return self._row is not None and self._row.right == "open"

    def other(self, path: str) -> RpcCall:
        """Another RPC of the same caller, or `Denied` whatever it asks for."""
        return self._admission.of(path, self._caller)

    @property
    def owner(self) -> str:
        """The principal that what the call takes is counted against; empty where there are none."""
        return self._caller.counted_as if self._caller else ""

    def request(self, request: Any) -> Any:
        """The request as the server is to see it, or `Denied`. A stream's requests are each judged by themselves."""
        self._renew()
        self._check(request)
        self._present, self._followed = (), ()
        if self._caller is not None and self._row is not None:
            ownership.kept(self._caller, self._row, request)
            if not self._caller.access.is_open:
                self._admission.bind(request)
                self._admission.check_held(self._row, self._caller, request, self._what)
        self._asked = request
        return request

    def answer(self, answer: Any) -> Any:
        """The answer as the caller may see it."""
        if self._caller is not None and self._row is not None:
            ownership.shown(self._caller, self._row, answer)
        return answer

    def told(self, error: LakestoreError) -> LakestoreError:
        """The error as the caller may know it: where a table is now, or that it was dropped, is told to who sees it."""
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
        """Check again if it is time to; `now` is of the monotonic clock."""
        if now >= self._recheck_due:
            self._recheck_due = now + RECHECK_SECONDS
            self.recheck()

    def recheck(self) -> None:
        """Raise unless the caller still has the right, and the token or certificate is still valid.

        A stream may run for weeks. What it reads by uuid is judged by the names that the tables have now, so that a
        rename into a name that the caller may not read ends it.
        """
        has_changed = self._renew()
        row, caller = self._row, self._caller
        if self._asked is None or row is None or caller is None or caller.access.is_open:
            return
        if row.present is not None or self._followed:
            self._present = self._presently(caller, row, self._asked, () if has_changed else self._present)
        elif has_changed:
            self._check(self._asked)

    def follow(self) -> None:
        """Have `recheck` judge the tables that the request named, which the caller reads on after the answer."""
        if self._row is not None and self._caller is not None and not self._caller.access.is_open:
            self._followed = self._admission.uuids_of(self._row, self._asked)
            self._present = ()

    def next_item(self, items: Iterator[_Item]) -> _Item:
        """The next item of a streamed answer, made before the right to it is asked, so that no rename is missed."""
        try:
            item = next(items)
        except NotFound:  # `told` leaves out what the caller may not know
            raise
        except LakestoreError:
            self.recheck()
            raise
        self.recheck()
        return item

    def _renew(self) -> bool:
        """Whether rights have changed since the last call of this; the caller has the new ones then."""
        access = self._admission.access
        if self._caller is None or access.is_open:
            return False
        self._caller = access.renewed(self._caller)
        changed, self._generation = self._generation != access.generation, access.generation
        return changed

    def _presently(self, caller: Caller, row: Row, request: Any, known: tuple[str, ...]) -> tuple[str, ...]:
        return self._admission.check_present(row, caller, request, self._what, known, followed=self._followed)

    def _check(self, request: Any) -> None:
        self._admission.check(self._row, self._caller, request, self._what)


def facts_of(path: dict[str, str], body: Any) -> HttpRequestFacts:
    """The facts of an HTTP request that its rights depend on; a body that is no object names nothing."""
    return HttpRequestFacts(path, body if isinstance(body, dict) else {})
