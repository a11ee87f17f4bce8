"""Hot rows as Parquet files beside a local Spark, whose own vectorised reader is several times faster than Python.

The files of a read stay as long as its lease; beyond a bound on bytes no new read is spooled.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

BYTES_MAX = 4 << 30


class Spool:
    """A temporary folder of Parquet files, gone with the process. Thread-safe."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._folder = Path(tempfile.mkdtemp(prefix="lakestore-hot-"))
        self._lock = threading.Lock()
        self._held: dict[str, list[Path]] = {}
        self._count = 0
        self._bytes = 0
        self._finalizer = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    @property
    def has_room(self) -> bool:
        """Whether another read may be written."""
        return self._bytes < self._bytes_max

    def write(self, lease: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Path | None:
        """One file of these rows; None when there are none."""
        rows: Iterator[pa.RecordBatch] = (batch for batch in batches if batch.num_rows)
        first = next(rows, None)
        if first is None:
            return None
        with self._lock:
            self._count += 1
            path = self._folder / f"{self._count}.parquet"
            self._held.setdefault(lease, []).append(path)
        options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
        with pq.ParquetWriter(path, schema, **options) as writer:
            for batch in (first, *rows):
                writer.write_batch(batch)
        with self._lock:
            self._bytes += path.stat().st_size
        return path

    def forget(self, lease: str) -> None:
        """Remove the files of a read that is over."""
        with self._lock:
            for path in self._held.pop(lease, []):
                self._bytes -= path.stat().st_size
                path.unlink()

    def close(self) -> None:
        """Remove everything. Again is harmless."""
        self._finalizer()
