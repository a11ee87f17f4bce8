"""The modules and crossings of four short calls in process.

The four calls are an upsert of one keyed row, a look-up of one key, a look-up of two keys, and one batch read from a
change stream. A crossing is a call from a function of one module of the product into a function of another module.
After two equal calls every module is loaded and every cache is warm. Of the five calls behind them the one with the
fewest crossings is counted, because a background thread of the server may work during a call and only adds to it.

`python -m tests.support.row_path` prints the counts of each call. With `upsert`, `lookup`, `two` or `changes` it
prints the modules of that call in the order of their first visit, and the crossings.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

import lakestore as ls

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = tuple(str(ROOT / name) for name in ("lakestore", "server", "tiering", "spark_reader"))
SCHEMA = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("amount", pa.float64())])
ROW = [{"id": 1, "customer": "ann", "amount": 1.0}]
BARS = {"upsert": (56, 232), "lookup": (25, 45), "two": (32, 97), "changes": (28, 120)}
"""The most modules and crossings of each call. The goals for an upsert are 45 and 150, for two keys 32 and 80."""


@dataclass(slots=True)
class Walk:
    """Modules in the order of their first visit, crossings between them, and the number of Python calls."""

    modules: dict[str, None] = field(default_factory=dict)
    crossings: Counter[tuple[str, str]] = field(default_factory=Counter)
    calls: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """(modules, crossings)."""
        return len(self.modules), self.crossings.total()

    def called(self, frame: FrameType, event: str) -> None:
        """Count one event of the profile function."""
        if event != "call":
            return
        target = _module(frame)
        if target is None:
            return
        self.calls += 1
        self.modules[target] = None
        source = _module(frame.f_back) if frame.f_back else None
        if source and source != target:
            self.crossings[source, target] += 1


def _module(frame: FrameType) -> str | None:
    file = frame.f_code.co_filename
    if not file.startswith(PRODUCT) or "_pb2" in file:
        return None
    return str(Path(file).relative_to(ROOT))


@contextmanager
def profiled() -> Iterator[Callable[[Callable[[], object]], Walk]]:
    """A function that runs a call and returns its walk, over all threads that begin within the block."""
    current: list[Walk] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if current:
            current[0].called(frame, event)

    def walk_of(call: Callable[[], object]) -> Walk:
        call()
        call()
        counted = [Walk() for _ in range(5)]
        for walk in counted:
            current.append(walk)
            call()
            current.clear()
        return min(counted, key=lambda walk: walk.crossings.total())

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield walk_of
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def walks() -> dict[str, Walk]:
    """The walk of each call, by its name."""
    with tempfile.TemporaryDirectory() as folder, profiled() as walk_of, ls.open(folder) as lake:
        orders = lake.create_table("shop.orders", schema=SCHEMA, primary_key=["id"])
        upsert = walk_of(lambda: orders.upsert(ROW))
        orders.upsert([{"id": 2, "customer": "bob", "amount": 2.0}])
        lookup = walk_of(lambda: orders.lookup([{"id": 1}]))
        two = walk_of(lambda: orders.lookup([{"id": 1}, {"id": 2}]))
        changes = walk_of(lambda: next(iter(orders.changes("earliest"))))
    return {"upsert": upsert, "lookup": lookup, "two": two, "changes": changes}


def too_long(walks_by_name: dict[str, Walk]) -> list[str]:
    """A sentence for each call that visits more modules, or crosses more often, than its bar allows."""
    sentences = []
    for name, walk in walks_by_name.items():
        sizes = zip(("modules", "crossings"), walk.size, BARS[name], strict=True)
        sentences += [f"{name}: {size} {what} are more than {most}" for what, size, most in sizes if size > most]
    return sentences


def main(names: list[str]) -> None:
    """Print the counts of all calls, and the walks of those that are named."""
    for name, walk in walks().items():
        modules, crossings = walk.size
        print(f"{name}: {modules} modules, {crossings} crossings, {walk.calls} calls")
        if name in names:
            print(*(f"  {module}" for module in walk.modules), sep="\n")
            for (source, target), count in walk.crossings.most_common():
                print(f"{count:4} {source} -> {target}")


if __name__ == "__main__":
    main(sys.argv[1:])
