"""The doors that others' clients come through: an open one, and one that asks who they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.sql_door import Door


@pytest.fixture(scope="module", params=[pytest.param("open", marks=pytest.mark.long), "guarded"])
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A server that all tests of a module ask: open, and with principals, of whom `ann` reads shop.*."""
    guarded = request.param == "guarded"
    with Door(tmp_path_factory.mktemp("door"), guarded=guarded) as running:
        yield running
