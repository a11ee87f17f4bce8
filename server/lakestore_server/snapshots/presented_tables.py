"""Presented tables: loads of a table at its head or at a position, as answers of the Iceberg REST protocol.

- A load of a cut in lease is answered from memory.
- For another cut the snapshot builder writes files, for one table at a time, and once for all waiting loads
  (`SingleFlight`).
- A load shows every commit that was acknowledged before the load began.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import orjson

from lakestore.errors import Exhausted, Invalid, NotFound, Unavailable
from lakestore.iceberg import places
from lakestore.model import times
from lakestore.model.table import Table
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.row_messages import RowMessage
from lakestore_server.catalog import our_tables
from lakestore_server.catalog.catalog import Catalog
from lakestore_server.catalog.errors import NoSuchTable
from lakestore_server.catalog.schemas import Json
from lakestore_server.commit.engine import Engine
from lakestore_server.host.clock import Clock
from lakestore_server.host.worker import Worker
from lakestore_server.read import readable_from
from lakestore_server.read.completeness import Completeness
from lakestore_server.read.leases import Leases
from lakestore_server.read.plan import Plans, metadata_of, usable_tier, without_lake
from lakestore_server.read.positions import lsn_at, reached
from lakestore_server.snapshots import document, messages
from lakestore_server.snapshots.cut_key import CutKey, is_same
from lakestore_server.snapshots.document import EmptyDocument
from lakestore_server.snapshots.figures import KEPT, NEW, SAME, PresentStatus, SnapshotFigures
from lakestore_server.snapshots.held_cuts import HeldCut, HeldCuts
from lakestore_server.snapshots.upkeep import BuilderProcess, SnapshotUpkeep
from lakestore_server.snapshots.warehouse import Folders, machine_of
from lakestore_server.state import swaps
from lakestore_server.state.view import TableState, View

T = TypeVar("T")


class Flight(Generic[T]):
    """One build in progress, which several loads may wait for."""

    def __init__(self) -> None:
        self.lsn: int | None = None
        """The LSN of the view that the build uses; None as long as it has not chosen one."""
        self.result: Future[T] = Future()

    def covers(self, lsn: int) -> bool:
        """Whether the result contains everything that a view at `lsn` has."""
        return self.lsn is None or self.lsn >= lsn


class SingleFlight(Generic[T]):
    """The builds in progress on one server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[Hashable, Flight[T]] = {}

    def joined(self, what: Hashable, lsn: int, fly: Callable[[Flight[T]], T]) -> T | None:
        """Wait for a build that covers `lsn`; `fly` starts one if none is in progress.

        None if a build ended that does not cover `lsn`: the caller looks again, since that build's result may do. `fly`
        must choose its view by `look`.
        """
        with self._lock:
            flight = self._flights.get(what)
            is_mine = flight is None
            if flight is None:
                flight = self._flights[what] = Flight()
            is_covering = flight.covers(lsn)
        if is_mine:
            return self._flown(what, flight, fly)
        if is_covering:
            return flight.result.result()
        flight.result.exception()  # only waits: the result does not matter
        return None

    def look(self, flight: Flight[T], view_of: Callable[[], View]) -> View:
        """Choose the view of a build and record its LSN. From now on, loads that need a newer view do not join."""
        with self._lock:
            view = view_of()
            flight.lsn = view.lsn
            return view

    def _flown(self, what: Hashable, flight: Flight[T], fly: Callable[[Flight[T]], T]) -> T:
        try:
            result = fly(flight)
        except BaseException as error:
            self._over(what)
            flight.result.set_exception(error)
            raise
        self._over(what)
        flight.result.set_result(result)
        return result

    def _over(self, what: Hashable) -> None:
        with self._lock:
            del self._flights[what]


UNTIL = f"until-{uuid.uuid4().hex}"
"""A placeholder in a document, replaced by the end of the lease."""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The kept answer to loads of one presented cut."""

    etag: str
    head: bytes
    tail: bytes

    @staticmethod
    def of(doc: Json, etag: str, location: str) -> KeptAnswer:
        """Keep a document that contains `UNTIL` once. `location` is the file that contains the document too."""
        # `config` is empty: DuckDB takes any key in it for storage credentials.
        data = orjson.dumps({"metadata-location": location, "metadata": doc, "config": {}})
        head, _, tail = data.partition(UNTIL.encode())
        return KeptAnswer(etag, head, tail)

    def body(self, until: str) -> bytes:
        """The answer's bytes, with the end of the lease."""
        return b"".join((self.head, until.encode(), self.tail))

    @property
    def nbytes(self) -> int:
        """Approximate bytes in memory."""
        return len(self.head) + len(self.tail)


