"""One browser for all tests of pages, and one server with something to show."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.console.scene import console_of, draw_curves, furnish
from tests.support import browser
from tests.support.browser import Browser
from tests.support.served import Served


@pytest.fixture(scope="session")
def page() -> Iterator[Browser]:
    if not browser.find():
        pytest.fail(browser.MISSING)
    with Browser() as made:
        yield made


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("console") / "data", ports=True) as served:
        console_of(served).sampler.close()
        furnish(served)
        draw_curves(served, console_of(served).sampler.history)
        yield served
