"""A server on an empty folder copies a checkpoint from another one, if the journal's beginning is gone."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Corrupt, Denied, Exhausted, Invalid, LakestoreError, OtherTimeline, Unavailable
from lakestore.limits import Limits
from lakestore.union.verify import verify
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.access.callers import Access
from lakestore_server.edge.peer_channel import PeerChannel
from lakestore_server.edge.tls import TlsKeys
from lakestore_server.files import checkpoint, data_folder
from lakestore_server.files.data_folder import COPY_MARK, RESTORING, SEGMENTS
from lakestore_server.host.clock import RealClock
from lakestore_server.host.disk import RealDisk
from lakestore_server.journals import shared_journal
from lakestore_server.journals.shared_journal import SharedJournal
from lakestore_server.operate import first_copy
from lakestore_server.operate.copy_verbs import CopyPace
from lakestore_server.operate.first_copy import FirstCopy
from lakestore_server.settings import Tls
from lakestore_server.state.commit_record import COPIES
from lakestore_server.state.judge import ForeignLog
from tests.support.certificates import Authority
from tests.support.replicas import LEASE_SECONDS, MemoryEnd, Replicas
from tests.support.waiting import until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.binary())])
ROWS = 200
NO_RESERVE = Limits(disk_free_bytes=0)
Wire = Callable[[str, pb.CopyCheckpointRequest], Iterator[pb.CopyPiece]]


def rows(first: int, count: int = ROWS, nbytes: int = 20_000) -> pa.Table:
    """Rows that do not compress."""
    chance = np.random.default_rng(first)
    values = [chance.bytes(nbytes) for _ in range(count)]
    return pa.table([pa.array(range(first, first + count)), pa.array(values, pa.binary())], schema=SCHEMA)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Replicas]:
    """One server with 8 MB in three tables. The journal's beginning is gone."""
    with Replicas(tmp_path, count=1) as replicas, ls.connect(replicas.address(0)) as lake:
        lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2).upsert(rows(0))
        lake.create_table("a.log", SCHEMA, buckets=1).append(rows(0))
        replicas.servers[0].upkeep.checkpoint()
        lake.create_table("a.small", SCHEMA, buckets=1).append(rows(0, 3, 10))
        replicas.servers[0].upkeep.checkpoint()
        assert replicas.first > 0
        yield replicas


def direct(address: str, request: pb.CopyCheckpointRequest) -> Iterator[pb.CopyPiece]:
    """The wire as it is."""
    open_access = Access(None, RealClock(), b"")
    return PeerChannel(open_access.server_token, None).copy_checkpoint(address, request)


def copy_of(replicas: Replicas, folder: Path, wire: Wire = direct, **changed: Any) -> FirstCopy:
    """A copy that is ready to run."""
    folder.mkdir(exist_ok=True)
    journal = SharedJournal(MemoryEnd(replicas.log), RealClock(), LEASE_SECONDS)
    parts: dict[str, Any] = {
        "folder": folder,
        "disk": RealDisk(),
        "limits": NO_RESERVE,
        "journal": journal,
        "address": "new:7340",
        "pieces": wire,
        "clock": RealClock(),
        "sleep": lambda _: None,
    }
    return FirstCopy(**{**parts, **changed})


class BrokenWire:
    """A wire that breaks once, after some pieces, or changes one."""

    def __init__(self, after: int, change: Callable[[pb.CopyPiece], None] | None = None) -> None:
        self.after, self.change, self.is_done = after, change, False
        self.requests: list[pb.CopyCheckpointRequest] = []
        self.sent: list[int] = []
        """Bytes of each try."""

    def __call__(self, address: str, request: pb.CopyCheckpointRequest) -> Iterator[pb.CopyPiece]:
        self.requests.append(request)
        self.sent.append(0)
        for number, piece in enumerate(direct(address, request)):
            if number == self.after and not self.is_done:
                self.is_done = True
                if self.change is None:
                    raise Unavailable("the wire is cut")
                self.change(piece)
            self.sent[-1] += len(piece.data)
            yield piece


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def assert_complete(folder: Path) -> None:
    """The folder is ready for a start, and every segment is whole."""
    disk = RealDisk()
    assert not (folder / RESTORING).exists()
    content = checkpoint.newest(disk, folder)
    assert content is not None
    view = content.state(disk, folder).view
    for state in view.tables.values():
        for log in state.logs:
            for chunk in log.chunks:
                chunk.check_all()  # type: ignore[attr-defined]
    assert not [path for path in folder.rglob("*.tmp")]


