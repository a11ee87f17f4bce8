"""Damaged Arrow streams against the decoder, in a process of its own: `python -m tests.support.arrow_fuzz SEED COUNT`.

Each input is either refused as `Invalid` or gives rows that can be walked through. Anything else ends the process:
a signal, another exception, a second without an answer. The last line says which input it was.
"""

from __future__ import annotations

import random
import re
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from lakestore.errors import LakestoreError
from lakestore.rows import ipc

INPUT_SECONDS = 5
MEMORY_BYTES_MAX = 1 << 30
Options = pa.ipc.IpcWriteOptions
_ROWS = 300


def streams() -> list[bytes]:
    """Good streams of all kinds: flat, nested, with nulls, compressed, many batches, none."""
    flat = pa.table(
        {
            "id": pa.array(range(_ROWS), pa.int64()),
            "name": [f"n{i}" if i % 3 else None for i in range(_ROWS)],
            "price": pa.array([i / 7 for i in range(_ROWS)], pa.float64()),
            "flag": [i % 2 == 0 for i in range(_ROWS)],
        }
    )
    nested = pa.table(
        {
            "list": pa.array([[j for j in range(i % 5)] if i % 4 else None for i in range(_ROWS)]),
            "struct": pa.array([{"a": i, "b": str(i)} for i in range(_ROWS)]),
            "map": pa.array([[("k", i)] for i in range(_ROWS)], pa.map_(pa.string(), pa.int64())),
            "fixed": pa.array([b"abcd"] * _ROWS, pa.binary(4)),
            "word": pa.array(["x", "y", None] * (_ROWS // 3)).dictionary_encode(),
            "view": pa.array(["a string that is long enough to be elsewhere"] * _ROWS, pa.string_view()),
        }
    )
    found = []
    for table in (flat, nested, flat.slice(0, 0)):
        for options in (Options(), Options(compression="zstd"), Options(compression="lz4")):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
                writer.write_table(table, max_chunksize=100)
            found.append(bytes(sink.getvalue()))
    return found


def _flip(chance: random.Random, data: bytearray) -> None:
    for _ in range(chance.randint(1, 8)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _number(chance: random.Random, data: bytearray) -> None:
    """A length, an offset or a count becomes another one."""
    at = chance.randrange(0, max(1, len(data) - 8), 4)
    value = chance.choice([0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), chance.getrandbits(16)])
    width = 8 if not -(2**31) <= value < 2**31 else 4
    data[at : at + width] = value.to_bytes(width, "little", signed=True)


def _cut(chance: random.Random, data: bytearray) -> None:
    del data[chance.randrange(len(data)) :]


def _drop(chance: random.Random, data: bytearray) -> None:
    start = chance.randrange(len(data))
    del data[start : start + chance.randint(1, 64)]


def _repeat(chance: random.Random, data: bytearray) -> None:
    start = chance.randrange(len(data))
    part = data[start : start + chance.randint(1, 256)]
    data[start:start] = part


def _splice(chance: random.Random, data: bytearray) -> None:
    start, other = chance.randrange(len(data)), chance.randrange(len(data))
    data[start : start + 64] = data[other : other + 64]


MUTATIONS: tuple[Callable[[random.Random, bytearray], None], ...] = (_flip, _number, _cut, _drop, _repeat, _splice)


def inputs(seed: int, count: int) -> Iterator[bytes]:
    """Damaged streams, the same for a seed."""
    chance, good = random.Random(seed), streams()
    for _ in range(count):
        data = bytearray(chance.choice(good))
        for _ in range(chance.randint(1, 3)):
            if data:
                chance.choice(MUTATIONS)(chance, data)
        yield bytes(data)


def walked(data: bytes) -> bool:
    """Whether the input was taken; its rows are then walked through."""
    try:
        batch = ipc.decode(data)
    except LakestoreError as error:
        assert error.kind in ("Invalid", "Exhausted"), repr(error)
        return False
    batch.to_pylist()
    return True


def _peak_bytes() -> int:
    """The most memory of this program; the kernel's `ru_maxrss` is that of the process which started it, if that had
    more."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found, "the kernel tells no VmHWM"
    return int(found[1]) * 1024


def main() -> None:
    """Run, and say how many were taken."""
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (8 * MEMORY_BYTES_MAX, 8 * MEMORY_BYTES_MAX))
    taken = 0
    for number, data in enumerate(inputs(seed, count)):
        sys.stdout.write(f"input {number}\n")
        sys.stdout.flush()
        signal.alarm(INPUT_SECONDS)
        taken += walked(data)
        signal.alarm(0)
    peak = _peak_bytes()
    assert peak < MEMORY_BYTES_MAX, f"{peak >> 20} MB were taken"
    sys.stdout.write(f"done: {taken} of {count} taken, {peak >> 20} MB\n")


if __name__ == "__main__":
    main()
