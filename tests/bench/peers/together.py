"""Several writers that commit at once, each in a thread with a connection of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from tests.bench.peers.contest import Failed


def timed_together(commits: Sequence[Callable[[], object]], count: int) -> tuple[list[float], float]:
    """Call each of `commits` `count` times in a thread of its own. Milliseconds of each call, seconds of all.

    Raises `Failed` with the first error of a writer.
    """
    took, failures, begin = list[float](), list[BaseException](), threading.Barrier(len(commits) + 1)

    def write(commit: Callable[[], object]) -> None:
        begin.wait()
        try:
            for _ in range(count):
                began = time.perf_counter()
                commit()
                took.append((time.perf_counter() - began) * 1e3)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(commit,)) for commit in commits]
    for thread in threads:
        thread.start()
    begin.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if failures:
        raise Failed(f"{len(failures)} of {len(commits)} writers failed: {failures[0]}")
    return took, seconds
