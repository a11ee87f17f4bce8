"""Iceberg's public Java API through the gateway of a Spark session.

Java objects are `Any`, because py4j has no types. Each question crosses into the JVM, so facts about a file that are
needed often are read once into a `LakeFile`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from lakestore.errors import Conflict, Invalid, LakestoreError, NotFound, Unavailable
from lakestore.iceberg.row_search import Bounds
from lakestore.iceberg.values import Value
from lakestore.model.names import UUID_PROPERTY
from lakestore.union.tier_record import KEYS, OPTIONAL, SECONDS, Record

COMMIT_ATTEMPTS = 4
TIER_TAG = "lakestore-tier"
JAVA_FAILURES = (Py4JJavaError, PySparkException)
"""Exceptions of a call into the JVM; PySpark converts some of its failures."""


Result = TypeVar("Result")


def has_ended(spark: SparkSession) -> bool:
    """True if no call of this session can succeed: the JVM is gone or the context was stopped."""
    java = spark.sparkContext._jsc  # noqa: SLF001 (the one way to the JVM that PySpark gives)
    try:
        return java is None or bool(java.sc().isStopped())
    except (Py4JError, OSError):
        return True


def end(spark: SparkSession) -> None:
    """Stop a session that has not ended by itself."""
    if not has_ended(spark):
        spark.stop()


class Lazy:
    """A Java object that is fetched on first use."""

    __slots__ = ("_get", "_got")

    def __init__(self, get: Callable[[], Any]) -> None:
        self._get, self._got = get, None

    def get(self) -> Any:
        if self._got is None:
            self._got = self._get()
        return self._got


@dataclass(frozen=True, slots=True)
class LakeDelete:
    """A delete file, or one vector inside a Puffin file."""

    rows: int
    alone: bool
    """True if it covers exactly one data file."""
    source: Any

    @property
    def java(self) -> Any:
        return self.source.get() if isinstance(self.source, Lazy) else self.source


@dataclass(slots=True)
class LakeFile:
    """A data file and the delete files that cover it."""

    path: str
    """Path as in the manifest; position deletes match this exact text."""
    rows: int
    bytes: int
    bounds: Bounds | None
    """None if the writer stored no bounds; then the file may hold any offset."""
    source: Any
    format: str = "PARQUET"
    partition: tuple[Value, ...] | None = ()
    """Partition values under the table's current partitioning; None under an older one."""
    deletes: dict[tuple[str, int], LakeDelete] = field(default_factory=dict)
    """By path and position in a Puffin file; -1 for a whole file."""

    @property
    def java(self) -> Any:
        return self.source.get() if isinstance(self.source, Lazy) else self.source


