"""Decimals of outside: exact or refused, and none ends the process, as Arrow's own scaling of far exponents does."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestore.errors import Invalid
from lakestore.model.decimals import fitted
from lakestore.model.defaults import scalar
from lakestore.model.table import define
from lakestore.rows.condition_text import parse
from lakestore.rows.python import of_dicts
from tests.support.loading import read

KIND = pa.decimal128(9, 3)
SCHEMA = pa.schema([("d", KIND)])
FAR = ("1e-999999999", "0.0001", "1000000", "1e999999", "NaN")


@given(
    st.decimals(allow_nan=False, allow_infinity=False) | st.integers(-(10**9), 10**9).map(lambda n: Decimal(n) / 1000)
)
def test_decimal_is_itself_or_refused(number: Decimal) -> None:
    step = Decimal(1).scaleb(-KIND.scale)
    try:
        found = fitted(number, KIND)
    except ValueError:
        assert abs(number) >= 10**6 or (abs(number) > 10**-40 and number % step) or 0 < abs(number) < step
        return
    assert found == number
    assert pa.scalar(found, KIND).as_py() == number


@pytest.mark.parametrize("text", FAR)
def test_far_decimal_is_refused_wherever_it_comes_in(text: str, tmp_path: Path) -> None:
    """A condition and a default come off the wire, a file and a dict from a user."""
    table = define("a.b", SCHEMA)
    if text == "0.0001":  # a CAST that somebody wrote rounds, as in DuckDB
        parse(f"d > CAST('{text}' AS DECIMAL(9,3))", table)
    else:
        with pytest.raises(Invalid):
            parse(f"d > CAST('{text}' AS DECIMAL(9,3))", table)
    with pytest.raises(Invalid):
        scalar(text, "decimal(9,3)", "d")
    with pytest.raises(Invalid):
        scalar(Decimal(text), "decimal(9,3)", "d")
    with pytest.raises(Invalid):
        of_dicts([{"d": Decimal(text)}], SCHEMA)
    file = tmp_path / "rows.jsonl"
    for written in (text, json.dumps(text)):
        file.write_text(f'{{"d":{written}}}\n')
        with pytest.raises(Invalid):
            read(file, SCHEMA)


def test_decimal_with_an_exponent_is_read(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"d":125e-2}\n{"d":"1.5000000"}\n{"d":null}\n{}\n')
    rows = read(file, SCHEMA).column("d").to_pylist()
    assert rows == [Decimal("1.250"), Decimal("1.500"), None, None]
    assert scalar("1.25", "decimal(9,3)", "d").as_py() == Decimal("1.250")
    assert of_dicts([{"d": Decimal("1.25000")}], SCHEMA).column("d").to_pylist() == [Decimal("1.250")]
