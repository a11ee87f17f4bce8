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
        call = self.begun(caller, name)
        try:
            return call.answer(self._verbs[name](call.request(request)))
        except LakestoreError as error:
            raise call.told(error) from error

    def stream(self, call: RpcCall, name: str, request: Any, *listener: Any) -> Generator[Any]:
        """The answers of an RPC with many, each asked for while the viewer has the right to it."""
        try:
            with closing(self._verbs[name](call.request(request), *listener)) as items:
                for item in items:
                    call.recheck()
                    yield item
        except LakestoreError as error:
            raise call.told(error) from error

    def read(self, caller: Caller, name: str, data: bytes) -> bytes:
        """The bytes of an answer to the bytes of a request that a query made."""
        answer: bytes = self.call(caller, name, self._request(name, data)).SerializeToString()
        return answer

    def rows(self, caller: Caller, name: str, data: bytes) -> Generator[bytes]:
        """The same of an RPC with many answers, or `Denied` at once."""
        request = self._request(name, data)
        return self._encoded(self.stream(self.begun(caller, name), name, request))

    @staticmethod
    def _encoded(items: Generator[Any]) -> Generator[bytes]:
        with closing(items):
            for item in items:
                yield item.SerializeToString()

    def _request(self, name: str, data: bytes) -> Any:
        if name not in READS:
            raise Denied(f"a query of the console does not call {name}")
        return parsed(self._methods[name].request, data)
