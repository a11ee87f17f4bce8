"""RPCs in a viewer's name: judged, counted and cut to what the viewer may know, as if they came over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

from lakestore.errors import Denied, Exhausted, LakestoreError
from lakestore.wire import rpc
from lakestore_server.access.admission import Admission, RpcCall
from lakestore_server.access.callers import Caller
from lakestore_server.edge.rpc_dispatch import parsed
from lakestore_server.service import Service

ASKED_BYTES_MAX = 64 << 20
"""Bytes of the requests of one query that name different tables: they are kept for as long as it runs."""
CALL_BYTES = 2_000
"""Memory of a call that is kept, beside its request."""
_READS = {name for name, method in rpc.METHODS.items() if method.reads}
READS = _READS - {"Changes", "ChangeRanges", "Audit"} | {"RenewLease", "ReleaseLease"}
"""RPCs that a query may make."""


class Rpcs:
    """The verbs of a service for viewers. Thread-safe."""

    def __init__(self, service: Service, admission: Admission) -> None:
        self._admission = admission
        self._methods = rpc.METHODS
        self._verbs: dict[str, Callable[..., Any]] = {
            name: service.watched(method) for name, method in self._methods.items()
        }

    def begun(self, caller: Caller, name: str) -> RpcCall:
        """A call of a viewer's that begins, or `Denied` whatever it asks for."""
        return self._admission.known_call(self._methods[name].path, caller)

    def call(self, caller: Caller, name: str, request: Any) -> Any:
        """The answer of an RPC with one."""
        return self.answer(self.begun(caller, name), name, request)

    def answer(self, call: RpcCall, name: str, request: Any) -> Any:
        """The answer of a call that was begun."""
        try:
            return call.answer(self._verbs[name](call.request(request)))
        except LakestoreError as error:
            raise call.told(error) from error

    def parsed(self, name: str, data: bytes) -> Any:
        """The request of an RPC that bytes are, or `Invalid`."""
        return parsed(self._methods[name].request, data)

    def stream(self, call: RpcCall, name: str, request: Any, *listener: Any) -> Generator[Any]:
        """The answers of an RPC with many, each asked for while the viewer has the right to it."""
        try:
            with closing(self._verbs[name](call.request(request), *listener)) as items:
                while True:
                    try:
                        item = call.next_item(items)
                    except StopIteration:
                        return
                    yield item
        except LakestoreError as error:
            raise call.told(error) from error


class Reads:
    """The RPCs of one query, whose rights are asked again for as long as the query runs. Thread-safe."""

    def __init__(self, rpcs: Rpcs, caller: Caller) -> None:
        self._rpcs, self._caller = rpcs, caller
        self._calls = {("", ""): rpcs.begun(caller, "Plan")}
        """By RPC and the tables that it names. The first one has no request and stands for the caller's token."""
        self._asked_bytes = 0

    def read(self, name: str, data: bytes) -> bytes:
        """The bytes of an answer to the bytes of a request that the query made."""
        request = self._request(name, data)
        call = self._rpcs.begun(self._caller, name)
        answer: bytes = self._rpcs.answer(call, name, request).SerializeToString()
        call.follow()
        self._keep(name, request, call, len(data))
        return answer

    def rows(self, name: str, data: bytes) -> Generator[bytes]:
        """The same of an RPC with many answers, or `Denied` at once."""
        request = self._request(name, data)
        call = self._rpcs.begun(self._caller, name)
        self._keep(name, request, call, len(data))
        return self._encoded(self._rpcs.stream(call, name, request))

    def recheck(self) -> None:
        """Raise if the caller has lost the right to anything that was read, or its token."""
        for call in list(self._calls.values()):
            call.recheck()

    def _keep(self, name: str, request: Any, call: RpcCall, size: int) -> None:
        """Keep a call, to ask for its right again. Of calls that name the same tables the newest stands for all."""
        key = name, _tables_text(request)
        self._asked_bytes += 0 if key in self._calls else size + CALL_BYTES
        if self._asked_bytes > ASKED_BYTES_MAX:
            raise Exhausted(f"the query asked for tables in more than {ASKED_BYTES_MAX:,} bytes of requests")
        self._calls[key] = call

    @staticmethod
    def _encoded(items: Generator[Any]) -> Generator[bytes]:
        with closing(items):
            for item in items:
                yield item.SerializeToString()

    def _request(self, name: str, data: bytes) -> Any:
        if name not in READS:
            raise Denied(f"a query of the console does not call {name}")
        return self._rpcs.parsed(name, data)


def _tables_text(request: Any) -> str:
    """The tables that a request names, as a key."""
    said = (getattr(request, field, "") for field in ("table", "table_uuid", "tables"))
    return repr([value if isinstance(value, str) else list(value) for value in said])
