"""The port uses what is not public of grpcio: a release without it is refused in a sentence, before anybody calls."""

from __future__ import annotations

import pytest

from lakestore.errors import Unavailable
from lakestore_server.edge import rpc_port


def test_this_grpcio_has_what_the_port_uses() -> None:
    core = rpc_port.loaded()
    assert core.StatusCode.ok == 0


@pytest.mark.parametrize("module", ["json", "grpc._cython.nothing"])
def test_a_core_that_lacks_something_is_refused(module: str) -> None:
    with pytest.raises(Unavailable, match=r"lacks CompletionQueue.*requirements\.lock"):
        rpc_port.loaded(module)
