"""Far more work than the limits allow: what is over is told to come again, what is taken is there once, memory ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.writer import change as wire_change
from lakestore.errors import Exhausted
from lakestore.v1 import lakestore_pb2 as pb
from tests.support.one_try import one_try
from tests.support.process import ServerProcess

MB = 1 << 20
STREAMS, THREADS = 8, 24
SEGMENT = 16 * MB
SETTINGS = f"""
limits:
  queue_commits: 4
  queue_bytes: {2 * MB}
  queue_wait_ms: 0
  in_flight_bytes: {8 * MB}
  batch_memory_bytes: {4 * MB}
  message_bytes: {4 * MB}
  journal_checkpoint_bytes: {16 * MB}
  journal_bytes: {64 * MB}
  segment_bytes: {SEGMENT}
  threads: {THREADS}
  streams: {STREAMS}
  disk_free_bytes: 0
"""
SCHEMA = pa.schema([("client", pa.int64()), ("n", pa.int64()), ("data", pa.binary())])
CLIENTS, COMMITS = 32, 30
BIG_STREAMS, BIG_COMMITS, BIG_BYTES = 6, 60, 2 * MB
MEMORY_MAX = 2 * THREADS * 4 * MB + 8 * MB + 2 * MB + 2 * 16 * MB + 4 * SEGMENT + 192 * MB
"""Each call's message in gRPC's and in Python's hands, what is decoded, the queue, the rows of two checkpoints, a merge
of segments, slack; what is offered is more."""

Done = list[tuple[int, int]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    file = tmp_path / "server.yaml"
    file.write_text(SETTINGS)
    with ServerProcess(tmp_path / "data", arguments=["--config", str(file)]) as running:
        yield running


def anonymous_bytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.pid}/status")
    if not status.exists():
        pytest.skip("memory is read from /proc")
    line = next(line for line in status.read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


def change(client: int, n: int, size: int) -> pb.Change:
    data = np.random.default_rng(n).bytes(size)
    batch = pa.RecordBatch.from_arrays([pa.array([client]), pa.array([n]), pa.array([data])], schema=SCHEMA)
    return wire_change("a.log", pb.APPEND, [batch], 0)


class Offered:
    """What clients sent and were told. Nobody tries again, so that the load does not sink."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self.taken: Done = []
        self.hints: list[float] = []

    def _note(self, done: Done, refusals: list[Exhausted]) -> None:
        assert all(refusal.applied == "no" for refusal in refusals)
        with self._lock:
            self.taken += done
            self.hints += [refusal.retry_after for refusal in refusals]

    def small(self, client: int) -> None:
        """Commits one by one, of all sizes up to a quarter of a megabyte."""
        done: Done = []
        refusals: list[Exhausted] = []
        sequence = 1
        with ls.connect(self._address) as lake:
            for n in range(COMMITS):
                asked = change(client, n, 1 << (n % 18))
                request = pb.CommitRequest(changes=[asked], producer=f"p{client}", sequence=sequence)
                try:
                    one_try(lake).commit(request)
                except Exhausted as refusal:
                    refusals.append(refusal)
                    continue
                done.append((client, n))
                sequence += 1
        self._note(done, refusals)

    def large(self, client: int) -> None:
        """Write streams of messages of megabytes, all sent at once; a refusal ends a stream, and another begins."""
        done: Done = []
        refusals: list[Exhausted] = []
        left = list(range(BIG_COMMITS))
        with ls.connect(self._address) as lake:
            while left:
                producer = f"p{client}-{len(left)}"
                sent = (  # each is made when it is sent: a refusal would throw away dozens of messages
                    pb.CommitRequest(changes=[change(client, n, BIG_BYTES)], producer=producer, sequence=i)
                    for i, n in enumerate(left[:], 1)
                )
                try:
                    for answer in lake.transport.write(sent):
                        if answer.HasField("error"):
                            told = answer.error
                            assert (told.kind, told.applied) == ("Exhausted", "no"), told
                            refusals.append(Exhausted(told.message, retry_after=told.retry_after_seconds))
                            break
                        done.append((client, left.pop(0)))
                except Exhausted as refusal:
                    refusals.append(refusal)
                if left and refusals:
                    left.pop(0)  # the refused one is not offered again
        self._note(done, refusals)


def counted(lake: ls.Lake) -> Done:
    table = lake.table("a.log").scan(["client", "n"]).to_arrow()
    return sorted(zip(table["client"].to_pylist(), table["n"].to_pylist(), strict=True))


@pytest.mark.slow
def test_work_far_over_the_limits_is_refused_with_a_hint_and_what_is_taken_is_there_once(server: ServerProcess) -> None:
    with ls.connect(server.address) as lake:
        lake.create_table("a.log", SCHEMA, buckets=2)
        lake.table("a.log").append([{"client": -1, "n": 0, "data": b""}])
        before = anonymous_bytes(server)
        offered, peak, over = Offered(server.address), [before], threading.Event()

        def watch() -> None:
            while not over.wait(0.02):
                peak[0] = max(peak[0], anonymous_bytes(server))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            with ThreadPoolExecutor(CLIENTS + BIG_STREAMS) as pool:
                running = [pool.submit(offered.large, CLIENTS + i) for i in range(BIG_STREAMS)]
                running += [pool.submit(offered.small, i) for i in range(CLIENTS)]
                for each in running:
                    each.result(200)
        finally:
            over.set()
            watcher.join()
        assert server.alive
        assert offered.hints, "nothing was refused: the load is no overload"
        assert min(offered.hints) > 0
        lake.table("a.log").append([{"client": -1, "n": 1, "data": b""}])
        assert counted(lake) == sorted([*offered.taken, (-1, 0), (-1, 1)])
        grown = peak[0] - before
        assert grown < MEMORY_MAX, f"{grown >> 20} MB grown"


def test_one_stream_more_is_told_to_come_again_and_is_served_once_there_is_room(server: ServerProcess) -> None:
    with ls.connect(server.address) as lake, ExitStack() as stack:
        table = lake.create_table("a.log", SCHEMA)
        table.append([{"client": 0, "n": 0, "data": b""}])
        streams = [
            lake.transport.changes(pb.ChangesRequest(tables=["a.log"], start="earliest")) for _ in range(STREAMS)
        ]
        for stream in streams:
            stack.callback(stream.close)  # type: ignore[attr-defined]
            next(stream)
        for call in (
            lambda: next(lake.transport.changes(pb.ChangesRequest(tables=["a.log"]))),
            lambda: next(lake.transport.write(iter([pb.CommitRequest(changes=[change(0, 1, 1)])]))),
        ):
            with pytest.raises(Exhausted, match=f"{STREAMS} streams are open") as refusal:
                call()
            assert refusal.value.retry_after > 0
        table.append([{"client": 0, "n": 1, "data": b""}])
        streams.pop().close()  # type: ignore[attr-defined]
        with table.writer() as writer:  # tries again until the server has seen the end of that stream
            writer.append([{"client": 0, "n": 2, "data": b""}])
        assert counted(lake) == [(0, 0), (0, 1), (0, 2)]
