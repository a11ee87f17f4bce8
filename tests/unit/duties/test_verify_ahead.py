"""A start compares what look-ups will want, beside the journal's replay; damage stays for whoever reads it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from lakestore.errors import Corrupt
from lakestore_server import main
from lakestore_server.commit import recovery
from lakestore_server.duties import scrub
from lakestore_server.duties.scrub import VerifyAhead
from lakestore_server.files.segment import BlockChecks, Segment
from lakestore_server.index.run import Run
from lakestore_server.index.run_blocks import Blocks
from tests.support.served import Served

KEYS = 20_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A keyed table in segments and runs, and a log."""
    with Served(tmp_path / "data") as served:
        schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
        keyed = served.lake.create_table("a.keyed", schema, primary_key=["id"], buckets=1)
        log = served.lake.create_table("a.log", schema, buckets=1)
        rows = pa.table({"id": range(KEYS), "text": [f"{n:030}" for n in range(KEYS)]})
        keyed.upsert(rows)
        log.append(pa.table({"id": range(KEYS), "text": [f"of a log: {n}" for n in range(KEYS)]}))
        served.checkpoint()
    return tmp_path / "data"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that waits until everything is compared."""
    monkeypatch.setattr(main, "VerifyAhead", partial(VerifyAhead, 300.0))


def segment_of(served: Served, table: str) -> Segment:
    (segment,) = [each for each in served.state(table).logs[0].chunks if isinstance(each, Segment)]
    return segment


@pytest.mark.usefixtures("patient")
def test_look_ups_after_a_start_compare_nothing_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Served(folder) as served:
        monkeypatch.setattr(Blocks, "is_whole", lambda *_: pytest.fail("a block is compared by a look-up"))
        monkeypatch.setattr(BlockChecks, "_is_whole", lambda *_: pytest.fail("a block is compared by a look-up"))
        found = served.lake.table("a.keyed").lookup(pa.table({"id": range(0, KEYS, 7)}))
        assert len(found) == len(range(0, KEYS, 7))


def test_logs_are_left_alone(folder: Path) -> None:
    with Served(folder) as served:
        assert not segment_of(served, "a.log")._body.is_needless


def test_it_goes_on_while_the_journal_is_replayed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = threading.Event()
    ahead, entries = Segment.verify_ahead, recovery._entries

    def told(segment: Segment, goes_on: Callable[[int], bool]) -> None:
        ahead(segment, goes_on)
        compared.set()

    def replayed(*journal: object) -> Iterator[object]:
        assert compared.wait(20), "segments are compared before the journal is replayed to its end"
        yield from entries(*journal)  # type: ignore[arg-type]

    monkeypatch.setattr(Segment, "verify_ahead", told)
    monkeypatch.setattr(recovery, "_entries", replayed)
    with Served(folder) as served:
        assert segment_of(served, "a.keyed")._body.is_needless


class Endless:
    """Files that would be compared for ever, so many bytes at a time, for so many seconds."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int, seconds: float) -> None:
        begin, is_begun, waits = VerifyAhead.begin, threading.Event(), []

        def endless(_: Run | Segment, goes_on: Callable[[int], bool]) -> None:
            while goes_on(nbytes):
                is_begun.set()
                time.sleep(0.001)

        def noted(threads: Sequence[Future[None]], seconds: float) -> None:
            waits.append(seconds)
            wait(threads, seconds)

        self.waits: list[float] = waits
        """The times for which its end waited."""
        with monkeypatch.context() as patched:
            patched.setattr(VerifyAhead, "begin", lambda *_: None)
            patched.setattr(scrub, "wait", noted)
            with Served(folder) as served:
                patched.setattr(Segment, "verify_ahead", endless)
                ahead = VerifyAhead(seconds)
                begin(ahead, served.engine.view, ())
                assert is_begun.wait(20)
                waits.clear()
                ahead.end()
                assert not segment_of(served, "a.keyed")._body.is_needless
                assert not wait(ahead._threads, 20).not_done, "no thread goes on"


def test_it_ends_when_its_time_is_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Endless(folder, monkeypatch, nbytes=1 << 20, seconds=2.0).waits == [0.4, 1.6]


def test_what_gets_nowhere_is_not_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Endless(folder, monkeypatch, nbytes=0, seconds=0.5).waits == [0.1]


def test_what_a_thread_reads_as_the_time_ends_holds_no_start_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, is_read = threading.Event(), threading.Event()

    def slow(_: Run | Segment, goes_on: Callable[[int], bool]) -> None:
        reads.set()
        assert is_read.wait(20)
        assert not goes_on(1)

    end = VerifyAhead.end
    monkeypatch.setattr(VerifyAhead, "end", lambda ahead: reads.wait(20) and end(ahead))
    monkeypatch.setattr(Segment, "verify_ahead", slow)
    with Served(folder) as served:
        assert served.lake.table("a.keyed").lookup([{"id": 7}]).num_rows == 1
        is_read.set()


def _verifying() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("verify-ahead")}


def test_a_start_that_fails_ends_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("the journal cannot be read")

    monkeypatch.setattr(recovery, "_entries", fails)
    with pytest.raises(OSError, match="the journal cannot be read"):
        Served(folder)
    assert not _verifying()
    monkeypatch.undo()
    with Served(folder) as served:
        assert served.lake.table("a.keyed").lookup([{"id": 7}]).num_rows == 1


def test_a_start_that_is_interrupted_while_it_waits_lets_go_of_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook keeps the exception, and with it all that the start had made."""
    before = _verifying()

    def interrupted(ahead: VerifyAhead) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(VerifyAhead, "end", interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:
        Served(folder)
    monkeypatch.undo()
    assert _verifying() <= before, kept
    with Served(folder) as served:
        assert served.lake.table("a.keyed").lookup([{"id": 7}]).num_rows == 1


def test_a_damaged_block_stops_no_start_and_is_told_to_its_readers(folder: Path) -> None:
    text = b"0" * 29 + b"7"
    (path,) = [each for each in folder.rglob("*") if each.is_file() and text in each.read_bytes()]
    path.write_bytes(path.read_bytes().replace(text, b"9" + text[1:]))
    with Served(folder) as served:
        with pytest.raises(Corrupt):
            served.lake.table("a.keyed").lookup([{"id": 7}])
        assert served.lake.table("a.keyed").lookup([{"id": KEYS // 2}]).num_rows == 1
