"""A session whose catalog names the server's host otherwise is the server's."""

from __future__ import annotations

import pytest

from lakestore_spark.session import same_address

SERVER = "http://127.0.0.1:7341/iceberg"


@pytest.mark.parametrize("said", [SERVER, "http://localhost:7341/iceberg", "http://127.0.0.1:7341/iceberg/"])
def test_an_address_that_leads_to_the_server_is_the_servers(said: str) -> None:
    assert same_address(said, SERVER)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "http://localhost:7342/iceberg",
        "https://localhost:7341/iceberg",
        "http://localhost:7341/other",
        "http://localhost:port/iceberg",
        "http://10.1.2.3:7341/iceberg",
    ],
)
def test_another_address_is_not(said: str) -> None:
    assert not same_address(said, SERVER)
