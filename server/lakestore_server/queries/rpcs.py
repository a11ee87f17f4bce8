"""RPCs in a viewer's name: checked, counted and filtered as if they came over gRPC."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any

from lakestore.errors import Denied, Exhausted, LakestoreError
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore.wire.row_messages import RowMessage
from lakestore_server.access.admission import Admission, RpcCall
from lakestore_server.access.callers import Caller
from lakestore_server.catalog.owners import called_by
from lakestore_server.read.lookup import KeyRow
from lakestore_server.service import Service
from lakestore_server.state.view import View

ASKED_BYTES_MAX = 64 << 20
"""The most bytes of requests of one query that name different tables. They are kept until the query ends."""
CALL_BYTES = 2_000
"""Memory of one kept call without its request."""
_READS = {name for name, method in rpc.METHODS.items() if method.reads}
READS = _READS - {"Changes", "ChangeRanges", "Audit", "StoreKey"} | {"RenewLease", "ReleaseLease"}
"""RPCs that a query may make."""


class Rpcs:
    """The verbs of a service for viewers. Thread-safe."""

    def __init__(self, service: Service, admission: Admission) -> None:
        self._admission = admission
        self._methods, self._key_row, self.calls = rpc.METHODS, service.key_row, service.calls
        self.key_row_waits = service.key_row_waits
        """Whether `key_row` asks other servers."""
        self.view: Callable[[], View] = service.view
        """The newest state. Its reader checks rights."""
        self._verbs: dict[str, Callable[..., Any]] = {
            name: service.watched(method) for name, method in self._methods.items()
        }
        self._parts: dict[str, Callable[..., Any]] = {
            name: service.watched(self._methods[name], is_part=True) for name in READS
        }
        """The verbs of a query's process: a query that runs when a drain begins may end."""

    @property
    def generation(self) -> int:
        """Changes whenever rights may have changed."""
        return self._admission.access.generation

    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """Principal to the patterns of the tables that it may read."""
        return self._admission.access.readers()

    def begin(self, caller: Caller, name: str) -> RpcCall:
        """Begin a call of a viewer. Raises `Denied` if the viewer may not make this call at all."""
        return self._admission.known_call(self._methods[name].path, caller)

    def call(self, caller: Caller, name: str, request: Any) -> Any:
        """Begin a call and return its only answer."""
        return self.answer(self.begin(caller, name), name, request)

    def answer(self, call: RpcCall, name: str, request: Any, *, is_part: bool = False) -> Any:
        """The only answer of a call. With `is_part` it belongs to a running query, so a drain does not refuse it."""
        verb = (self._parts if is_part else self._verbs)[name]
        try:
            with called_by(call.principal):
                return call.answer(verb(call.request(request)))
        except LakestoreError as error:
            raise call.told(error) from error

    def key_row(self, caller: Caller, request: pb.LookupRequest) -> KeyRow | None:
        """The row of one whole key, by the rights of `Lookup`; None if only `Lookup` itself answers the request."""
        call = self.begin(caller, "Lookup")
        try:
            with called_by(call.principal):
                return self._key_row(call.request(request))
        except LakestoreError as error:
            raise call.told(error) from error

    def parsed(self, name: str, data: bytes) -> Any:
        """Decode a request. Raises `Invalid` for malformed bytes."""
        return rpc.parsed(self._methods[name].request, data)

    def stream(self, call: RpcCall, name: str, request: Any, *listener: Any, is_part: bool = False) -> Generator[Any]:
        """The answers of a streaming RPC. The viewer's right is checked before each answer; `is_part` is as above."""
        verb = (self._parts if is_part else self._verbs)[name]
        try:
            with closing(verb(call.request(request), *listener)) as items:
                while True:
                    try:
                        item = call.next_item(items)
                    except StopIteration:
                        return
                    yield item
        except LakestoreError as error:
            raise call.told(error) from error


class Reads:
    """The RPCs of one query. Their rights are checked again while the query runs. Thread-safe."""

    def __init__(self, rpcs: Rpcs, caller: Caller) -> None:
        self._rpcs, self._caller = rpcs, caller
        self._calls = {("", ""): rpcs.begin(caller, "Plan")}
        """By RPC name and named tables. The first entry has no request and stands for the caller's token."""
        self.recheck()
        self._asked_bytes = 0

    @property
    def readable(self) -> tuple[str, ...]:
        """Patterns of the tables that the caller may read."""
        return self._calls["", ""].principal.patterns("read")

    @property
    def knows_readers(self) -> bool:
        """Whether the caller may know `readers`."""
        return self._caller.principal.administers

    @property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """Principal to the patterns of the tables that it may read; nothing for a caller who may not know it."""
        return self._rpcs.readers() if self.knows_readers else {}

    def read(self, name: str, data: bytes) -> bytes:
        """Make a call of the query: request bytes in, answer bytes out."""
        request = self._request(name, data)
        call = self._rpcs.begin(self._caller, name)
        answer: bytes = self._rpcs.answer(call, name, request, is_part=True).SerializeToString()
        call.follow()
        self._keep(name, request, call, len(data))
        return answer

    def rows(self, name: str, data: bytes) -> Generator[bytes]:
        """Make a streaming call of the query. Raises `Denied` at once, not while the stream is read."""
        request = self._request(name, data)
        call = self._rpcs.begin(self._caller, name)
        self._keep(name, request, call, len(data))
        return self._encoded(self._rpcs.stream(call, name, request, is_part=True))

    def release(self, lease: str) -> None:
        """Give back the lease of a plan."""
        call = self._rpcs.begin(self._caller, "ReleaseLease")
        self._rpcs.answer(call, "ReleaseLease", pb.LeaseRequest(lease=lease), is_part=True)

    def recheck(self) -> None:
        """Raises an error if the caller's token has expired or a right to data that was read is lost."""
        for call in list(self._calls.values()):
            call.recheck()

    def _keep(self, name: str, request: Any, call: RpcCall, size: int) -> None:
        """Remember a call for `recheck`. The newest call stands for all calls of the same RPC with the same tables."""
        key = name, _tables_text(request)
        self._asked_bytes += 0 if key in self._calls else size + CALL_BYTES
        if self._asked_bytes > ASKED_BYTES_MAX:
            raise Exhausted(f"the query asked for tables in more than {ASKED_BYTES_MAX:,} bytes of requests")
        self._calls[key] = call

    @staticmethod
    def _encoded(items: Generator[RowMessage]) -> Generator[bytes]:
        with closing(items):
            for item in items:
                yield item.encoded()

    def _request(self, name: str, data: bytes) -> Any:
        if name not in READS:
            raise Denied(f"a query does not call {name}")
        return self._rpcs.parsed(name, data)


def _tables_text(request: Any) -> str:
    """The tables that a request names, as a dict key."""
    said = (getattr(request, field, "") for field in ("table", "table_uuid", "tables"))
    return repr([value if isinstance(value, str) else list(value) for value in said])
