"""Iceberg's Java library loads all metadata that these tests store."""

from collections.abc import Iterator

import pytest

from tests.support.iceberg_judge import judged


@pytest.fixture(autouse=True)
def java_judge() -> Iterator[None]:
    """Fail the test if the catalog stored a document that Java refuses."""
    with judged():
        yield
