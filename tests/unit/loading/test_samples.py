"""Samples of files that name the columns of a new table: what cannot be read is told by file and line."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

from lakestore.errors import Invalid
from lakestore.loading.casts import Casts
from lakestore.loading.files import source_of
from lakestore.loading.inference import sample_columns
from lakestore.loading.reading import Options, columns
from lakestore.rows import casting
from lakestore.rows.scalar_casts import Mask


@pytest.mark.parametrize("name", ["bad.csv", "bad.csv.gz"])
def test_a_line_that_is_no_utf_8_is_named_with_its_file(tmp_path: Path, name: str) -> None:
    lines = [b"id,v", b'1,"two', b'lines"', b"", *(b"%d,x" % number for number in range(2, 200)), b"200,\xff\xfe"]
    data = b"\n".join(lines) + b"\n"
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    (file,) = source_of(str(path)).files
    with pytest.raises(Invalid, match=f"{re.escape(file.shown)}, line {len(lines)}: the line is not UTF-8"):
        sample_columns(file, Options())


def test_a_column_of_texts_is_not_searched_for_every_text_that_is_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "texts.csv"
    path.write_text(
        "name,day,note\n" + "".join(f"word {i},2024-01-{i % 28 + 1:02},2024-01-01 #{i}\n" for i in range(5000))
    )
    (file,) = source_of(str(path)).files
    mask = casting.mask
    values: list[int] = []

    def counted(array: pa.Array, field: pa.Field, rules: casting.Rules) -> tuple[pa.Array, Mask | None]:
        values.append(len(array))
        return mask(array, field, rules)

    monkeypatch.setattr(casting, "mask", counted)
    schema = sample_columns(file, Options()).schema
    assert schema == pa.schema([("name", pa.string()), ("day", pa.date32()), ("note", pa.string())])
    assert sum(values) < 2 * 5000


class _Judged(Casts):
    """Casts that note the rows of which they say why they do not fit."""

    rows: ClassVar[list[int]] = []

    def why(self, array: pa.Array, row: int, field: pa.Field) -> str:
        self.rows.append(row)
        return super().why(array, row, field)


@pytest.mark.parametrize(("bad_max", "judged"), [(0, 1), (10, 11)])
def test_a_column_of_another_type_is_judged_up_to_the_row_that_ends_the_load(bad_max: int, judged: int) -> None:
    values = pa.array(["2024-01-01 00:00:00"] * 100 + ["no time"] * 5000)
    schema = pa.schema([("at", pa.timestamp("us"))])
    _Judged.rows.clear()
    _, refused = columns({"at": values}, schema, _Judged(casting.CSV), len(values), bad_max=bad_max)
    assert list(refused) == list(range(100, 5100))
    assert [row for row, reason in refused.items() if reason] == list(range(100, 100 + judged))
    assert _Judged.rows == list(range(100, 100 + judged))


def test_types_that_the_user_names_are_those_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,code\n1,10\n2,20\n")
    (file,) = source_of(str(path)).files
    schema = sample_columns(file, Options(), {"code": "string", "id": "int32"}).schema
    assert schema == pa.schema([("id", pa.int32()), ("code", pa.string())])
    with pytest.raises(Invalid, match=r"has no column 'cod': did you mean code\?"):
        sample_columns(file, Options(), {"cod": "string"})