NO_CONFIG = b'"config":{}}'
"""The end of each kept answer."""


def with_keys(body: bytes, keys: Json) -> bytes:
    """An answer with `config` and `storage-credentials`."""
    assert body.endswith(NO_CONFIG)
    return body if not keys else b"".join((memoryview(body)[: -len(NO_CONFIG)], orjson.dumps(keys)[1:]))


class KeptAnswers:
    """A cache of answers by cut and by everything else they depend on; the least recently used are dropped first.
    Thread-safe.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max, self._bytes = bytes_max, 0
        self._lock = threading.Lock()
        self._answers: OrderedDict[tuple[int, str], KeptAnswer] = OrderedDict()

    def get(self, cut_id: int, made_of: str) -> KeptAnswer | None:
        with self._lock:
            found = self._answers.get((cut_id, made_of))
            if found is not None:
                self._answers.move_to_end((cut_id, made_of))
            return found

    def put(self, cut_id: int, made_of: str, answer: KeptAnswer) -> None:
        """Keep an answer, unless it is larger than the whole cache."""
        with self._lock:
            old = self._answers.pop((cut_id, made_of), None)
            self._bytes += answer.nbytes - (old.nbytes if old else 0)
            self._answers[cut_id, made_of] = answer
            while self._bytes > self._bytes_max:
                self._bytes -= self._answers.popitem(last=False)[1].nbytes


log = logging.getLogger("lakestore.present")
PLAN_SECONDS = 3_600
"""Lease of log and snapshot during a build. It is released at the end of the build."""
SWEEP_SECONDS = 5.0
PRESSED_SECONDS_MIN = 60
"""The shortest default lease when presented files take much space."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One load."""

    table: str
    """Full name of one of our tables."""
    position: str = ""
    """A token or a time; empty for the present head."""
    format_version: int = 0
    """The Iceberg format version to show; 0 for the table's own."""
    seconds: int = 0
    """The requested lease; 0 for the default."""
    etags: str = ""
    """If-None-Match of the request."""
    names_of: Table | None = None
    """The version that names the columns; None: the version at the cut. The caller renames them."""
    is_rooted: bool = False
    """Whether the client opens only files below the document's location."""


@dataclass(frozen=True, slots=True)
class LoadAnswer:
    """The answer to a load."""

    etag: str
    body: bytes | None
    """None if the client has the newest answer (304)."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """A cut that a load asks for."""

    key: CutKey
    lsn: int
    last_lsn: int
    """The last commit up to the cut that changed the table's rows or definition. It is equal for all cuts with this
    key.
    """
    created_ms: int
    """The time of the table's creation."""
    version: Table
    metadata_location: str
    doc: Json


