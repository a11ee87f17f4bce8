"""Servers that share a journal, as clients see them: gRPC ports in front of one real server, each with a role.

A front that follows answers reads from the same server, and refuses what only a leader answers with `NotLeader`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Self

from lakestore.errors import LakestoreError, NotLeader
from lakestore.limits import WIDEST
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, rpc
from lakestore.wire.rpc import grpc

_METHODS = {method.path: method for method in rpc.METHODS.values()}
_CODES = {"NotAuthenticated": grpc.StatusCode.UNAUTHENTICATED}
_PASSED_ON = ("authorization",)


class Front:
    """One address. Its role may change at any time."""

    def __init__(self, server: str, port: int = 0) -> None:
        """`server` is the real server's address."""
        self._server = server
        self.role, self.leader, self.epoch, self.timeline = "follower", "", 1, ""
        self.seen: list[tuple[str, Any]] = []
        """Name and request of every call; None for a stream of commits."""
        self.tokens: list[str] = []
        """Values of `authorization` that came."""
        self.refusal: LakestoreError | None = None
        """What every call ends in; None: they are answered."""
        self.hangs = threading.Event()
        """Set: the port takes calls and answers none."""
        self._ended = threading.Event()
        self._channel = grpc.insecure_channel(server, options=rpc.options(WIDEST.message_bytes))
        self._port = grpc.server(ThreadPoolExecutor(32), options=rpc.options(WIDEST.message_bytes))
        self._port.add_generic_rpc_handlers((_Handlers(self),))
        self.port = self._port.add_insecure_port(f"127.0.0.1:{port}")
        self._port.start()

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def names(self) -> list[str]:
        """Names of the calls that came."""
        return [name for name, _ in self.seen]

    def leads(self, *others: Front) -> None:
        """Lead from now on; the others follow and know it."""
        epoch = 1 + max(front.epoch for front in (self, *others))
        for front in (self, *others):
            front.role, front.leader, front.epoch = "follower", self.address, epoch
        self.role = "leader"

    def stop(self) -> None:
        """The process ends."""
        self._ended.set()
        self._port.stop(0).wait()
        self._channel.close()

    def answer(self, method: rpc.Method, request: Any, context: Any) -> Iterator[Any]:
        """The answers to a request, or the error."""
        self._await_end_of_hang()
        self.seen.append((method.name, request if not method.streams_in else None))
        if self.refusal is not None:
            raise self.refusal
        metadata = tuple((key, value) for key, value in context.invocation_metadata() if key in _PASSED_ON)
        self.tokens += [str(value) for _, value in metadata]
        if method.streams_in:
            yield from self._commits(method, request, metadata)
            return
        self._refuse(method, request)
        if not method.streams_out:
            answer = self._kind(method, "unary_unary")(request, metadata=metadata)
            if method.name == "Hello":
                answer.role, answer.leader, answer.epoch = self.role, self.leader, self.epoch
                answer.timeline = self.timeline or answer.timeline
            yield answer
            return
        answers = self._kind(method, "unary_stream")(request, metadata=metadata)
        context.add_callback(answers.cancel)
        for answer in answers:
            self._refuse(method, request)
            yield answer

    def _commits(self, method: rpc.Method, requests: Iterator[Any], metadata: Any) -> Iterator[Any]:
        refused = NotLeader.of(self.leader)
        if self.role == "follower":
            yield pb.CommitAnswer(error=errors.error_message(refused))
            return

        def taken() -> Iterator[Any]:
            for request in requests:
                if self.role == "follower":
                    return
                yield request

        for answer in self._kind(method, "stream_stream")(taken(), metadata=metadata):
            if self.role == "follower":
                break  # the commit happened, and nobody is told
            yield answer
        if self.role == "follower":
            yield pb.CommitAnswer(error=errors.error_message(NotLeader.of(self.leader, applied="unknown")))

    def _refuse(self, method: rpc.Method, request: Any) -> None:
        if self.role == "follower" and method.needs_leader(request):
            raise NotLeader.of(self.leader)

    def _await_end_of_hang(self) -> None:
        while self.hangs.is_set() and not self._ended.wait(0.01):
            pass

    def _kind(self, method: rpc.Method, kind: str) -> Any:
        made = getattr(self._channel, kind)
        return made(method.path, method.request.SerializeToString, method.answer.FromString)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    def __init__(self, front: Front) -> None:
        self._front = front

    def service(self, details: Any) -> Any:
        if details.method == rpc.TALK_PATH:
            return grpc.stream_stream_rpc_method_handler(self._talk, pb.Ask.FromString, pb.Reply.SerializeToString)
        method = _METHODS.get(details.method)
        if method is None:
            return None
        coders = method.request.FromString, method.answer.SerializeToString
        if method.streams_in:
            return grpc.stream_stream_rpc_method_handler(self._stream(method), *coders)
        if method.streams_out:
            return grpc.unary_stream_rpc_method_handler(self._stream(method), *coders)
        return grpc.unary_unary_rpc_method_handler(lambda *call: next(self._stream(method)(*call)), *coders)

    def _stream(self, method: rpc.Method) -> Any:
        def answers(request: Any, context: Any) -> Iterator[Any]:
            try:
                yield from self._front.answer(method, request, context)
            except LakestoreError as error:
                context.set_trailing_metadata(errors.pack_error(error))
                context.abort(_CODES.get(error.kind, grpc.StatusCode.UNAVAILABLE), error.message)
            except grpc.RpcError as error:
                failed: Any = error
                context.set_trailing_metadata(failed.trailing_metadata())
                context.abort(failed.code(), failed.details())

        return answers

    def _talk(self, asks: Iterator[pb.Ask], context: Any) -> Iterator[pb.Reply]:
        for ask in asks:
            method = rpc.METHODS[ask.method]
            try:
                answer = next(self._front.answer(method, method.request.FromString(ask.request), context))
                yield pb.Reply(id=ask.id, answer=answer.SerializeToString())
            except LakestoreError as error:
                yield pb.Reply(id=ask.id, error=errors.error_fields(error))
            except grpc.RpcError as error:
                failed: Any = error
                told = errors.unpack_error(dict(failed.trailing_metadata() or ()), failed.code().name, "")
                yield pb.Reply(id=ask.id, error=errors.error_fields(told))


class Fronts:
    """Fronts of one server, of which the first one leads. A context manager."""

    def __init__(self, server: str, count: int = 2) -> None:
        self._server, self._all = server, ExitStack()
        self.fronts = [self.add() for _ in range(count)]
        self.lead(0)

    def add(self, port: int = 0) -> Front:
        """One more, which is in no list."""
        front = Front(self._server, port)
        self._all.callback(front.stop)
        return front

    def lead(self, number: int) -> None:
        """Let this one lead."""
        chosen = self.fronts[number]
        chosen.leads(*(front for front in self.fronts if front is not chosen))

    @property
    def addresses(self) -> str:
        """The list that a client is given."""
        return ",".join(front.address for front in self.fronts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._all.close()
