"""RPCs in a viewer's name: judged, counted and cut to what the viewer may know, as if they came over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

from lakestore.errors import Denied, LakestoreError
from lakestore.wire import rpc
from lakestore_server.access.admission import Admission, RpcCall
from lakestore_server.access.callers import Caller
from lakestore_server.edge.rpc_dispatch import parsed
from lakestore_server.service import Service

READS = rpc.READS - {"Changes", "ChangeRanges", "Audit"} | {"RenewLease", "ReleaseLease"}
"""RPCs that a query may make."""


class Rpcs:
    """The verbs of a service for viewers. Thread-safe."""

    def __init__(self, service: Service, admission: Admission) -> None:
        self._admission = admission
        self._methods = {method.name: method for method in rpc.methods()}
        self._verbs: dict[str, Callable[..., Any]] = {
            name: service.watched(method) for name, method in self._methods.items()
        }

    def begun(self, caller: Caller, name: str) -> RpcCall:
        """A call of a viewer's that begins, or `Denied` whatever it asks for."""
        return self._admission.of(self._methods[name].path, caller)

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

    def read(self, name: str, data: bytes) -> bytes:
        """The bytes of an answer to the bytes of a request that the query made."""
        request = self._request(name, data)
        call = self._rpcs.begun(self._caller, name)
        answer: bytes = self._rpcs.answer(call, name, request).SerializeToString()
        call.follow()
        self._calls[name, _tables_text(request)] = call
        return answer

    def rows(self, name: str, data: bytes) -> Generator[bytes]:
        """The same of an RPC with many answers, or `Denied` at once."""
        request = self._request(name, data)
        call = self._rpcs.begun(self._caller, name)
        self._calls[name, _tables_text(request)] = call
        return self._encoded(self._rpcs.stream(call, name, request))

    def recheck(self) -> None:
        """Raise if the caller has lost the right to anything that was read, or its token."""
        for call in list(self._calls.values()):
            call.recheck()

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
    """The tables that a request names, as a key: of calls that name the same ones the newest stands for all."""
    said = (getattr(request, field, "") for field in ("table", "table_uuid", "tables"))
    return repr([value if isinstance(value, str) else list(value) for value in said])
