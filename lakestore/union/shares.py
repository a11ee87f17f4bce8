"""Sums of very many data files by several processes. Each process reads a share of the files.

1. A small file costs 0.3 ms of Python, so threads of one process cannot read several at once: two threads took 46 s for
   100,000 files, one thread 33 s.
2. A process gets the plan and answers with sums. It has no connection to the server: the caller keeps the lease.
3. Files are shared out by the hash of their path. Every process opens all manifests.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace

from lakestore.errors import Internal, LakestoreError
from lakestore.iceberg import places
from lakestore.union.explanation import Figures
from lakestore.union.lake_files import LakeRead
from lakestore.union.lake_snapshot import FileList
from lakestore.union.plan import TableScan
from lakestore.union.sums import Sums, summed

FILES_MIN = 10_000
"""Files from which the start of processes, about 1 s, is worth it."""
PROCESSES_MAX = 4
TICK_SECONDS = 1.0
Answer = list[Sums] | LakestoreError


@dataclass(frozen=True, slots=True)
class Share:
    """A share of the files, for one process."""

    scan: TableScan
    columns: Sequence[str]
    names: Sequence[str]
    number: int
    shares: int

    def sums(self) -> list[Sums]:
        """The sums of the live rows in this share of the lake's files."""
        whole = LakeRead.of(self.scan, None, Figures())
        mine, _ = whole.files.split(
            lambda entries, positions: entries.path_hashes[positions] % self.shares == self.number
        )
        read = replace(whole, files=mine)
        return summed(read.batches(self.columns, lambda: None, threads=1), self.scan, self.names)


@dataclass(frozen=True, slots=True)
class Running:
    """The processes of all shares."""

    answers: Sequence[Future[Answer]]

    def sums(self, tick: Callable[[], None]) -> Iterator[list[Sums]]:
        """The sums of each share. `tick` is called about once a second. Raises the first error of a process."""
        waiting = set(self.answers)
        while waiting:
            done, waiting = wait(waiting, TICK_SECONDS, FIRST_EXCEPTION)
            for each in done:
                answer = each.result()
                if isinstance(answer, LakestoreError):
                    raise answer
                yield answer
            tick()


def are_worth_it(files: FileList) -> bool:
    """True for very many files in a folder. Threads suffice for a store, where a read waits most of the time."""
    if len(files) < FILES_MIN or (os.cpu_count() or 1) < 2:
        return False
    return not any(places.is_in_store(entries.manifest.path) for entries, _ in files.places)


@contextmanager
def share_processes(scan: TableScan, columns: Sequence[str], names: Sequence[str]) -> Iterator[Running]:
    """Processes that sum up a table's data files. They end with the block."""
    count = min(os.cpu_count() or 1, PROCESSES_MAX)
    path = {"PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder)}
    started: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(count) as pool:
        try:
            started.extend(_process(path) for _ in range(count))
            shares = [Share(scan, columns, names, number, count) for number in range(count)]
            yield Running([pool.submit(_answer, *each) for each in zip(started, shares, strict=True)])
        finally:
            for process in started:
                process.kill()


def _process(path: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-Pm", "lakestore.union.shares"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | path,
    )


def _answer(process: subprocess.Popen[bytes], share: Share) -> Answer:
    data, said = process.communicate(pickle.dumps(share))
    if process.returncode:
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise Internal(f"a process that summed up data files ended with code {process.returncode}: {last}")
    answer: Answer = pickle.loads(data)  # noqa: S301 (bytes of our own process)
    return answer


def main() -> None:
    """A process: a share comes in, sums or an error go out."""
    from lakestore.union.shares import Share  # the class that the pickle names, which is not this module's, `__main__`

    share = pickle.load(sys.stdin.buffer)  # noqa: S301 (bytes of our own parent)
    assert isinstance(share, Share)
    answer: Answer
    try:
        answer = share.sums()
    except LakestoreError as error:
        answer = error
    sys.stdout.buffer.write(pickle.dumps(answer))


if __name__ == "__main__":
    main()
