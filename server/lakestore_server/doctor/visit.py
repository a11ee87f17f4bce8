"""A visit: every look at a machine, and at the settings of a server where there are any."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import secrets
import socket
import ssl
import statistics
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from lakestore.errors import Conflict, Invalid, LakestoreError, Unavailable
from lakestore.java import java_home, java_version
from lakestore.limits import Limits
from lakestore.release import RELEASE
from lakestore_server.access.callers import Access
from lakestore_server.catalog import store_probe
from lakestore_server.catalog.metadata_store import Storage, local_folder, storage_for
from lakestore_server.edge import exposure_check
from lakestore_server.edge.tls import TlsKeys
from lakestore_server.files import data_folder
from lakestore_server.host import sandbox
from lakestore_server.host.clock import RealClock
from lakestore_server.host.disk import RealDisk
from lakestore_server.host.machine import MAPS_DEFAULT, maps_max, memory_bytes
from lakestore_server.journals import object_log, object_store
from lakestore_server.operate import memory
from lakestore_server.settings import Journal, Settings

Verdict = Literal["ok", "warning", "failed"]
"""`failed`: a server would not start, or would lose what it acknowledged."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    about: str
    """Its name, such as `data folder`."""
    verdict: Verdict
    found: str
    """The state of it, in a few words."""
    remedy: str = ""
    """The thing to do; empty when all is well."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as data."""
        return asdict(self)


Look = Callable[[], Iterable[Finding]]


def looked(about: str, look: Look) -> Iterator[Finding]:
    """The findings of a look; one that cannot be taken is a failed finding itself."""
    try:
        yield from look()
    except LakestoreError as error:
        yield Finding(about, "failed", error.message, "do what the sentence says")
    except OSError as error:
        yield Finding(about, "failed", _reason(error), "mend what the operating system or the store refuses")


def _reason(error: OSError) -> str:
    where = f": {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{where}"


PROBES = 12
"""Small writes that are synced; the first one, which also makes the file, does not count."""
PROBE_BYTES = 4_096
SLOW_SYNC_SECONDS = 0.02
VOLATILE = frozenset({"tmpfs", "ramfs", "overlay"})
"""File systems that end with the machine or its container."""
SHARED = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"})
"""File systems whose locks and syncs depend on another machine."""
_MOUNTS = Path("/proc/self/mounts")
_ESCAPED = re.compile(r"\\([0-7]{3})")
"""A space, tab, line end, backslash or # in a path, as the kernel writes it."""


def data(folder: Path, limits: Limits) -> Iterator[Finding]:
    """The data folder; one that a server uses is looked at from outside, one that is not there by the folder above."""
    if folder.exists():
        yield Finding("data folder", "ok", f"{folder}, {_use(folder)}")
    else:
        yield Finding("data folder", "ok", f"{folder}, which the first start makes")
    place = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    yield from room(place, limits)
    yield from kind(place)
    yield from sync(place)


def _use(folder: Path) -> str:
    lock = folder / data_folder.LOCK
    was_there = lock.exists()
    try:
        with data_folder.lock_folder(folder):
            if not was_there:
                lock.unlink()  # while it is held: a server that starts meanwhile is refused, and not left without one
    except Conflict:
        return "in use by a running server"
    return "free to use"


def room(folder: Path, limits: Limits) -> Iterator[Finding]:
    """Free bytes, against the reserve below which no rows are taken."""
    free, reserve = RealDisk().free_bytes(folder), limits.disk_free_bytes
    found = f"{free >> 20:,} MB free; below {reserve >> 20:,} MB (limits.disk_free_bytes) no rows are taken"
    if free < reserve:
        yield Finding("disk", "failed", found, "make room, or name another folder by --data")
    elif free < reserve + 2 * limits.journal_bytes:
        yield Finding("disk", "warning", found, "make room: a full journal and its checkpoint take more than is there")
    else:
        yield Finding("disk", "ok", found)


