"""A function of the program that gives the token, and fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.client.credentials import Credentials
from lakestore.errors import Invalid, LakestoreError, NotAuthenticated, Unavailable
from tests.support.served import Served


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (ConnectionError("the vault is down"), Unavailable),
        (KeyError("token"), NotAuthenticated),
        (Invalid("there is no such file"), Invalid),
    ],
)
def test_a_function_that_fails_is_the_error_of_the_call(failure: Exception, kind: type[LakestoreError]) -> None:
    def function() -> str:
        raise failure

    with pytest.raises(kind) as caught:
        Credentials(function).metadata()
    assert failure.args[0] in str(caught.value)


def test_a_function_that_gives_no_text_is_told() -> None:
    function: Any = lambda: None  # noqa: E731
    with pytest.raises(NotAuthenticated, match="the function of the token failed"):
        Credentials(function).metadata()


def test_a_writer_ends_and_a_connection_closes_when_the_function_fails(tmp_path: Path) -> None:
    tokens = ["one"]
    with Served(tmp_path, ports=True) as served:
        lake = ls.connect(served.server.about["grpc"], token=lambda: tokens[0])
        table = lake.create_table("t.a", pa.schema([("id", pa.int64())]))
        cut = lake.snapshot()
        assert cut.sql("SELECT count(*) AS n FROM t.a").to_pylist() == [{"n": 0}]
        tokens.clear()
        with pytest.raises(NotAuthenticated, match="IndexError"), lake.within(30.0):
            table.append([{"id": 1}])
        writer = table.writer()

        def written() -> None:
            writer.append([{"id": 1}])
            writer.flush()

        with pytest.raises(NotAuthenticated, match="IndexError"), lake.within(30.0):
            written()
        cut.close()
        lake.close()
