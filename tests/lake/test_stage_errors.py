"""The error of a round whose stage was removed while it ran."""

from __future__ import annotations

from typing import Any

import pytest

from lakestore.errors import Conflict, NotFound
from lakestore_tiering.flush import stage_errors

BRANCH = "lakestore_stage_3_ab"


class Lake:
    """A lake table with some branches."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def refresh(self) -> None:
        """Nothing is newer."""

    def branches(self, prefix: str) -> list[str]:
        """The branches that begin so."""
        return [name for name in self._names if name.startswith(prefix)]


@pytest.mark.parametrize("error", [NotFound("Failed to open input stream for file: x-m0.avro"), FileNotFoundError("x")])
def test_a_removed_stage_is_named(error: Exception) -> None:
    gone: Any = Lake("other")
    with (
        pytest.raises(Conflict, match=rf"branch {BRANCH} of lake table a\.t.*was removed.*the next round"),
        stage_errors(gone, "a.t", BRANCH),
    ):
        raise error
    for there, branch in ((Lake(BRANCH), BRANCH), (Lake(), "")):
        lake: Any = there
        with pytest.raises(type(error)), stage_errors(lake, "a.t", branch):
            raise error
