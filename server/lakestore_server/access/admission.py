"""Admission: the way in and out of every call, with its caller, right, own things, and the answer as it may be seen.

The two ports hand in the token or certificate that a client showed; everything else about rights is decided here,
by the rows of `policy`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lakestore.errors import Denied, LakestoreError, NotAuthenticated, NotFound
from lakestore_server.access import ownership, policy, principals
from lakestore_server.access.callers import Access, Caller
from lakestore_server.access.policy import HttpRequestFacts, Row
from lakestore_server.host import event_log
from lakestore_server.host.clock import Clock
from lakestore_server.host.seldom import Seldom

log = logging.getLogger("lakestore.access")
RECHECK_SECONDS = 1.0
"""Time between two checks of a call that is silent."""
DENIED_LOG_SECONDS = 60.0
DENIED_LOG_LINES = 5
"""Lines for each caller, call and kind of refusal in that time; the next one has the number of those left out."""


class Admission:
    """The rights of one server's callers. Thread-safe."""

    def __init__(self, access: Access, known: policy.TableFacts, clock: Clock, *, metrics_open: bool = False) -> None:
        self.access, self._known = access, known
        self._denied = Seldom(clock, DENIED_LOG_SECONDS, DENIED_LOG_LINES)
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
        self._generation = admission.access.generation
        self._asked: Any = None
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
        if self._caller is not None and self._row is not None:
            ownership.kept(self._caller, self._row, request)
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
        """Raise if the right, the token or the certificate was withdrawn since: a stream may run for weeks."""
        if self._renew() and self._asked is not None:
            self._check(self._asked)

    def _renew(self) -> bool:
        """Whether rights have changed since the last call of this; the caller has the new ones then."""
        access = self._admission.access
        if self._caller is None or access.is_open:
            return False
        self._caller = access.renewed(self._caller)
        changed, self._generation = self._generation != access.generation, access.generation
        return changed

    def _check(self, request: Any) -> None:
        self._admission.check(self._row, self._caller, request, self.path.rsplit("/", 1)[-1])


def facts_of(path: dict[str, str], body: Any) -> HttpRequestFacts:
    """The facts of an HTTP request that its rights depend on; a body that is no object names nothing."""
    return HttpRequestFacts(path, body if isinstance(body, dict) else {})