def kind(folder: Path, mounts: Path = _MOUNTS) -> Iterator[Finding]:
    """The file system below the folder."""
    name = _file_system(folder.resolve(), mounts)
    if not name:
        return
    if name in VOLATILE:
        yield Finding("file system", "warning", name, "its files end with the machine or container: mount a disk there")
    elif name in SHARED:
        yield Finding("file system", "warning", name, "take a local disk: a sync here trusts another machine")
    else:
        yield Finding("file system", "ok", name)


def _character(escaped: re.Match[str]) -> str:
    return chr(int(escaped[1], 8))


def _file_system(folder: Path, mounts: Path) -> str:
    """The kind of the mount that is nearest above the folder; empty where nobody tells."""
    try:
        lines = [[_ESCAPED.sub(_character, word) for word in line.split()] for line in mounts.read_text().splitlines()]
    except OSError:
        return ""
    above = {str(folder), *map(str, folder.parents)}
    found = [(len(line[1]), line[2]) for line in lines if len(line) > 2 and line[1] in above]
    return max(found)[1] if found else ""


def sync(folder: Path) -> Iterator[Finding]:
    """Small synced writes, as each commit makes one."""
    took = _synced_writes(folder / f".doctor-{os.getpid()}-{secrets.token_hex(4)}")
    median, slowest = statistics.median(took), max(took)
    found = f"a synced write takes {median * 1e3:.2f} ms, at most {slowest * 1e3:.2f} ms of {len(took)}"
    if median > SLOW_SYNC_SECONDS:
        yield Finding("sync", "warning", found, "each commit waits for one: take a faster disk, or larger commits")
    else:
        yield Finding("sync", "ok", found)


def _synced_writes(path: Path) -> Sequence[float]:
    file = RealDisk().create(path)  # before the try: a file that was there stays
    took = []
    try:
        for _ in range(PROBES):
            began = time.monotonic()
            file.write([os.urandom(PROBE_BYTES)])
            file.sync()
            took.append(time.monotonic() - began)
    finally:
        file.close()
        path.unlink(missing_ok=True)
    return took[1:]


def shared(settings: Settings) -> Iterator[Finding]:
    """The warehouse, which must be named if others share the journal."""
    exposure_check.check_shared(settings)
    yield from takes(settings.warehouse_uri)


_NEW = "take a store that honours `If-None-Match: *`: metadata is written by puts that never replace"


def takes(warehouse: str, storage: Storage | None = None) -> Iterator[Finding]:
    """A probe object is put, put once more with other bytes, read, listed and removed."""
    folder = local_folder(warehouse)
    if folder is not None and not folder.exists():
        yield Finding("warehouse", "ok", f"{warehouse}, which the first start makes")
        return
    if folder is None and storage is None:
        races_of(store_probe.store_of(warehouse), warehouse)
    store = storage_for(warehouse) if storage is None else storage
    place = f"{warehouse.rstrip('/')}/__doctor-{uuid.uuid4().hex}"
    probe = f"{place}/probe"
    store.write_new(probe, b"first")
    try:
        with contextlib.suppress(FileExistsError):
            store.write_new(probe, b"second")
        replaced = store.read(probe) != b"first"
        if replaced:
            yield Finding("warehouse", "failed", f"{warehouse} replaces an object that is there", _NEW)
        elif "probe" not in store.names(place):
            yield Finding("warehouse", "failed", f"{warehouse} does not list what was put", "take another store")
        else:
            raced = "" if folder is not None else ", and lets one of eight racing puts win"
            yield Finding("warehouse", "ok", f"{warehouse} puts once, reads, lists and removes{raced}")
    finally:
        store.remove(probe)
        store.remove_below(place)


def races_of(store: object_store.Store, warehouse: str) -> None:
    """`Invalid` if the store refuses the server, or lets two puts of one name win; `Unavailable` without an answer."""
    try:
        store.get(store_probe.NAME)
    except object_store.StoreError as error:
        sentence = f"warehouse {error}" if error.is_refusal else f"the store of the warehouse is away: {error}"
        raise (Invalid if error.is_refusal else Unavailable)(sentence) from error
    object_store.check_races(store, warehouse, folder=store_probe.RACES, use=store_probe.USE)


