"""Models start a server after the other: the processes of their indexes are forked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.forked_index import forked_index


@pytest.fixture(scope="module", autouse=True)
def _index() -> Iterator[None]:
    with forked_index():
        yield
