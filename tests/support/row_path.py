"""The way of one keyed row from `upsert` to its acknowledgement, in process: modules visited and crossings.

`python -m tests.support.row_path` prints both counts, then the modules in the order in which they were entered. A
crossing is a call from a function of one module of the product into one of another; the last of three equal upserts
is counted, so that nothing is loaded or learned on the way.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

import lakestore as ls

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = tuple(str(ROOT / name) for name in ("lakestore", "server", "tiering", "spark_reader"))
SCHEMA = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("amount", pa.float64())])


@dataclass(slots=True)
class Walk:
    """Modules in the order of their first visit, and crossings between them."""

    modules: dict[str, None] = field(default_factory=dict)
    crossings: Counter[tuple[str, str]] = field(default_factory=Counter)

    def called(self, frame: FrameType, event: str, _: Any) -> None:
        """The profile function of every thread."""
        if event != "call":
            return
        target = _module(frame)
        if target is None:
            return
        self.modules[target] = None
        source = _module(frame.f_back) if frame.f_back else None
        if source and source != target:
            self.crossings[source, target] += 1


def _module(frame: FrameType) -> str | None:
    file = frame.f_code.co_filename
    if not file.startswith(PRODUCT) or "_pb2" in file:
        return None
    return str(Path(file).relative_to(ROOT))


def walked() -> Walk:
    """The way of one upsert of one row, after two like it."""
    walk = Walk()
    row = [{"id": 1, "customer": "ann", "amount": 1.0}]
    with tempfile.TemporaryDirectory() as folder:
        switch: list[Walk] = []

        def profile(frame: FrameType, event: str, argument: Any) -> None:
            if switch:
                switch[0].called(frame, event, argument)

        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            with ls.open(folder) as lake:
                orders = lake.create_table("shop.orders", schema=SCHEMA, primary_key=["id"])
                orders.upsert(row)
                orders.upsert(row)
                switch.append(walk)
                orders.upsert(row)
                switch.clear()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return walk


if __name__ == "__main__":
    walk = walked()
    print(f"{len(walk.modules)} modules, {sum(walk.crossings.values())} crossings")
    for name in walk.modules:
        print(f"  {name}")
    for (source, target), count in walk.crossings.most_common(12):
        print(f"{count:4} {source} -> {target}")
