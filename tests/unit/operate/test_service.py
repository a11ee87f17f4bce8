"""A server has a verb for every RPC, or does not start."""

from __future__ import annotations

import pytest

from lakestore.errors import Internal
from lakestore.wire import rpc
from lakestore_server.operate.backup import Backups
from lakestore_server.service import _verb


@pytest.mark.parametrize("method", list(rpc.methods()), ids=lambda method: method.name)
def test_a_verb_that_no_part_has_is_an_error_at_start(method: rpc.Method) -> None:
    with pytest.raises(Internal, match=f"the verb {method.name}$"):
        _verb((object(),), method)


def test_a_verb_is_that_of_the_part_that_has_it() -> None:
    (method,) = (each for each in rpc.methods() if each.name == "Backup")
    assert _verb((object(), Backups), method) is Backups.backup