def test_a_server_on_an_empty_folder_copies_follows_and_leads(peer: Replicas) -> None:
    peer.start(1)
    first, second = (server.engine for server in peer.servers)
    assert first.timeline == second.timeline
    until(lambda: second.view.lsn == first.view.lsn, "the new server has every commit")
    peer.depose()
    assert peer.leader() == 1
    with ls.connect(peer.addresses) as lake:
        table = lake.table("a.t")
        assert table.scan().count() == ROWS
        table.upsert(rows(7, 1, 5))
        assert table.lookup([{"id": 7}, {"id": 8}]).num_rows == 2, "the rebuilt index knows every key"
        assert verify(lake.transport, "a.t").same
    assert all(each.lsn != COPIES for each in second.loop.journal.replicas), "its own reports replace the peer's"


def test_a_copy_that_broke_off_goes_on_where_it_was(peer: Replicas, tmp_path: Path) -> None:
    wire = BrokenWire(after=3)
    copy_of(peer, tmp_path / "new", wire).run()
    assert_complete(tmp_path / "new")
    first, second = wire.requests
    assert not first.files
    assert sum(file.size for file in second.files) == wire.sent[0] > 0
    assert wire.sent[0] + wire.sent[1] == size_of(tmp_path / "new"), "no byte is sent twice"


def test_a_copier_that_was_killed_goes_on_with_a_newer_checkpoint(peer: Replicas, tmp_path: Path) -> None:
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    wire = BrokenWire(after=4)
    with pytest.raises(KeyboardInterrupt):
        copy_of(peer, tmp_path / "new", wire, sleep=stop).run()
    assert (tmp_path / "new" / RESTORING).read_bytes() == COPY_MARK
    stray = tmp_path / "new" / SEGMENTS / "stray"
    stray.mkdir()
    (stray / "1-2.seg").write_bytes(b"of another checkpoint")
    with ls.connect(peer.address(0)) as lake:
        lake.table("a.log").append(rows(1_000))
        copy_of(peer, tmp_path / "new", wire).run()
        assert_complete(tmp_path / "new")
        assert not list(stray.glob("*"))
        kept = sum(file.size for file in wire.requests[1].files if (tmp_path / "new" / file.path).exists())
        assert wire.sent[1] == size_of(tmp_path / "new") - kept, "files that both checkpoints name are not sent again"
        peer.start_on(tmp_path / "new")
        newest = peer.servers[-1].engine
        until(lambda: newest.view.lsn == peer.servers[0].engine.view.lsn, "the new server has every commit")
    with ls.connect(peer.servers[-1].about["grpc"]) as lake:
        assert lake.table("a.log").scan().count() == 2 * ROWS


@pytest.mark.parametrize("where", ["wire", "disk"])
def test_a_flipped_byte_is_copied_again(where: str, peer: Replicas, tmp_path: Path) -> None:
    def flip(piece: pb.CopyPiece) -> None:
        data = bytearray(piece.data)
        data[len(data) // 2] ^= 1
        piece.data = bytes(data)

    def flip_disk(_: float) -> None:
        file = next((tmp_path / "new" / SEGMENTS).rglob("*.seg"))
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)

    wire = BrokenWire(2, flip) if where == "wire" else BrokenWire(4)
    sleep = (lambda _: None) if where == "wire" else flip_disk
    copy = copy_of(peer, tmp_path / "new", wire, sleep=sleep)
    copy.run()
    assert len(wire.requests) == 2
    assert_complete(tmp_path / "new")


