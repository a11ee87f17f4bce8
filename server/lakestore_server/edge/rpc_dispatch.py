"""One message in, one message out: decode the request, check the caller's right, run the verb.

Every message gets an answer or a `LakestoreError`. Malformed bytes are `Invalid`. A defect is `Internal` with a log
line, at a limited rate with its traceback.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from google.protobuf.message import Message

from lakestore.errors import Internal, LakestoreError
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, rpc
from lakestore.wire.commit_message import CommitMessage, taken_apart
from lakestore_server.access.admission import RpcCall
from lakestore_server.catalog.owners import called_by
from lakestore_server.commit.engine import FOR_LEADER
from lakestore_server.host.clock import Clock
from lakestore_server.host.quota import Quota, share_of
from lakestore_server.host.rate_limited_log import RateLimitedLog
from lakestore_server.service import Service

log = logging.getLogger("lakestore.grpc")
DEFECT_LOG_SECONDS = 60.0


class Dispatch:
    """The verbs of a service as bytes. Thread-safe."""

    def __init__(self, service: Service, clock: Clock, limits: Limits) -> None:
        self._verbs = {
            method.path: (method, service.watched(method)) for method in rpc.METHODS.values() if not method.streams_out
        }
        refusal = f"the server serves {limits.threads} calls at once: try again later"
        self._running = Quota(limits.threads, 0.0, refusal, share_of(limits.threads, limits))
        self._defects = RateLimitedLog(clock, DEFECT_LOG_SECONDS)

    def __contains__(self, path: object) -> bool:
        return path in self._verbs

    def answer(self, call: RpcCall, data: bytes) -> bytes:
        """The answer to the only message of a call, or a `LakestoreError`."""
        method, verb = self._verbs[call.path]
        try:
            request = call.request(rpc.parsed(method.request, data))
            with self._running.taken(1, call.owner), _for_leader(call), called_by(call.principal):
                answered: Message = call.answer(verb(request))
            return answered.SerializeToString()
        except LakestoreError as error:
            raise call.told(error) from error
        except Exception as error:  # the edge: a defect becomes a typed error, never a traceback at the client
            raise self.defect(method.name, error) from error

    def defect(self, what: str, error: Exception) -> Internal:
        """Log a defect; returns the error for the client."""
        if count := self._defects.due((what, type(error))):
            log.error("%s failed by a defect, %d times since the last line", what, count, exc_info=error)
        return errors.defect(error)


@contextmanager
def _for_leader(call: RpcCall) -> Iterator[None]:
    token = FOR_LEADER.set(call.reads_at_leader)
    try:
        yield
    finally:
        FOR_LEADER.reset(token)


def parse_commit(data: bytes | pa.Buffer, judged: Callable[[Any], Any]) -> CommitMessage:
    """The commit in the bytes, with its large rows left in place, after `judged` admits it; or `Invalid`."""
    left, rows = taken_apart(data)
    return CommitMessage(judged(rpc.parsed(pb.CommitRequest, left)), rows)
