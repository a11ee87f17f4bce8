"""The formats of files: the reader of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pyarrow as pa

from lakestore.errors import Invalid
from lakestore.loading.chunks import Chunk
from lakestore.loading.columnar import Columnar
from lakestore.loading.csv_blocks import Csv
from lakestore.loading.events import DebeziumLines
from lakestore.loading.files import TEXTS, File
from lakestore.loading.json_blocks import JsonLines
from lakestore.loading.progress import Place
from lakestore.loading.reading import Reader, Wanted
from lakestore.loading.texts import Text


def chunks_of(file: File, wanted: Wanted, place: Place) -> Iterator[Chunk]:
    """The records of a file from a place on; `Invalid` for bytes that are not its format at all."""
    with ExitStack() as stack:
        try:
            yield from _reader(file, wanted, stack).chunks(place)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise Invalid(f"{file.shown} cannot be read: {str(error).splitlines()[0]}") from error


def _reader(file: File, wanted: Wanted, stack: ExitStack) -> Reader:
    if file.kind not in TEXTS:
        return Columnar(file, stack.enter_context(file.seekable()), wanted)
    text = Text(file, stack.enter_context(file.stream()))
    if file.kind == "csv":
        return Csv(file, text, wanted)
    return JsonLines(file, text, wanted) if file.kind == "jsonl" else DebeziumLines(file, text, wanted)
