"""Admission: the way in and out of every call, with its caller, right, own things, and the answer as it may be seen.

The two ports hand in the token or certificate that a client showed; everything else about rights is decided here,
by the rows of `policy`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from lakestore.errors import Denied, NotAuthenticated
from lakestore_server.access import ownership, policy, principals
from lakestore_server.access.callers import Access, Caller
from lakestore_server.access.policy import HttpRequestFacts, Row
from lakestore_server.host import event_log

log = logging.getLogger("lakestore.access")


class Admission:
    """The rights of one server's callers. Thread-safe."""

    def __init__(self, access: Access, known: policy.TableFacts, *, metrics_open: bool = False) -> None:
        self.access, self._known = access, known
        self._routes = dict(policy.ROUTES)
        if metrics_open:
            self._routes["GET", "/metrics"] = Row("open", policy.ROUTES["GET", "/"].finder, "")

    def rpc(self, path: str, token: str, certificate: Sequence[str]) -> RpcCall:
        """A call that begins, or `NotAuthenticated`."""
        row = policy.RPCS.get(path)
        return RpcCall(self, path, row, self._caller(row, token, certificate, path))

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
        principal = caller.principal if caller else principals.Principal("nobody")
        try:
            policy.check(row, principal, asked, self._known, what)
        except Denied as error:
            event_log.event(log, logging.INFO, "denied", what=what, why=error.message)
            raise

    def _caller(self, row: Row | None, token: str, certificate: Sequence[str], what: str) -> Caller | None:
        if row is not None and row.right == "open":
            return None
        try:
            return self.access.caller(token, certificate)
        except NotAuthenticated as error:
            event_log.event(log, logging.INFO, "denied", what=what, why=error.message)
            raise


class RpcCall:
    """One RPC from its beginning to its end."""

    def __init__(self, admission: Admission, path: str, row: Row | None, caller: Caller | None) -> None:
        self._admission, self._path, self._row, self._caller = admission, path, row, caller
        self._generation = admission.access.generation
        self._asked: Any = None

    def request(self, request: Any) -> Any:
        """The request as the server is to see it, or `Denied`. A stream's requests are each judged by themselves."""
        self._renew()
        self._check(request)
        if self._caller is not None and self._row is not None:
            ownership.kept(self._caller, self._row, request)
        self._asked = request
        return request

    def requests(self, requests: Iterator[Any]) -> Iterator[Any]:
        """A stream of requests."""
        for request in requests:
            yield self.request(request)

    def answer(self, answer: Any) -> Any:
        """The answer as the caller may see it."""
        if self._caller is not None and self._row is not None:
            ownership.shown(self._caller, self._row, answer)
        return answer

    def answers(self, answers: Iterator[Any]) -> Iterator[Any]:
        """A stream of answers; the stream ends with `Denied` when the right is taken away."""
        for answer in answers:
            # A stream may run for weeks: the first message after its right, token or certificate is withdrawn ends it.
            if self._renew():
                self._check(self._asked)
            yield self.answer(answer)

    def _renew(self) -> bool:
        """Whether rights have changed since the last call of this; the caller has the new ones then."""
        access = self._admission.access
        if self._caller is None or access.is_open:
            return False
        self._caller = access.renewed(self._caller)
        changed, self._generation = self._generation != access.generation, access.generation
        return changed

    def _check(self, request: Any) -> None:
        self._admission.check(self._row, self._caller, request, self._path.rsplit("/", 1)[-1])


def facts_of(path: dict[str, str], body: Any) -> HttpRequestFacts:
    """The facts of an HTTP request that its rights depend on; a body that is no object names nothing."""
    return HttpRequestFacts(path, body if isinstance(body, dict) else {})