class Iceberg:
    """A lake table in a session's catalog, in the state of its last load or commit."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.spark = spark
        self.name = name
        jvm: Any = spark._jvm  # noqa: SLF001 (the one way to the JVM that PySpark gives)
        self.jvm = jvm
        self.api = jvm.org.apache.iceberg
        self.table: Any = _loaded(self.api, spark, name)
        self.spec_id = int(self.table.spec().specId())
        """The partition spec of new files."""

    def refresh(self) -> None:
        self.table.refresh()

    def uuid(self) -> str:
        """The uuid of the Lakestore table, which survives a rename. A table that was adopted in an outside catalog has
        it as a property only."""
        return str(self.table.properties().get(UUID_PROPERTY) or self.table.uuid())

    def metadata_location(self) -> str:
        return str(self.table.operations().current().metadataFileLocation())

    @property
    def format_version(self) -> int:
        return int(self.api.TableUtil.formatVersion(self.table))

    def current_id(self) -> int | None:
        snapshot = self.table.currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId())

    def snapshots(self) -> list[tuple[int, int]]:
        """Id and time in milliseconds of every snapshot."""
        return [(int(s.snapshotId()), int(s.timestampMillis())) for s in self._listed(self.table.snapshots())]

    def referenced_snapshots(self) -> set[int]:
        return {int(ref.snapshotId()) for ref in self.table.refs().values()}

    def ancestry(self) -> Iterator[Any]:
        snapshot = self.table.currentSnapshot()
        while snapshot is not None:
            yield snapshot
            parent = snapshot.parentId()
            snapshot = None if parent is None else self.table.snapshot(parent)

    def record(self) -> Record | None:
        return next((record for record in map(record_of, self.ancestry()) if record), None)

    def statistics_files(self) -> list[str]:
        kinds = (self.table.statisticsFiles(), self.table.partitionStatisticsFiles())
        return [str(each.path()) for files in kinds for each in files]

    def metadata_table(self, kind: str) -> DataFrame:
        """A metadata table of this table, such as `all_files`. `spark.table` would resolve it by name alone."""
        types = self.jvm.org.apache.iceberg.MetadataTableType
        java: Any = self.spark._jsparkSession  # noqa: SLF001
        read = self.api.spark.SparkTableUtil.loadMetadataTable(java, self.table, getattr(types, kind.upper()))
        return DataFrame(read, self.spark)

    def frame_of(self, metadata: str, *, is_local: bool) -> DataFrame:
        """The main of a table that no catalog knows, by its metadata document.

        Files are read with this table's credentials, or with `is_local` from this machine's disk.
        """
        java: Any = self.spark._jsparkSession  # noqa: SLF001
        read = self.api.TableMetadataParser.fromJson(metadata)
        hadoop = java.sessionState().newHadoopConf()
        files = self.api.hadoop.HadoopFileIO(hadoop) if is_local else self.table.io()
        found = self.api.BaseTable(self.api.StaticTableOperations(read, files), f"hot rows of {self.name}")
        snapshot = found.currentSnapshot().snapshotId()
        return DataFrame(self.api.spark.SparkTableUtil.loadTable(java, found, snapshot), self.spark)

    def manifest_rewrite(self) -> Any:
        """Iceberg's rewrite of this table's manifests, as an action of Spark that is not yet begun."""
        java: Any = self.spark._jsparkSession  # noqa: SLF001
        return self.api.spark.actions.SparkActions.get(java).rewriteManifests(self.table).option("use-caching", "false")

    def own_manifests(self, snapshot: Any) -> list[str]:
        """The manifest list of a snapshot and the manifests written only for it."""
        number = snapshot.snapshotId()
        manifests = snapshot.allManifests(self.table.io())
        return [
            str(snapshot.manifestListLocation()),
            *(str(each.path()) for each in manifests if each.snapshotId() == number),
        ]

    def branches(self, prefix: str) -> list[str]:
        return [str(name) for name in self.table.refs() if str(name).startswith(prefix)]

    def retry(self, commit: Callable[[], Result]) -> Result:
        """Retry a change of branches if another branch moved. Iceberg itself retries only data commits."""
        for _ in range(COMMIT_ATTEMPTS - 1):
            try:
                with java_errors():
                    return commit()
            except Conflict:
                self.refresh()
        with java_errors():
            return commit()

    def fork(self, branch: str) -> None:
        self.retry(lambda: self.table.manageSnapshots().createBranch(branch).commit())

    def drop_branch(self, branch: str) -> None:
        self.retry(lambda: self.table.manageSnapshots().removeBranch(branch).commit())

    def branch_snapshot(self, branch: str) -> Any:
        snapshot = self.table.snapshot(branch)
        if snapshot is None:
            raise NotFound(f"lake table {self.name} has no branch {branch}")
        return snapshot

    def transaction(self) -> Any:
        return self.table.newTransaction()

    def land(
        self, transaction: Any, update: Any, record: Record, branch: str, source: int | None, seconds: float
    ) -> int:
        """Finish an update of main in one commit: its record, the tier tag, and the end of the branch it came from.

        `seconds` is how long the work took that is committed.
        """
        for key, value in record.summary().items():
            update.set(key, value)
        update.set(SECONDS, f"{seconds:.3f}")
        if source is not None:
            update.set("source-snapshot-id", str(source))
        update.commit()
        landed = int(transaction.table().currentSnapshot().snapshotId())
        refs = transaction.manageSnapshots()
        tagged = TIER_TAG in self.table.refs()
        refs = refs.replaceTag(TIER_TAG, landed) if tagged else refs.createTag(TIER_TAG, landed)
        if branch:
            refs = refs.removeBranch(branch)
        refs.commit()
        transaction.commitTransaction()
        return landed

    def find_landed(self, error: Py4JJavaError | PySparkException, ours: Callable[[Any], bool]) -> int:
        """The snapshot of a commit whose answer was lost, found by `ours` in main's ancestry, or the error."""
        own = plain_error(error)
        if own.applied == "no":
            raise own from error
        with java_errors():
            self.refresh()
        found = next((int(snapshot.snapshotId()) for snapshot in self.ancestry() if ours(snapshot)), None)
        if found is None:
            raise own from error
        return found

    def spec_of(self, java: Any) -> Any:
        return self.table.specs().get(java.specId())

    def java_list_of(self, iterable: Any) -> Any:
        return self.jvm.org.apache.iceberg.relocated.com.google.common.collect.Lists.newArrayList(iterable)

    def _listed(self, iterable: Any) -> list[Any]:
        return list(self.java_list_of(iterable))


