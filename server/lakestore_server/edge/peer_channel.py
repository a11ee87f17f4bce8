"""Calls of this server to another server of its shared journal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from lakestore.errors import LakestoreError
from lakestore.limits import WIDEST
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, rpc
from lakestore.wire.rpc import grpc
from lakestore_server.edge.tls import TlsKeys

_COPY = rpc.METHODS["CopyCheckpoint"]
_HOLD = rpc.METHODS["HoldSnapshots"]
ANSWER_SECONDS = 5.0
"""The longest wait for a leader's answer, the connection included."""


class PeerChannel:
    """Calls of other servers, with an access token for each. Thread-safe. TLS if this server has keys: then it shows
    its own certificate, and theirs must be of the authority `ca`."""

    def __init__(self, token: Callable[[str], str], keys: TlsKeys | None) -> None:
        """`token` returns the access token for an address; empty means none."""
        self._token, self._keys = token, keys
        self._lock = threading.Lock()
        self._kept: tuple[str, grpc.Channel] | None = None
        """The connection to the leader of the last call, by its address."""

    def copy_checkpoint(self, address: str, request: pb.CopyCheckpointRequest) -> Iterator[pb.CopyPiece]:
        """The pieces of a copy. Errors are `LakestoreError`s."""
        with closing(self._opened(address)) as channel:
            stream = channel.unary_stream(_COPY.path, _COPY.request.SerializeToString, _COPY.answer.FromString)
            try:
                yield from stream(request, metadata=self._metadata(address))
            except grpc.RpcError as error:
                raise _unpacked(error, address) from error

    def hold_snapshots(self, address: str, request: pb.HoldSnapshotsRequest) -> pb.HoldSnapshotsAnswer:
        """The answer of the leader at an address. Errors are `LakestoreError`s. The connection is kept for the next
        call, until a call fails."""
        with self._lock:
            if self._kept is None or self._kept[0] != address:
                self._close_kept()
                self._kept = address, self._opened(address)
            channel = self._kept[1]
            call = channel.unary_unary(_HOLD.path, _HOLD.request.SerializeToString, _HOLD.answer.FromString)
            try:
                answer: pb.HoldSnapshotsAnswer = call(request, timeout=ANSWER_SECONDS, metadata=self._metadata(address))
            except grpc.RpcError as error:
                self._close_kept()
                raise _unpacked(error, address) from error
            return answer

    def close(self) -> None:
        with self._lock:
            self._close_kept()

    def _close_kept(self) -> None:
        if self._kept is not None:
            self._kept[1].close()
            self._kept = None

    def _metadata(self, address: str) -> tuple[tuple[str, str], ...]:
        token = self._token(address)
        return (("authorization", f"Bearer {token}"),) if token else ()

    def _opened(self, address: str) -> grpc.Channel:
        options = [*rpc.options(WIDEST.message_bytes), *rpc.client_keepalive(is_one_of_several=True)]
        if self._keys is None:
            return grpc.insecure_channel(address, options=options)
        cert, key, _ = self._keys.read()
        credentials = grpc.ssl_channel_credentials(self._keys.authority(), key, cert)
        return grpc.secure_channel(address, credentials, options=options)


def _unpacked(error: grpc.RpcError, address: str) -> LakestoreError:
    trailing: Any = error.trailing_metadata() or ()
    code, details = error.code().name, error.details() or ""
    return errors.unpack_error(dict(trailing), code, details, reads=True, address=address)