class SnapshotTables:
    """The presented tables of one server. Thread-safe. Nothing runs before `start` or the first load."""

    def __init__(
        self, engine: Engine, leases: Leases, catalog: Catalog, clock: Clock, presenter: BuilderProcess
    ) -> None:
        self.plans = Plans(engine, leases, Completeness(engine, clock))
        """Plans for presented cuts and for other readers, so that they share one cache of dead rows."""
        self._engine, self._leases, self._catalog = engine, leases, catalog
        self._clock, self._presenter = clock, presenter
        limits = engine.limits
        history = f"{engine.timeline}-{machine_of(engine.folder)}" if engine.loop.journal.is_shared else engine.timeline
        self._folders = Folders(catalog.warehouse, history, engine.former_timeline)
        self._answers, self._held = KeptAnswers(limits.present_cache_bytes), HeldCuts(clock, leases)
        self._flights: SingleFlight[_Cut] = SingleFlight()
        self._turn = threading.Lock()
        self._upkeep = SnapshotUpkeep(
            engine=engine,
            leases=leases,
            clock=clock,
            held=self._held,
            folders=self._folders,
            presenter=presenter,
            turn=self._turn,
        )
        self.figures = SnapshotFigures()
        self._sweeper = Worker(
            supervisor=engine.supervisor,
            name="present",
            work=self.sweep,
            failed=lambda error: log.warning("presented files stay: %s", error),
            every=SWEEP_SECONDS,
        )

    # Loads.

    def kept(self, ask: LoadRequest) -> LoadAnswer | None:
        """The answer to a load if its cut is in lease, from memory alone; else None."""
        cut = self._cut(ask, self._engine.serving())
        held = self._held.renewed(cut.key.snapshot_id, self._seconds(ask))
        if held is None:
            return None
        answer = self._made(cut, held, ask)
        if ask.etags and is_same(ask.etags, answer.etag):
            self.figures.loaded(SAME)
            return LoadAnswer(answer.etag, None)
        self.figures.loaded(KEPT)
        return self._told(answer, held)

    def load(self, ask: LoadRequest) -> LoadAnswer:
        """The answer to a load. Builds the cut if it is not in lease."""
        what = ask.table, ask.position, ask.format_version
        while True:
            answer = self.kept(ask)
            if answer is not None:
                return answer
            lsn = self._engine.view.lsn
            found = self._flights.joined(what, lsn, lambda flight: self._presented(ask, flight))
            # The build shows everything that existed when this load began, whatever was committed since.
            held = self._held.renewed(found.key.snapshot_id, self._seconds(ask)) if found else None
            if found and held:
                self.figures.loaded(NEW)
                return self._told(self._made(found, held, ask), held)

    def _told(self, answer: KeptAnswer, held: HeldCut) -> LoadAnswer:
        return LoadAnswer(answer.etag, answer.body(self._until(held)))

    def _until(self, held: HeldCut) -> str:
        """The end of a cut's lease."""
        until_us = self._engine.now_us() + int((held.expires - self._clock.monotonic()) * 1e6)
        return times.text_of(until_us - until_us % 1_000_000)

    def _seconds(self, ask: LoadRequest) -> int:
        """The lease of a load: as requested, or the default, which gets shorter when presented files take much
        space.
        """
        limits = self._engine.limits
        if ask.seconds:
            if not 1 <= ask.seconds <= limits.lease_seconds:
                raise Invalid(f"a lease is 1 to {limits.lease_seconds} seconds, not {ask.seconds}")
            return ask.seconds
        free, half = limits.present_bytes - self._upkeep.usage.bytes, limits.present_bytes / 2
        if free >= half:
            return limits.present_lease_seconds
        pressed = int(limits.present_lease_seconds * max(free, 0) / half)
        return min(max(pressed, PRESSED_SECONDS_MIN), limits.present_lease_seconds)

    def _made(self, cut: _Cut, held: HeldCut, ask: LoadRequest) -> KeptAnswer:
        """The answer for a cut whose files exist. Made once for each metadata file of the lake and each location."""
        number, run = cut.key.snapshot_id, self._folders.run(cut.key.table_uuid, held.run)
        folder = self._catalog.warehouse if ask.is_rooted else run
        what = f"{cut.metadata_location} {held.files.manifest_list} {folder}"
        answer = self._answers.get(number, what)
        if answer is None:
            of = document.empty_document(cut.doc, held.base, cut.version, cut.key.format_version)
            token = self._engine.view.token(held.lsn)
            said = {document.POSITION_PROPERTY: token, document.LEASE_PROPERTY: UNTIL}
            made = document.document(of, cut.key, held.files, said, folder)
            etag = cut.key.etag(what)
            # Some engines expect a version number at the beginning of the name.
            file = f"{run}/00001-{etag[1:-1]}.metadata.json"
            answer = KeptAnswer.of(made, etag, file)
            self._write_document(made, file, held)
            self._answers.put(number, what, answer)
        return answer

    def _write_document(self, doc: Json, file: str, held: HeldCut) -> None:
        """Write the document as a file too, once.

        ClickHouse reads the file instead of the answer. Iceberg's Java library takes a table for changed if its
        metadata location has changed.
        """
        if file in held.documents:
            return
        properties = {**doc["properties"], document.LEASE_PROPERTY: self._until(held)}
        try:
            places.write(file, orjson.dumps({**doc, "properties": properties}))
        except OSError as error:
            raise Unavailable(f"{file} could not be written: {error}") from error
        self._held.document_written(held, file)

    # Cuts.

    def _cut(self, ask: LoadRequest, view: View) -> _Cut:
        """The cut that a load asks for, at a view. Raises `NoSuchTable` if the table is not there."""
        view, state, lsn = self._state(ask, view)
        if state.created_lsn > lsn:
            raise NoSuchTable(f"table {ask.table} did not exist at this position: choose a later one")
        readable_from.check_readable(view, [state], lsn, self._leases)
        is_without = without_lake(self._engine, state)
        tier = None if is_without else usable_tier(state, lsn, self._leases)
        location = "" if is_without else metadata_of(view, state)
        doc = self._document(state, location)
        table, at = state.versions.at(lsn), [log.at_lsn(lsn) for log in state.logs]
        key = CutKey(
            self._engine.timeline,
            table.uuid,
            table.schema_id,
            tier.snapshot_id if tier else 0,
            tuple(position.end for position in at),
            max(ask.format_version, doc["format-version"]),
        )
        since = [known for known in state.versions.lsns if known <= lsn]
        last = max(state.created_lsn, state.log_start_lsn, *since, *(position.lsn for position in at))
        return _Cut(key, lsn, min(last, lsn), state.created_us // 1_000, table, location, doc)

    def _state(self, ask: LoadRequest, view: View) -> tuple[View, TableState, int]:
        """(view, table, LSN) of a load. The table is the one from before a rescale for a position before its swap."""
        lsn = lsn_at(self._engine, ask.position, [ask.table]) if ask.position else view.lsn
        view = view if lsn <= view.lsn else reached(self._engine, lsn)
        return view, swaps.state_at(view, _named(view, ask.table), lsn), lsn

    def _document(self, state: TableState, location: str) -> Json:
        """The document of the lake table, or the table's first document if the lake cannot be used for this cut."""
        if location:
            return self._catalog.metadata(location).doc
        created_ms = state.created_us // 1_000
        return our_tables.first_metadata(state.versions.tables[0], self._catalog.warehouse, created_ms)

    def folders(self, ask: LoadRequest) -> Sequence[str]:
        """The folders with the files of the cut of a load: presented files, and the lake's."""
        view, state, _ = self._state(ask, self._engine.serving())
        location = metadata_of(view, state)
        # metadata of our tables is in `metadata` of the table's folder
        lake = (location.rsplit("/", 2)[0],) if location else ()
        return (self._folders.of(state.table.uuid), *lake)

    def check(self, ask: LoadRequest) -> None:
        """Raises the error that a load would raise at once: `NoSuchTable`, or an unreadable position."""
        self._cut(ask, self._engine.serving())

    def was_there(self, table: str, position: str) -> bool:
        """Whether one of our tables existed at a position and still has this name."""
        view, time_us = self._engine.view, times.micros_of(position)
        if table not in view.names:
            return False
        state = view.named(table)
        if time_us is not None:
            return state.created_us <= time_us
        return state.created_lsn <= lsn_at(self._engine, position, ())

    # Builds.

    def _presented(self, ask: LoadRequest, flight: Flight[_Cut]) -> _Cut:
        """Build a cut, and hold its files."""
        self._engine.refuse_when_draining()
        with self._turn:
            self._check_room()
            began, limits = self._clock.monotonic(), self._engine.limits
            cut = self._cut(ask, self._flights.look(flight, self._engine.serving))
            seconds = min(PLAN_SECONDS, limits.lease_seconds)
            at = self._engine.view.token(cut.lsn)
            plan = self.plans.plan(pb.PlanRequest(tables=[ask.table], at=at, lease_seconds=seconds, no_dead=True))
            try:
                cut = self._as_planned(cut, plan.tables[0])
                base = document.base_of(cut.doc, cut.key.base_snapshot_id, cut.created_ms)
                of = document.empty_document(cut.doc, base, cut.version, cut.key.format_version)
                request = _request(cut, of, self._folders.of(cut.key.table_uuid), plan)
                files = self._presenter.present(request, partial(self._fetched, plan.lease))
                held = HeldCut(cut.key, files, base, cut.last_lsn, self._presenter.runs[-1])
                self._hold(held, ask)
                self._made(cut, held, ask)
            finally:
                self._leases.release(plan.lease)
            self._upkeep.written(files.written_bytes)
            self.figures.presented(self._clock.monotonic() - began, files)
        return cut

    def _fetched(self, lease: str, request: pb.FetchRequest) -> Iterator[RowMessage]:
        """Hot rows for the builder, by the lease of the plan: the table may have been dropped, rescaled or truncated
        since."""
        request.lease = lease
        return self.plans.fetch(request)

    def _hold(self, held: HeldCut, ask: LoadRequest) -> None:
        """Hold a newly built cut. If that fails, remove its files, because sweeps only remove files of held cuts."""
        try:
            self._held.add(held, self._seconds(ask))
        except BaseException:
            number = held.key.snapshot_id
            if all(number != each.key.snapshot_id for each in self._held.cuts()):
                self._presenter.forget([number])
            raise

    def _as_planned(self, cut: _Cut, plan: pb.TablePlan) -> _Cut:
        """The cut on top of the snapshot that the plan has leased. Since the cut was chosen, the newest snapshot may
        have changed.
        """
        if Table.from_json(plan.definition).uuid != cut.key.table_uuid:
            raise Unavailable(f"table {cut.version.name} was dropped and created again at this moment: load it again")
        key = replace(cut.key, base_snapshot_id=plan.snapshot_id)
        if not cut.metadata_location:
            return replace(cut, key=key)
        location = plan.metadata_location
        return replace(cut, key=key, metadata_location=location, doc=self._catalog.metadata(location).doc)

    def _check_room(self) -> None:
        """Raises `Exhausted` if no more files may be written."""
        limits = self._engine.limits
        if self._upkeep.usage.bytes >= limits.present_bytes:
            soon = min((cut.expires for cut in self._held.cuts()), default=0.0) - self._clock.monotonic()
            raise Exhausted(
                f"presented tables take {self._upkeep.usage.bytes >> 20} MB of the warehouse, the limit present_bytes:"
                " leases end by themselves; read a cut that is already presented, or raise the limit",
                retry_after=max(soon, 1.0),
            )
        if self._engine.is_disk_full():
            raise Exhausted(f"less than {limits.disk_free_bytes >> 20} MB are free: no further cut is presented")

    # Upkeep.

    def start(self) -> None:
        """Start removing files that are no longer needed."""
        if not self._sweeper.is_alive and not self._sweeper.is_closing:
            self._sweeper.start()

    def warm(self) -> None:
        """Start the snapshot builder's process without waiting for it, because a load is about to come."""
        self.start()
        if not self._engine.is_draining:
            self._presenter.start()

    def close(self) -> None:
        """End the builder's process and the upkeep. A running build is aborted. Files stay for their readers."""
        self._sweeper.close()
        self._presenter.close()

    def forget_table(self, table_uuid: str, *, cut_off: bool) -> int:
        """Remove all presented files of a table. Returns the number of cuts that readers hold; with `cut_off` they
        lose them."""
        return self._upkeep.forget_table(table_uuid, cut_off=cut_off)

    def sweep(self) -> None:
        """Forget cuts whose leases have expired, and remove files that no cut of this run uses."""
        self._upkeep.sweep()

    def status(self) -> PresentStatus:
        """The present figures."""
        cuts, (last, p95), loads = self._held.cuts(), self.figures.times(), self.figures.loads
        usage = self._upkeep.measure()
        return PresentStatus(
            tables=len({cut.key.table_uuid for cut in cuts}),
            cuts=len(cuts),
            files=usage.files,
            bytes=usage.bytes,
            presented=self.figures.seconds.count,
            seconds=round(self.figures.seconds.total, 3),
            last_seconds=round(last, 4),
            p95_seconds=round(p95, 4),
            loads_new=loads[NEW],
            loads_kept=loads[KEPT],
            loads_not_modified=loads[SAME],
            reports=self.figures.reports,
            offsets_read=self.figures.offsets_read,
            offsets_evicted=self.figures.offsets_evicted,
        )


def _named(view: View, name: str) -> TableState:
    try:
        return view.named(name)
    except NotFound as error:
        raise NoSuchTable(f"Table does not exist: {name}") from error


def _request(cut: _Cut, of: EmptyDocument, folder: str, plan: pb.PlanAnswer) -> messages.BuildRequest:
    """The build request for a cut."""
    base = of.base
    return messages.BuildRequest(
        cut_id=cut.key.snapshot_id,
        folder=folder,
        schema=of.schema,
        specs=of.specs,
        default_spec_id=of.doc["default-spec-id"],
        flat_spec_id=of.flat_spec_id,
        format=cut.key.format_version,
        plan=plan.SerializeToString(),
        base=messages.Base(base.manifest_list, base.snapshot_id, base.format_version, base.sequence, base.next_row_id),
    )