def bucket_of(about: Journal) -> Iterator[Finding]:
    """A journal in a bucket: puts of one name race, and it must be there."""
    if about.kind != "object":
        return
    store = object_store.store_of(about.url, about.options)
    object_store.check_races(store, about.url)
    if not store.has(object_log.IDENTITY):
        yield Finding("journal", "failed", f"no journal at {about.url}", "create it: lakestore init-journal")
        return
    yield Finding("journal", "ok", f"{about.url} lets one put of a name win")


def checkpoint_bucket_of(settings: Settings) -> Iterator[Finding]:
    """A bucket for checkpoints: puts of one name race."""
    if not settings.checkpoints:
        return
    exposure_check.check_shared(settings)
    names = {"setting": "checkpoints", "options_setting": "checkpoints_options"}
    store = object_store.store_of(settings.checkpoints, settings.checkpoints_options, **names)
    object_store.check_races(store, settings.checkpoints)
    yield Finding("checkpoints", "ok", f"{settings.checkpoints} lets one put of a name win")


DAY_SECONDS = 86_400
RENEW_DAYS = 14
"""Days that a certificate should still hold."""
_IN_USE = "end the program that has it, or name another port; `lakestore doctor --server` asks a server that runs"


def free(settings: Settings) -> Iterator[Finding]:
    """The ports, by listening on them for a moment."""
    ports = {"gRPC": settings.port, "HTTP": settings.http_port, "Flight SQL": settings.flight.port}
    for name, port in ports.items():
        about = f"port of {name}"
        if port < 0:
            continue  # it is off
        if port == 0:
            yield Finding(about, "ok", "any free one")
            continue
        error = _listen(settings.host, port)
        where = f"{settings.host}:{port}"
        yield Finding(about, "failed", f"{where}: {error}", _IN_USE) if error else Finding(about, "ok", where)


def _listen(host: str, port: int) -> str:
    """The reason for which nobody can listen there; empty if one can."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(address)
                listener.listen()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def safe(settings: Settings) -> Iterator[Finding]:
    """Exposure, certificate and auth file."""
    exposure_check.check_exposure(settings)
    keys = exposure_check.keys(settings.tls)
    if keys is None:
        yield Finding("tls", "ok", f"none; {settings.host} is listened on")
    else:
        keys.read()
        yield from certificate(keys)
    if not settings.auth:
        yield Finding("auth", "ok", "none: everyone who reaches the ports may everything")
        return
    access = Access(Path(settings.auth), RealClock(), b"")
    yield Finding("auth", "ok", f"{len(access.principals())} principals in {settings.auth}")


def certificate(keys: TlsKeys, now: float | None = None) -> Iterator[Finding]:
    """The time for which a certificate holds."""
    try:
        ends = _end_of(keys)
    except ssl.SSLCertVerificationError as error:
        yield Finding("tls", "failed", f"{keys.cert}: {error.verify_message}", "put a good certificate there")
        return
    days = (ssl.cert_time_to_seconds(ends) - (time.time() if now is None else now)) / DAY_SECONDS
    if days < RENEW_DAYS:
        yield Finding("tls", "warning", f"{keys.cert} ends {ends}", "renew it: a running server reads it again")
    else:
        yield Finding("tls", "ok", f"{keys.cert} holds until {ends}")


def _end_of(keys: TlsKeys) -> str:
    """The end of a certificate, as a client that trusts just this one is shown it: a handshake in memory."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(keys.cert)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(down, up)
    server = keys.context().wrap_bio(up, down, server_side=True)
    for side in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return str((client.getpeercert() or {})["notAfter"])


PYTHON_MIN = (3, 11)
FILES_MIN = 4_096
"""Open files that a server with a thousand clients and segments wants."""
EXTRAS = {"spark": "pyspark", "kafka": "confluent-kafka", "duckdb": "duckdb"}
"""Extra of the distribution to a library of it."""


