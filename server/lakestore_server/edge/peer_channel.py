"""Calls of this server to another server of its shared journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from lakestore.limits import WIDEST
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors, rpc
from lakestore.wire.rpc import grpc
from lakestore_server.edge.tls import TlsKeys

_COPY = rpc.METHODS["CopyCheckpoint"]


class PeerChannel:
    """Streams of other servers, with an access token for each. TLS if this server has keys: then it shows its own
    certificate, and theirs must be of the authority `ca`."""

    def __init__(self, token: Callable[[str], str], keys: TlsKeys | None) -> None:
        """`token` returns the access token for an address; empty means none."""
        self._token, self._keys = token, keys

    def copy_checkpoint(self, address: str, request: pb.CopyCheckpointRequest) -> Iterator[pb.CopyPiece]:
        """The pieces of a copy. Errors are `LakestoreError`s."""
        token = self._token(address)
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        with closing(self._opened(address)) as channel:
            stream = channel.unary_stream(_COPY.path, _COPY.request.SerializeToString, _COPY.answer.FromString)
            try:
                yield from stream(request, metadata=metadata)
            except grpc.RpcError as error:
                trailing: Any = error.trailing_metadata() or ()
                code, details = error.code().name, error.details() or ""
                raise errors.unpack_error(dict(trailing), code, details, reads=True, address=address) from error

    def _opened(self, address: str) -> grpc.Channel:
        options = [*rpc.options(WIDEST.message_bytes), *rpc.client_keepalive(is_one_of_several=True)]
        if self._keys is None:
            return grpc.insecure_channel(address, options=options)
        cert, key, _ = self._keys.read()
        credentials = grpc.ssl_channel_credentials(self._keys.authority(), key, cert)
        return grpc.secure_channel(address, credentials, options=options)