def _loaded(api: Any, spark: SparkSession, name: str) -> Any:
    with java_errors():
        java: Any = spark._jsparkSession  # noqa: SLF001
        # Spark uses the catalogs of the thread's active session, not of the given one.
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(java)  # type: ignore[union-attr]  # noqa: SLF001
        return api.spark.Spark3Util.loadIcebergTable(java, name)


def record_of(snapshot: Any) -> Record | None:
    """The tier record of a snapshot, if it has one."""
    summary = snapshot.summary()
    found = {key: summary.get(key) for key in (*KEYS, *OPTIONAL)}
    return Record.parse({key: value for key, value in found.items() if value is not None})


def java_map(jvm: Any, values: Mapping[str, Any]) -> Any:
    """A java.util.HashMap of these values."""
    made = jvm.java.util.HashMap()
    for key, value in values.items():
        made.put(key, value)
    return made


def java_list(jvm: Any, values: Iterable[Any]) -> Any:
    """A java.util.ArrayList of these values."""
    made = jvm.java.util.ArrayList()
    for value in values:
        made.add(value)
    return made


_EXCEPTIONS = "org.apache.iceberg.exceptions."
_KINDS: Mapping[str, type[Invalid | Conflict | NotFound]] = {
    _EXCEPTIONS + "ForbiddenException": Invalid,
    _EXCEPTIONS + "NotAuthorizedException": Invalid,
    _EXCEPTIONS + "CommitFailedException": Conflict,
    _EXCEPTIONS + "ValidationException": Conflict,
    _EXCEPTIONS + "AlreadyExistsException": Conflict,
    _EXCEPTIONS + "NoSuchTableException": NotFound,
    _EXCEPTIONS + "NoSuchNamespaceException": NotFound,
    _EXCEPTIONS + "NoSuchIcebergTableException": NotFound,
    _EXCEPTIONS + "NotFoundException": NotFound,
    "org.apache.spark.sql.catalyst.analysis.NoSuchTableException": NotFound,
    "org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException": NotFound,
}
"""Java exception class to our error. Any other exception leaves the outcome unknown."""
_CAUSES_MAX = 16
_CUT_HISTORY = re.compile(r"Snapshot \d+ is not an ancestor of \d+")
"""Iceberg's message if an expiry removed a snapshot between main and the snapshot that a commit was made for."""
_CLOCK_REFUSALS = ("Invalid update timestamp", "[BUG] Expected sorted")
"""Prefixes of Iceberg's messages that refuse a commit older than the table."""


@contextmanager
def java_errors() -> Iterator[None]:
    """Translates JVM failures inside the block to Lakestore errors."""
    try:
        yield
    except JAVA_FAILURES as error:
        raise plain_error(error) from error


def plain_error(error: Py4JJavaError | PySparkException) -> LakestoreError:
    """Translate a Java failure by the classes of its causes: refused, raced, absent, or unknown outcome."""
    if isinstance(error, PySparkException):
        line = str(error).splitlines()[0]
        if _CUT_HISTORY.search(line):
            return Conflict(
                f"another engine changed the lake meanwhile and expired the snapshots between: plan again ({line})"
            )
        return Unavailable(f"Spark failed: {_explained(line)}", applied="unknown")
    causes = list(_causes(error.java_exception))
    said = (str(cause.getMessage() or "").split("\n")[0] for cause in causes)
    names = [str(cause.getClass().getName()) for cause in causes]
    message = next((text for text in said if text), ", ".join(sorted(names)))
    kinds = {_KINDS[name] for name in names if name in _KINDS}
    # A refusal by the catalog is more specific than the race or absence that its client wraps it in.
    own = next((kind for kind in (Invalid, Conflict, NotFound) if kind in kinds), None)
    return own(message) if own else Unavailable(_explained(message), applied="unknown")


def _explained(message: str) -> str:
    if not message.startswith(_CLOCK_REFUSALS):
        return message
    return (
        f"{message}: the clock of Spark's machine is over a minute behind the catalog's; set both by NTP, or wait "
        "until it has passed the table's last change"
    )


def _causes(throwable: Any) -> Iterator[Any]:
    for _ in range(_CAUSES_MAX):
        if throwable is None:
            return
        yield throwable
        throwable = throwable.getCause()
