"""The table of verbs has exactly one row for each RPC, and the row's messages are the proto file's."""

from __future__ import annotations

import collections.abc
import typing
from pathlib import Path
from typing import Any

import pytest

from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import rpc
from lakestore.wire.commit_message import CommitMessage
from lakestore.wire.row_messages import RowMessage
from lakestore_server import service
from lakestore_server.changes.batch_cache import EncodedBatch
from lakestore_server.changes.stream import Listener
from lakestore_server.main import Server
from lakestore_server.settings import Settings

ROWS = typing.get_type_hints(service.Verbs)
METHODS = list(rpc.METHODS.values())


def test_the_rows_are_the_rpcs_of_the_proto_file_in_their_order() -> None:
    assert list(ROWS) == [method.name for method in METHODS]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_row_has_the_messages_of_its_rpc(method: rpc.Method) -> None:
    asked, answered = typing.get_args(ROWS[method.name])
    if method.name == "Changes":
        assert asked == [pb.ChangesRequest, Listener]
        assert answered == collections.abc.Iterator[EncodedBatch]
        return
    kind = pb.CommitRequest | CommitMessage if method.name == "Write" else method.request
    assert asked == [_message(kind, stream=method.streams_in)]
    answer = RowMessage if method.name == "Fetch" else method.answer
    assert answered == _message(answer, stream=method.streams_out)


def _message(kind: Any, *, stream: bool) -> Any:
    return collections.abc.Iterator[kind] if stream else kind


def test_a_server_has_a_verb_in_every_row(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data", warehouse=str(tmp_path / "lake"))
    server = Server(settings)
    try:
        assert list(server.service.verbs) == list(ROWS)
        assert len({id(server.service.verb(name)) for name in ROWS}) == len(ROWS)
    finally:
        server.close()