def software() -> Iterator[Finding]:
    """Release, Python and the extras that are installed."""
    version = platform.python_version()
    enough = tuple(map(int, platform.python_version_tuple()[:2])) >= PYTHON_MIN
    yield Finding(
        "python",
        "ok" if enough else "failed",
        f"Python {version}, Lakestore {RELEASE}",
        "" if enough else f"install Python {'.'.join(map(str, PYTHON_MIN))} or newer",
    )
    there = {extra: found for extra, library in EXTRAS.items() if (found := _version(library))}
    told = ", ".join(f"{extra} ({EXTRAS[extra]} {found})" for extra, found in there.items())
    yield Finding("extras", "ok", told or "none: the core alone")


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return ""


def java(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """The Java that Spark would run: tiering needs one, a server does not."""
    try:
        home = java_home(environment)
    except Unavailable as error:
        yield Finding("java", "warning", "none", f"{error}, where `lakestore tier` runs")
    else:
        yield Finding("java", "ok", f"version {java_version(home / 'bin' / 'java')} at {home}")


def limits_of_system(maps: int | None = None, files: int | None = None) -> Iterator[Finding]:
    """Open files and mapped files that a process may have."""
    open_max = files if files is not None else resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    enough = open_max == resource.RLIM_INFINITY or open_max >= FILES_MIN
    yield Finding(
        "open files",
        "ok" if enough else "warning",
        "no limit" if open_max == resource.RLIM_INFINITY else f"{open_max:,} for each process",
        "" if enough else f"raise it to {FILES_MIN:,} or more: `ulimit -n`, or LimitNOFILE of the systemd unit",
    )
    mapped = maps if maps is not None else maps_max()
    yield Finding(
        "mapped files",
        "ok" if mapped >= MAPS_DEFAULT else "warning",
        f"{mapped:,} for each process",
        "" if mapped >= MAPS_DEFAULT else f"set vm.max_map_count to {MAPS_DEFAULT:,} or more",
    )


def sandbox_of(there: sandbox.Support | None = None) -> Iterator[Finding]:
    """The walls of the operating system around queries of the console."""
    found = sandbox.support() if there is None else there
    remedy = "use a Linux kernel of 5.13 or newer with Landlock and seccomp (docs/internals/sandbox.md)"
    said = f"{found}; no {'; no '.join(found.missing)}" if found.missing else str(found)
    yield Finding("sandbox", "warning" if found.missing else "ok", said, remedy if found.missing else "")


def memory_of(limits: Limits) -> Iterator[Finding]:
    """The memory that the settings allow, against the machine's."""
    there, wanted = memory_bytes(), memory.total(memory.by_settings(limits))
    largest = memory.by_settings(limits)[0]
    fits = wanted <= there
    yield Finding(
        "memory",
        "ok" if fits else "warning",
        f"{there >> 20:,} MB; the settings allow {wanted >> 20:,} MB, and tables add to that",
        "" if fits else f"lower {largest.by}, the largest part, or take a larger machine (docs/sizing.md)",
    )


def findings(settings: Settings | None) -> Iterator[Finding]:
    """The findings of all looks, in the order in which a server would need what they look at."""
    looks: list[tuple[str, Look]] = [
        ("python", software),
        ("system", limits_of_system),
        ("sandbox", sandbox_of),
        ("java", java),
    ]
    if settings is not None:
        looks += [
            ("memory", lambda: memory_of(settings.limits)),
            ("data folder", lambda: data(settings.data, settings.limits)),
            ("ports", lambda: free(settings)),
            ("exposure", lambda: safe(settings)),
            ("warehouse", lambda: shared(settings)),
            ("journal", lambda: bucket_of(settings.journal)),
            ("checkpoints", lambda: checkpoint_bucket_of(settings)),
        ]
    for about, look in looks:
        yield from looked(about, look)
