"""The port uses what is not public of grpcio: a release without it is refused in a sentence, before anybody calls."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from lakestore.errors import Unavailable
from lakestore_server.edge import rpc_port


def test_this_grpcio_has_what_the_port_uses() -> None:
    core = rpc_port.loaded()
    assert core.StatusCode.ok == 0


@pytest.mark.parametrize("module", ["json", "grpc._cython.nothing"])
def test_a_core_that_lacks_something_is_refused(module: str) -> None:
    with pytest.raises(Unavailable, match=rf"lacks CompletionQueue.*install grpcio {rpc_port.TESTED}"):
        rpc_port.loaded(module)


def test_the_minor_that_the_port_names_is_installed_and_pinned() -> None:
    major, minor = rpc_port.TESTED.split(".")
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    pins = [pin for pin in project["dependencies"] if pin.startswith("grpcio")]
    assert {pin.partition(">=")[2] for pin in pins} == {f"{rpc_port.TESTED},<{major}.{int(minor) + 1}"}
    assert version("grpcio").startswith(f"{rpc_port.TESTED}.")