def test_a_full_disk_ends_the_copy_with_a_sentence_and_keeps_it(peer: Replicas, tmp_path: Path) -> None:
    class FullDisk(RealDisk):
        """Full from the third file on."""

        files = 0

        def create(self, path: Path, *, is_cached: bool = True) -> Any:
            self.files += 1
            if self.files == 4:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().create(path, is_cached=is_cached)

    with pytest.raises(Exhausted, match="is full: free space and start again"):
        copy_of(peer, tmp_path / "new", disk=FullDisk()).run()
    limits = Limits(disk_free_bytes=1 << 50)
    with pytest.raises(Exhausted, match=r"needs [\d,]+ MB more on the disk"):
        copy_of(peer, tmp_path / "new", limits=limits).run()
    wire = BrokenWire(10**6)
    copy_of(peer, tmp_path / "new", wire).run()
    assert wire.requests[0].files, "what was there is kept"
    assert_complete(tmp_path / "new")


def test_the_journal_waits_for_the_copy_and_an_hour_more(peer: Replicas, tmp_path: Path) -> None:
    held: list[int] = []

    def write(_: pb.CopyPiece) -> None:
        with ls.connect(peer.address(0)) as lake:
            for _step in range(3):
                lake.table("a.small").append(rows(0, 3, 10))
                peer.servers[0].upkeep.checkpoint()
        held.append(peer.first)

    copy_of(peer, tmp_path / "new", BrokenWire(2, write)).run()
    first = held[0]
    with ls.connect(peer.address(0)) as lake:
        lake.table("a.small").append(rows(0, 3, 10))
    peer.servers[0].upkeep.checkpoint()
    content = checkpoint.newest(RealDisk(), tmp_path / "new")
    assert content is not None
    position = int(content.place.split("/")[1].rsplit(".", 1)[1])
    assert position < len(peer.log.messages) - 10
    assert first <= position, "three checkpoints of the leader during the copy removed nothing that it needs"
    assert peer.first <= position, "nor did one after the copy and before the start"
    roles = {each.address: each.role for each in peer.servers[0].service.status.now(()).journal.replicas}
    assert roles["new:7340"] == "copying"
    peer.start_on(tmp_path / "new")


def test_a_peer_that_is_gone_is_replaced_by_another(peer: Replicas, tmp_path: Path) -> None:
    peer.start(1)
    until(lambda: len(copy_of(peer, tmp_path / "new").journal.peers("")) == 2, "both have reported")
    asked: list[str] = []

    def wire(address: str, request: pb.CopyCheckpointRequest) -> Iterator[pb.CopyPiece]:
        asked.append(address)
        for number, piece in enumerate(direct(address, request)):
            if number == 3 and len(asked) == 1:
                peer.cut(1)
                raise Unavailable("the machine is gone")
            yield piece

    copy_of(peer, tmp_path / "new", wire).run()
    assert asked == [peer.address(1), peer.address(0)], "followers are asked first, then the leader"
    assert_complete(tmp_path / "new")


