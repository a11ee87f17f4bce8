"""A process in the place of a query's that sends what the text names: `python -m tests.support.garbage_process`."""

from __future__ import annotations

import os
import time

import pyarrow as pa

from lakestore_server.host.child import HEAD, MAGIC, VERSION, Kind, Parent, PartPieces
from lakestore_server.queries.question import Figures, Head, Part, Question
from lakestore_server.queries.sent_rows import Place

SCHEMA = pa.schema([("v", pa.string())])
TO_SERVER = os.dup(1)
WRITES = {"no frame": b"x" * 100, "huge frame": HEAD.pack(MAGIC, VERSION, Kind.PART, 0, (1 << 32) - 1)}


def _wild() -> bytes:
    """A batch whose text begins in the message and ends two gigabytes behind it."""
    length = 7_777
    before, _, data = bytes(pa.record_batch({"v": ["x" * length]}).serialize()).rpartition(length.to_bytes(4, "little"))
    return before + (2**31 - 1).to_bytes(4, "little") + data


PARTS = {
    "short part": b"x",
    "bad batch": Part.head(1) + b"\xff\xff\xff\xff\x10\x00\x00\x00" + b"\x07" * 100,
    "wild place": Part.head(1, Place(1, 0, 0)),
    "wild offsets": Part.head(1) + _wild(),
}


def answer(_verb: int, data: bytes) -> PartPieces:
    """The parts that the text names, in the place of rows."""
    text = Question.from_bytes(data)[0].text
    if text == "no head":
        return b"{}"
    yield b"\xff" * 100 if text == "bad head" else Head(SCHEMA, "token").to_bytes()
    if text in WRITES:
        os.write(TO_SERVER, WRITES[text])
        time.sleep(600)
    if text in PARTS:
        yield PARTS[text]
    if text == "death":
        os.kill(os.getpid(), 9)
    while text == "endless":
        yield Part.head(1) + pa.record_batch({"v": ["x" * 100_000]}).serialize().to_pybytes()
    return b"[]" if text == "bad figures" else Figures(0).to_bytes()


if __name__ == "__main__":
    parent = Parent()
    while parent.reply(answer):
        pass
