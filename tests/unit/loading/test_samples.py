"""Samples of files that name the columns of a new table: what cannot be read is told by file and line."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from lakestore.errors import Invalid
from lakestore.loading.files import source_of
from lakestore.loading.inference import sampled
from lakestore.loading.reading import Options


@pytest.mark.parametrize("name", ["bad.csv", "bad.csv.gz"])
def test_a_line_that_is_no_utf_8_is_named_with_its_file(tmp_path: Path, name: str) -> None:
    lines = [b"id,v", b'1,"two', b'lines"', b"", *(b"%d,x" % number for number in range(2, 200)), b"200,\xff\xfe"]
    data = b"\n".join(lines) + b"\n"
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    (file,) = source_of(str(path)).files
    with pytest.raises(Invalid, match=f"{re.escape(file.shown)}, line {len(lines)}: the line is no UTF-8"):
        sampled(file, Options())
