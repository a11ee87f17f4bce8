"""A stream that lets little through still gets on: its token, what it reads again, and its subscription's position."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakestore.client.changes import ChangeStream, request
from lakestore.errors import Invalid, Unavailable
from lakestore.limits import Limits
from lakestore.model import times
from lakestore.model.token import place_of, position_of
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.row_messages import ChangeMessage
from lakestore_server.changes import snapshot
from lakestore_server.changes import stream as feed
from tests.support.served import SCHEMA, Served

NAME, OTHER = "t.log", "t.other"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(feed, "PROGRESS_SECONDS", 0.01)
    running = Served(tmp_path, limits=Limits(changes_batch_rows=2, fetch_batch_rows=2, read_batch_bytes=100))
    for name in (NAME, OTHER):
        running.lake.create_table(name, SCHEMA, buckets=2, retention="1d")
    yield running
    running.close()


def lsn(text: str) -> int:
    return position_of(text).lsn


def test_a_selective_stream_knows_how_far_it_has_come(served: Served) -> None:
    tokens = [served.append(NAME, i) for i in range(10)]
    stream = served.lake.table(NAME).changes(where="v = 3", until="now")
    assert [batch.to_arrow()["v"].to_pylist() for batch in stream] == [[3]]
    assert lsn(stream.token) == lsn(tokens[-1])
    assert list(served.lake.table(NAME).changes(stream.token, where="v = 3", until="now")) == []


def test_an_endless_stream_tells_while_nothing_matches(served: Served) -> None:
    newest = [served.append(NAME, i) for i in range(10)][-1]
    stream = served.lake.table(NAME).changes(where="v > 100", progress=True)
    batch = next(stream)
    while lsn(batch.token) < lsn(newest):
        batch = next(stream)
    assert batch.progress
    assert len(batch) == 0
    assert batch.to_pylist() == []
    stream.close()


def test_nothing_is_told_where_everything_is_shown(served: Served) -> None:
    served.append(NAME, 1)
    stream = served.lake.table(NAME).changes(until="now", progress=True)
    assert [batch.progress for batch in stream] == [False]
    old = pb.ChangesRequest(tables=[NAME], where="v > 100", until="now")
    assert list(served.lake.transport.changes(old)) == [], "a client that does not ask for it is not told"


def test_a_stream_has_not_come_behind_a_batch_that_nobody_was_given(served: Served) -> None:
    newest = served.append(NAME, 1)
    stream = served.lake.table(NAME).changes(newest)
    assert stream.next(timeout=0.05) is None  # and the stream goes on waiting, in the background
    served.append(NAME, 2)
    ends = time.monotonic() + 0.3
    while time.monotonic() < ends and lsn(stream.token or newest) == lsn(newest):
        time.sleep(0.01)
    start = stream.token or newest
    (batch,) = served.lake.table(NAME).changes(start, until="now")
    assert batch.to_arrow()["v"].to_pylist() == [2]
    given = stream.next(timeout=60.0)
    assert given is not None
    assert stream.token == given.token
    stream.close()


@pytest.mark.parametrize("start", ["latest", "2999-01-01", "token"])
def test_a_stream_that_is_at_its_end_at_once_says_where_that_is(served: Served, start: str) -> None:
    newest = served.append(NAME, 1)
    stream = served.lake.table(NAME).changes(newest if start == "token" else start, until="now")
    assert list(stream) == []
    assert lsn(stream.token) == lsn(newest)
    served.append(NAME, 2)
    (batch,) = served.lake.table(NAME).changes(stream.token, until="now")
    assert batch.to_arrow()["v"].to_pylist() == [2]


def test_the_end_of_a_snapshot_is_told(served: Served) -> None:
    served.append(NAME, 1, 2, 3)
    stream = served.lake.table(NAME).changes("snapshot", progress=True)
    batches = [next(stream)]
    while not batches[-1].progress:
        batches.append(next(stream))
    assert place_of(position_of(batches[-2].token)) is not None
    assert place_of(position_of(batches[-1].token)) is None
    stream.close()


def test_a_snapshot_in_which_nothing_matches_gets_on(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "PROGRESS_ROWS", 4)
    served.append(NAME, *range(20))
    stream = served.lake.table(NAME).changes("snapshot", where="v < 0", progress=True, until="now")
    places = [place_of(position_of(batch.token)) for batch in stream]
    assert len(places) > 3
    assert all(places[:-1])
    assert places[-1] is None


class Counting:
    """A transport whose streams break after so many messages, and which notes what each connection is asked for."""

    def __init__(self, transport: Any, after: int) -> None:
        self._transport, self._after = transport, after
        self.starts: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def changes(self, asked: pb.ChangesRequest) -> Iterator[ChangeMessage]:
        """As the server's, for a while."""
        self.starts.append(asked.start)
        for i, message in enumerate(self._transport.changes(asked)):
            if i == self._after and len(self.starts) < 3:
                raise Unavailable("cut", applied="no")
            yield message


def test_a_reconnect_does_not_read_again_what_did_not_match(served: Served) -> None:
    newest = [served.append(NAME, i) for i in range(10)][-1]
    transport = Counting(served.lake.transport, after=1)
    asked = request([NAME], "earliest", "", None, None, before_images=False, where="v > 100")
    stream = ChangeStream(transport, asked, progress=True)
    while lsn(next(stream).token) < lsn(newest):
        pass
    served.append(NAME, 500)
    assert next(batch for batch in stream if not batch.progress).to_arrow()["v"].to_pylist() == [500]
    assert [lsn(start) > 0 for start in transport.starts[1:]] == [True] * (len(transport.starts) - 1)
    assert lsn(transport.starts[-1]) >= lsn(newest) or len(transport.starts) < 3


def position(served: Served) -> int:
    (found,) = served.lake.subscriptions()
    return lsn(found.token)


def test_a_subscription_gets_on_where_nothing_matches(served: Served) -> None:
    newest = [served.append(NAME, i) for i in range(10)][-1]
    assert list(served.lake.table(NAME).changes(where="v > 100", subscription="picky", until="now")) == []
    assert position(served) == lsn(newest)


def test_a_position_does_not_pass_what_was_not_acknowledged(served: Served) -> None:
    for i in range(10):
        served.append(NAME, i)
    stream = served.lake.table(NAME).changes(where="v = 3", subscription="picky", until="now")
    first = next(stream)
    assert list(stream) == [], "what lies behind does not match, and the stream says so"
    assert position(served) < lsn(first.token)
    first.ack()
    assert position(served) == lsn(stream.token) > lsn(first.token)


def test_until_takes_a_time_that_has_been(served: Served) -> None:
    served.append(NAME, 1)
    until = served.lake.snapshot()
    when = served.engine.view.time_us
    served.append(NAME, 2)
    served.clock.advance(5)
    found = [
        v for b in served.lake.table(NAME).changes(until=times.moment_of(when)) for v in b.to_arrow()["v"].to_pylist()
    ]
    assert found == [1]
    assert lsn(until.token) < served.engine.view.lsn
    with pytest.raises(Invalid, match="ahead"):
        list(served.lake.table(NAME).changes(until="2100-01-01"))
