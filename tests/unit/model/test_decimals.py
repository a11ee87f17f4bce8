"""Decimals of outside: exact or refused, and none ends the process, as Arrow's own scaling of far exponents does."""

from __future__ import annotations

import json
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakestore.errors import Invalid
from lakestore.iceberg.values import unscaled_bytes
from lakestore.model import decimals
from lakestore.model.decimals import fit_type
from lakestore.model.defaults import scalar
from lakestore.model.table import define
from lakestore.rows import pushdown
from lakestore.rows.condition_text import parse
from lakestore.rows.user import of_dicts
from lakestore.union.lake_ranges import bound
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
        found = fit_type(number, KIND)
    except ValueError:
        assert abs(number) >= 10**6 or (abs(number) > 10**-40 and number % step) or 0 < abs(number) < step
        return
    assert found == number
    assert pa.scalar(found, KIND).as_py() == number


def _digits(unscaled: int, scale: int) -> str:
    """The number as text, made without `decimal`."""
    text = str(abs(unscaled)).rjust(scale + 1, "0")
    return ("-" if unscaled < 0 else "") + text[: len(text) - scale] + "." + text[len(text) - scale :]


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(1, 38))
@example(12345678901234567890123456789012345678, 5)
@example(-12345678901234567890123456789012345678, 5)
def test_every_digit_of_38_is_kept(unscaled: int, scale: int) -> None:
    """In bounds of manifests, pushed literals, conditions, defaults and values of rows, beyond Python's 28 digits."""
    kind, text = pa.decimal128(38, scale), _digits(unscaled, scale)
    number = Decimal(text)
    assert decimals.from_unscaled_value(unscaled, scale) == number
    assert fit_type(number, kind) == number
    assert decimals.round_exact(number, scale, ROUND_FLOOR) == number
    assert decimals.product(number, number) == Decimal(_digits(unscaled * unscaled, 2 * scale))
    assert decimals.places(number) <= scale
    most = 10**38 - 1
    assert decimals.extremes(kind) == (Decimal(_digits(-most, scale)), Decimal(_digits(most, scale)))
    assert bound(unscaled_bytes(unscaled), kind) == number
    assert scalar(text, f"decimal(38,{scale})", "d").as_py() == number
    table = define("a.b", pa.schema([("d", kind)]))
    condition = pushdown.parse(pc.field("d") == pa.scalar(number, kind), table, pa.schema([("d", kind)]))
    assert condition is not None
    assert text in condition.text
    rows = pa.record_batch({"d": pa.array([number, None], kind)})
    assert parse(f"d = {text}", table).mask(rows).tolist() == [True, False]


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
