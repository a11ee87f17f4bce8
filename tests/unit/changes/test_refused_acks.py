"""An acknowledgement of a shared subscription that counts for some of its buckets only: who is told what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lakestore as ls
from lakestore.client.changes import ChangeBatch, ChangeStream, Share
from lakestore.errors import Fenced, Unavailable, error_of
from lakestore.model.token import LogPosition, Part, SharedPosition
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import errors
from lakestore.wire.row_messages import ChangeMessage
from lakestore_server.changes.sharing.group import SharedSubscriptions
from tests.support.served import SCHEMA, Served
from tests.support.sharing import Consumer, buckets, values

NAME, BUCKETS, REBALANCE = "t.log", 4, 30.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    running = Served(tmp_path, rebalance_seconds=REBALANCE)
    running.lake.create_table(NAME, SCHEMA, buckets=BUCKETS, bucket_key=["v"])
    yield running
    running.close()


class Cut:
    """A transport whose stream breaks when it is told to."""

    def __init__(self, served: Served) -> None:
        self._transport, self.breaks = served.lake.transport, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def changes(self, request: pb.ChangesRequest) -> Iterator[ChangeMessage]:
        """As the server's."""
        messages = self._transport.changes(request)
        try:
            for message in messages:
                yield message
                if self.breaks:
                    self.breaks = False
                    raise Unavailable("cut", applied="no")
        finally:
            messages.close()  # type: ignore[attr-defined]


def rows_of(batch: ChangeBatch, which: set[int]) -> list[int]:
    found = batch.to_arrow()
    pairs = zip(found["__bucket"].to_pylist(), found["v"].to_pylist(), strict=True)
    return [v for bucket, v in pairs if bucket in which]


def test_what_counted_does_not_come_again_after_a_reconnect_and_what_was_refused_does(served: Served) -> None:
    cut: Any = Cut(served)
    end = LogPosition(served.engine.timeline, served.engine.view.lsn + 7)
    asked: dict[str, Any] = {"subscription": "s", "member": "m", "session": 7, "lake_snapshot": True}
    stream = ChangeStream(cut, pb.ChangesRequest(tables=[NAME], start="earliest", until=str(end), **asked))
    served.append(NAME, *range(40))
    first = next(stream)
    assert buckets([first]) == set(range(BUCKETS))
    served.append(NAME, *range(40, 80))
    second = next(stream)
    other = Consumer(served, "other", 9, [NAME], name="s")
    other.connect()
    served.clock.advance(REBALANCE)
    taken = buckets(other.poll())
    assert 0 < len(taken) < BUCKETS
    with pytest.raises(Fenced) as refused:
        first.ack()
    assert refused.value.buckets == tuple((NAME, bucket) for bucket in sorted(taken))
    other.disconnect()
    served.clock.advance(2)
    cut.breaks = True
    served.append(NAME, 80)
    assert served.engine.view.lsn == end.lsn, "three commits, two openings, an acknowledgement and its refusal"
    again = list(stream)
    assert sorted(values(again)) == sorted([*rows_of(first, taken), *rows_of(second, taken), 80])


def test_a_share_gives_refused_buckets_again_until_an_acknowledgement_of_them_counts() -> None:
    def text(*ends: int) -> str:
        return str(SharedPosition("x", 0, ("t",), tuple(Part(0, bucket, 0, end) for bucket, end in enumerate(ends))))

    share = Share()
    assert share.begun(text(5, 5)) == []
    share.acked(text(5, 5), {1})
    assert share.begun(text(9, 9)) == [1]
    assert share.begun(text(9, 9)) == [1], "one message of the new reading may still be of the old one"
    share.acked(text(9, 9))
    assert share.begun(text(12, 12)) == []


def test_the_error_names_all_buckets_and_its_sentence_a_few(served: Served) -> None:
    served.lake.create_table("t.wide", SCHEMA, buckets=300, bucket_key=["v"])
    served.append("t.wide", *range(3_000))
    a, b = (Consumer(served, name, i, ["t.wide"]) for i, name in enumerate("ab", 1))
    a.connect()
    (sent,) = a.poll()
    a.disconnect()
    served.clock.advance(2)
    b.connect()
    taken = buckets(b.poll())
    assert len(taken) > 250
    with pytest.raises(Fenced, match=rf"bucket \d+ of t.wide and {len(taken) - 8} more now") as refused:
        a.ack(sent)
    assert refused.value.buckets == tuple(("t.wide", bucket) for bucket in sorted(taken))


def test_buckets_cross_the_wire_beside_what_older_clients_read() -> None:
    error = error_of("Fenced", "no", buckets=[("t.a", 1), ("t.a", 7), ("t.b", 0)])
    packed = dict(errors.pack_error(error))
    assert packed[errors.ERROR_KEY] == b'["Fenced", "no", "no"]'
    told = errors.unpack_error(packed, "FAILED_PRECONDITION", "")
    assert isinstance(told, Fenced)
    assert told.buckets == (("t.a", 1), ("t.a", 7), ("t.b", 0))
    plain = errors.unpack_error(dict(errors.pack_error(Fenced("stop"))), "FAILED_PRECONDITION", "")
    assert isinstance(plain, Fenced)
    assert plain.buckets == ()


def test_an_error_that_names_thousands_of_buckets_reaches_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [(NAME, bucket) for bucket in range(60_000)]

    def refuses(*_: object) -> None:
        raise error_of("Fenced", "no", buckets=named)

    monkeypatch.setattr(SharedSubscriptions, "ack", refuses)
    served = Served(tmp_path, ports=True)
    token = str(SharedPosition(served.engine.timeline, 0, (), ()))
    with ls.connect(served.server.about["grpc"]) as lake, pytest.raises(Fenced) as refused:
        lake.transport.ack(pb.AckRequest(subscription="s", member="m", session=1, token=token))
    assert list(refused.value.buckets) == named
    served.close()