def test_servers_are_found_behind_thousands_of_other_messages(
    peer: Replicas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = MemoryEnd(peer.log)
    for _ in range(25):
        end.send(b"a stranger's message", lambda _: None)
    monkeypatch.setattr(shared_journal, "RECENT_MESSAGES", 2)
    journal = copy_of(peer, tmp_path / "new").journal
    assert journal.peers("") == [peer.address(0)]
    assert journal.peers(peer.address(0)) == []


@pytest.mark.parametrize("trusts", [True, False])
def test_a_copy_by_tls_trusts_the_authority_alone(trusts: bool, tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    authority, other = Authority(tmp_path / "keys"), Authority(tmp_path / "keys", "other")
    own = authority.sign("server")
    tls = Tls(cert=str(own.cert), key=str(own.key), client_ca=str(authority.cert), peer_ca=str(authority.cert))
    with Replicas(tmp_path, count=1, tls=tls) as replicas:
        client = ls.TLS(ca=authority.cert, cert=own.cert, key=own.key)
        with ls.connect(replicas.address(0), tls=client) as lake:
            lake.create_table("a.t", SCHEMA, buckets=1).append(rows(0, 3, 10))
        for _ in range(2):
            replicas.servers[0].upkeep.checkpoint()
        assert replicas.first > 0
        keys = TlsKeys(own.cert, own.key, ca=(authority if trusts else other).cert)
        channel = PeerChannel(Access(None, RealClock(), b"").server_token, keys)
        pieces = channel.copy_checkpoint(replicas.address(0), pb.CopyCheckpointRequest(address="new:1"))
        if not trusts:
            with pytest.raises(Unavailable):
                next(pieces)
            return
        assert next(pieces).files
        pieces.close()  # type: ignore[attr-defined]
        replicas.start(1)
        with ls.connect(replicas.address(1), tls=client) as lake:
            assert lake.table("a.t").scan().count() == 3


def test_without_another_server_the_start_is_refused(peer: Replicas, tmp_path: Path) -> None:
    copy = copy_of(peer, tmp_path / "new", peerless_seconds=0.0, address=peer.address(0))
    with pytest.raises(ForeignLog, match="no other server has reported in it"):
        copy.run()


@pytest.fixture
def late(tmp_path: Path) -> Iterator[Replicas]:
    """Two servers, of which the second is stopped. The messages after its checkpoint are gone."""
    with Replicas(tmp_path, count=2) as replicas, ls.connect(replicas.address(0)) as lake:
        table = lake.create_table("a.t", SCHEMA, primary_key=["id"], buckets=2)
        token = table.upsert(rows(0))
        with ls.connect(replicas.address(1), reads="follower") as other:
            assert other.table("a.t").scan(at=token).count() == ROWS
        replicas.servers[1].upkeep.checkpoint()
        replicas.stop(replicas.servers[1], replicas.ends[1])
        table.delete([{"id": 0}])
        table.upsert(rows(1_000, 5))
        replicas.servers[0].upkeep.checkpoint()
        replicas.ends[0].remove_before(len(replicas.log.messages))
        yield replicas


def test_a_server_that_was_away_for_too_long_copies_again(late: Replicas, tmp_path: Path) -> None:
    late.start(1)
    with ls.connect(late.address(2), reads="follower") as lake:
        assert lake.table("a.t").scan().count() == ROWS + 4
        found = lake.table("a.t").lookup([{"id": 0}, {"id": 1_004}])
        assert found["id"].to_pylist() == [1_004]
    late.stop(late.servers[2], late.ends[2])
    late.start(1)  # it needs nothing that is gone
    with ls.connect(late.address(3), reads="follower") as lake:
        assert lake.table("a.t").scan().count() == ROWS + 4


def test_the_folder_of_a_server_that_was_away_is_left_until_another_one_answers(late: Replicas, tmp_path: Path) -> None:
    def silent(_: str, __: pb.CopyCheckpointRequest) -> Iterator[pb.CopyPiece]:
        yield from ()
        raise Denied("no")

    before = {path: path.read_bytes() for path in (tmp_path / "1").rglob("*") if path.is_file()}
    copy = copy_of(late, tmp_path / "1", silent)
    assert first_copy.is_due(RealDisk(), tmp_path / "1", copy.journal)
    with pytest.raises(Denied):
        copy.run()
    assert {path: path.read_bytes() for path in (tmp_path / "1").rglob("*") if path.is_file()} == before


def test_a_copy_is_slow_while_commits_come(tmp_path: Path) -> None:
    limits = Limits(clock_confirm_seconds=0, copy_bytes=8_000_000)
    with Replicas(tmp_path, count=1, limits=limits) as replicas, ls.connect(replicas.address(0)) as lake:
        lake.create_table("a.t", SCHEMA, buckets=2).append(rows(0))
        log = lake.create_table("a.log", SCHEMA, buckets=1)
        replicas.servers[0].upkeep.checkpoint()
        replicas.ends[0].remove_before(1)
        is_over = threading.Event()

        def write() -> None:
            while not is_over.is_set():
                log.append([{"id": 0}])

        writer = threading.Thread(target=write)
        writer.start()
        copy = copy_of(replicas, tmp_path / "new")
        copy.run()
        is_over.set()
        writer.join()
        assert copy.progress.total > 4_000_000
        assert copy.progress.seconds > 0.2, "the first piece of 2 MB alone takes a quarter of a second"


def test_while_commits_come_the_copy_keeps_its_rate() -> None:
    pace = CopyPace(100, 10.0, lsn=5)
    assert pace.wait(50, 10.0, 5) == pytest.approx(0.5), "clients may write"
    assert pace.wait(50, 11.0, 5) == 0.0, "nobody has written for a second"
    assert [pace.wait(50, 11.1, 6), pace.wait(50, 11.6, 6)] == [pytest.approx(0.4), pytest.approx(0.4)]
    assert pace.wait(50, 13.0, 6) == 0.0
    waits = [pace.wait(10, 30.0, 7) for _ in range(3)]
    assert waits == [0.0, pytest.approx(0.0), pytest.approx(0.1)], "a tenth of a second is made up, no more"
    assert CopyPace(0, 10.0, lsn=5).wait(50, 10.0, 6) == 0.0


@pytest.mark.parametrize("error", [Denied, Invalid, OtherTimeline])
def test_a_refusal_of_every_server_ends_the_start(error: type[LakestoreError], peer: Replicas, tmp_path: Path) -> None:
    def refuse(_: str, __: pb.CopyCheckpointRequest) -> Iterator[pb.CopyPiece]:
        yield from ()
        raise error("no")

    with pytest.raises(error):
        copy_of(peer, tmp_path / "new", refuse).run()


@pytest.mark.parametrize("path", ["segments/../../x/y", "segments/a/../b", "/etc/passwd", "lock", "segments/a/b/c"])
def test_a_list_with_a_file_elsewhere_is_refused(path: str, peer: Replicas, tmp_path: Path) -> None:
    def wire(_: str, __: pb.CopyCheckpointRequest) -> Iterator[pb.CopyPiece]:
        files = [pb.CopyFile(path=path, size=1), pb.CopyFile(path=checkpoint.name_of(3), size=1)]
        yield pb.CopyPiece(files=files)

    copy = copy_of(peer, tmp_path / "new", wire)
    with pytest.raises(Corrupt, match="not a checkpoint with its segments"):
        copy._copy("there:1", "t", wire)
    assert sorted(each.name for each in (tmp_path / "new").iterdir()) == []


def test_a_half_copied_folder_serves_no_journal_in_files(tmp_path: Path) -> None:
    folder = tmp_path / "half"
    folder.mkdir()
    (folder / RESTORING).write_bytes(COPY_MARK)
    with pytest.raises(Invalid, match="holds a part of a copy from another server"):
        ls.open(folder)
    (folder / RESTORING).write_bytes(b"")
    with pytest.raises(Invalid, match="unfinished restore"):
        ls.open(folder)


def test_a_journal_with_its_beginning_needs_no_copy(tmp_path: Path) -> None:
    with Replicas(tmp_path, count=1) as replicas:
        assert replicas.first == 0
        journal = SharedJournal(MemoryEnd(replicas.log), RealClock(), LEASE_SECONDS)
        assert not first_copy.is_due(RealDisk(), tmp_path / "new", journal)
        replicas.start(1)
        assert not data_folder.is_half_copied(tmp_path / "1")


def test_a_server_alone_gives_no_copy(tmp_path: Path) -> None:
    with ls.open(tmp_path / "own") as lake, pytest.raises(Invalid, match="journal of this server is in files"):
        list(lake.transport.copy_checkpoint(pb.CopyCheckpointRequest(address="a:1")))
