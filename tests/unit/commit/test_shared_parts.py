"""Uploaded parts in a warehouse that several servers share: stores of two servers over one place."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from lakestore.errors import Conflict, Corrupt, Exhausted, Invalid, NotFound, Unavailable
from lakestore.limits import Limits
from lakestore.rows.ipc import crc32c
from lakestore.v1 import lakestore_pb2 as pb
from lakestore_server.catalog.metadata_store import ObjectStorage
from lakestore_server.catalog.shared_parts import PartObjects, shared_parts
from lakestore_server.commit.parts import ASKED_ONE_BY_ONE, LIST_SECONDS, PartStore
from lakestore_server.files import part_file
from lakestore_server.files.part_file import PartFiles, PartFolder, PartHead
from lakestore_server.journals.store_errors import StoreRefusal

SECOND = 1_000_000
LIMITS = Limits(part_seconds=60, parts=400, parts_bytes=1 << 20)


class Place:
    """`PartFiles` that notes the calls, and whose store may be away or lose answers."""

    is_shared = True

    def __init__(self, inner: PartFiles) -> None:
        self._inner, self.at_once = inner, inner.at_once
        self.calls: list[str] = []
        self.is_away = self.loses_answers = self.refuses = False
        self.removes: Callable[[], None] = lambda: None
        """Called before a part is read."""

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.is_away:
            raise OSError(errno.EIO, "the store is away")
        if self.refuses:
            raise StoreRefusal("the keys may not use s3://a/b")

    def sizes(self) -> dict[str, int]:
        self._call("sizes")
        return self._inner.sizes()

    def put(self, head: PartHead, rows: bytes) -> None:
        self._call("put")
        self._inner.put(head, rows)
        if self.loses_answers:
            raise OSError("the answer is lost")

    def head(self, part: str) -> PartHead:
        self._call("head")
        return self._inner.head(part)

    def read(self, part: str) -> bytes:
        self._call("read")
        self.removes()
        return self._inner.read(part)

    def remove(self, names: Collection[str]) -> None:
        self._call("remove")
        self._inner.remove(names)


@pytest.fixture(params=["folder", "objects"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "folder":
        yield Place(shared_parts(f"file://{tmp_path}/a%20warehouse", "t"))
        return
    yield Place(PartObjects(ObjectStorage("memory://"), "memory:///lake/.lakestore/parts/t"))


def server(place: Place, *committed: str, limits: Limits = LIMITS) -> PartStore:
    """A server that begins to lead."""
    made = PartStore(place, limits, committed, 0)
    made.relist()
    return made


def upload(store: PartStore, rows: bytes = b"rows", owner: str = "etl", time_us: int = SECOND) -> str:
    change = pb.Change(table="a.log", kind=pb.APPEND, rows=rows, crc32c=crc32c(rows), table_uuid="u", keep=["v"])
    return store.store(change, 1, owner, time_us).id


def rows_of(store: PartStore, *parts: str, owner: str = "etl") -> list[bytes]:
    heads = store.reserve(parts, owner)
    try:
        return list(store.rows(list(heads.values())))
    finally:
        store.release(parts)


def test_the_next_leader_has_the_parts_in_order(place: Place) -> None:
    first, second = server(place), server(place)
    parts = [upload(first, f"rows {number}".encode() * 400) for number in range(20)]
    assert rows_of(second, *parts) == [f"rows {number}".encode() * 400 for number in range(20)]
    assert second.reserve(parts[:1], "etl")[parts[0]] == first.reserve(parts[:1], "etl")[parts[0]], "the same head"
    with pytest.raises(NotFound, match="no part"):
        second.reserve(parts[1:2], "another")
    assert second.drop(parts[1:2], "another") == 0
    assert second.drop(parts[1:3], "etl") == 2
    with pytest.raises(NotFound, match="upload its rows again"):
        rows_of(server(place), parts[1])


def test_names_that_are_no_ids_are_not_looked_for(place: Place) -> None:
    store = server(place)
    for name in ("../../etc/passwd", "a" * 51, "", "x" * 52):
        with pytest.raises(NotFound):
            store.reserve([name], "etl")
    assert place.calls == []


def test_room_counts_the_parts_of_all_leaders(place: Place) -> None:
    limits = Limits(parts=4, parts_bytes=1 << 20, part_seconds=60)
    for owner in ("etl", "etl", "bi"):
        upload(server(place, limits=limits), owner=owner)
    store = server(place, limits=limits)
    with pytest.raises(Exhausted, match="etl would have more than 2 parts"):
        upload(store)
    upload(store, owner="bi")
    assert store.count == 4
    with pytest.raises(Exhausted, match="more than 4 parts"):
        upload(store, owner="third")
    for part in [name.removesuffix(part_file.SUFFIX) for name in place.sizes()]:
        server(place, limits=limits).drop([part], "etl")
    store.relist()
    assert upload(store)
    assert (store.count, store.nbytes) == (3, sum(each.nbytes for each in store._parts.values()))


def test_a_committed_part_is_known_at_every_server_until_its_file_is_gone(place: Place) -> None:
    leader, follower = server(place), server(place)
    part = upload(leader)
    for store in (leader, follower):
        store.committed([part])
    assert follower.clear(removes=False) == (part,), "its checkpoint names it: only a leader removes"
    for store in (follower, server(place, part)):
        with pytest.raises(Conflict, match="committed before"):
            store.reserve([part], "etl")
    leader.relist()
    upload(leader)
    assert part not in leader._parts, "a list does not bring it back"
    assert leader.drop(list(leader._parts), "etl") == 1
    place.is_away = True
    assert leader.clear(removes=True) == (part,), "a store that is away stops no checkpoint"
    place.is_away = False
    with pytest.raises(Conflict, match="committed before"):
        leader.reserve([part], "etl")
    assert leader.clear(removes=True) == ()
    assert place.sizes() == {}
    assert follower.clear(removes=False) == ()
    for store in (leader, follower, server(place)):
        with pytest.raises(NotFound):
            rows_of(store, part)


def test_a_request_learns_that_another_server_has_committed_its_part(place: Place) -> None:
    """It took the part while its server led, and the server led again after another one."""
    leader, other = server(place), server(place)
    part = upload(leader)
    leader.reserve([part], "etl")
    leader.check_uncommitted([part])
    for store in (other, leader):
        store.committed([part])
    assert other.clear(removes=True) == leader.clear(removes=False) == ()
    with pytest.raises(Conflict, match="committed before"):
        leader.check_uncommitted([part])
    leader.release([part])
    assert leader.clear(removes=False) == ()
    leader.check_uncommitted([part])


def test_a_part_that_another_server_removed_meanwhile_is_not_there(place: Place) -> None:
    leader, other = server(place), server(place)
    part = upload(leader)
    place.removes = lambda: place.remove([part_file.name_of(part)])
    with pytest.raises(NotFound, match="upload its rows again"):
        rows_of(leader, part)
    assert leader.count == 0
    with pytest.raises(NotFound):
        rows_of(other, part)


def test_many_unknown_parts_are_listed_and_not_asked_one_by_one(place: Place) -> None:
    first, second = server(place), server(place)
    parts = [upload(first) for _ in range(ASKED_ONE_BY_ONE + 10)]
    place.calls.clear()
    assert second.bytes_of(parts) == len(parts) * len(b"rows")
    assert (place.calls.count("sizes"), place.calls.count("head")) == (1, len(parts))
    absent = [f"{'0' * 12}{number:040x}" for number in range(1_000)]
    place.calls.clear()
    with pytest.raises(NotFound):
        second.reserve(absent, "etl")
    assert place.calls.count("head") == 0


def test_parts_go_by_age_also_those_that_a_paused_leader_stored_late(place: Place) -> None:
    old, new = server(place), server(place)
    first = upload(old, time_us=10 * SECOND)
    assert new.expire(20 * SECOND) == 0
    assert new.count == 1
    late = upload(old, time_us=21 * SECOND)
    assert new.expire(70 * SECOND) == 1
    with pytest.raises(NotFound):
        rows_of(new, first)
    assert rows_of(new, late) == [b"rows"]
    new = server(place)
    new.expire(0)
    later = upload(old, time_us=22 * SECOND)
    assert new.expire(round(LIST_SECONDS + 1) * SECOND) == 2
    assert place.sizes() == {}
    assert later not in new._parts


def test_a_store_that_is_away_is_unavailable_and_changes_nothing(place: Place) -> None:
    store = server(place)
    part = upload(store)
    place.is_away = True
    unknown = f"{'0' * 12}{1:040x}"
    for call in (
        lambda: upload(store),
        lambda: upload(server(place)),
        lambda: store.reserve([unknown], "etl"),
        lambda: store.bytes_of([unknown]),
        lambda: rows_of(store, part),
        lambda: store.drop([unknown], "etl"),
    ):
        with pytest.raises(Unavailable, match="warehouse"):
            call()
    assert store.expire(1 << 50) == 0
    place.is_away = False
    assert store.expire(SECOND) == 0
    assert (store.count, rows_of(store, part)) == (1, [b"rows"])


def test_a_store_that_refuses_is_not_said_to_be_away(place: Place) -> None:
    store = server(place)
    part = upload(store)
    place.refuses = True
    for call in (
        lambda: upload(store),
        lambda: rows_of(store, part),
        lambda: store.reserve([f"{'0' * 12}{1:040x}"], "e"),
    ):
        with pytest.raises(Invalid, match="the store of the warehouse refuses uploaded parts: the keys may not use"):
            call()
    assert store.expire(1 << 50) == 0
    place.refuses = False
    assert rows_of(store, part) == [b"rows"]


def test_an_upload_without_an_answer_leaves_a_part_that_goes_by_age(place: Place) -> None:
    store = server(place)
    upload(store)
    place.loses_answers = True
    with pytest.raises(Unavailable):
        upload(store)
    assert (store.count, len(place.sizes())) == (1, 2)
    assert store.nbytes == len(b"rows")
    assert store.expire(1 << 50) == 2
    assert place.sizes() == {}


def test_a_damaged_part_is_refused_by_its_name(place: Place) -> None:
    store = server(place)
    part, whole = upload(store), upload(store)
    inner = place._inner
    data, name = bytearray(inner.read(part)), part_file.name_of(part)
    data[70] ^= 1
    inner.remove([name])
    if isinstance(inner, PartObjects):
        inner._storage.write_new(inner._location(name), bytes(data))
    else:
        assert isinstance(inner, PartFolder)
        (inner._folder / name).write_bytes(data)
    other = server(place)
    with pytest.raises(Corrupt, match=part):
        other.reserve([part, whole], "etl")
    assert rows_of(other, whole) == [b"rows"]
    assert other.expire(30 * SECOND) == 0, "it has the age that its id says"
    assert other.expire(70 * SECOND) == 2


def test_a_file_that_a_dead_server_did_not_complete_goes_by_age(tmp_path: Path) -> None:
    place = Place(shared_parts(str(tmp_path), "t"))
    store = server(place)
    part = upload(store, time_us=100 * SECOND)
    folder = tmp_path / ".lakestore" / "parts" / "t"
    aside = folder / f"{part_file.name_of(part)}{part_file.ASIDE}"
    aside.write_bytes(b"half")
    assert server(place).expire(159 * SECOND) == 0
    assert aside.exists()
    server(place).expire(160 * SECOND)
    assert list(folder.iterdir()) == []
