"""The package is lazy: a name loads its module alone, and importing sets nothing in the environment."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lakestore as ls
from tests.support.house import ROOT

HEAVY = {"pyarrow", "numpy", "grpc", "google.protobuf", "lakestore.client", "lakestore.model", "lakestore_server"}


def run(program: str, **environment: str) -> str:
    """What a fresh Python prints, errors included."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**known, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


@pytest.mark.parametrize(
    "program",
    [
        "import lakestore",
        "import lakestore.errors",
        "import lakestore as ls; ls.Conflict, ls.errors.Conflict",
        "from lakestore.cli.main import cli; cli.main(['--help'], standalone_mode=False)",
    ],
)
def test_neither_errors_nor_the_list_of_commands_load_arrow_or_grpc(program: str) -> None:
    loaded = set(run(f"import sys\n{program}\nprint('modules:', *sys.modules)").rpartition("modules:")[2].split())
    assert "lakestore" in loaded
    assert not loaded & HEAVY


def test_every_public_name_is_there_and_no_other() -> None:
    assert {name for name in ls.__all__ if getattr(ls, name) is not None} == set(ls.__all__)
    assert set(ls.__all__) <= set(dir(ls))
    with pytest.raises(AttributeError, match="'lakestore' has no attribute 'opne'"):
        ls.opne  # type: ignore[attr-defined] # noqa: B018


def test_type_checkers_are_told_of_the_same_homes() -> None:
    tree = ast.parse((ROOT / "lakestore" / "__init__.py").read_text())
    (told,) = (node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name))
    imports = [node for node in told.body if isinstance(node, ast.ImportFrom)]
    assert {node.module: tuple(alias.name for alias in node.names) for node in imports} == ls._HOMES
    assert set(ls._MODULE_OF) == set(ls.__all__)


@pytest.mark.parametrize("said", ["", "1"])
def test_importing_everything_leaves_the_environment_as_it_was(said: str) -> None:
    program = (
        "import os; before = dict(os.environ)\n"
        "import lakestore as ls; [getattr(ls, name) for name in ls.__all__]; import lakestore_server.main, grpc\n"
        "assert dict(os.environ) == before; print('same')"
    )
    assert "same" in run(program, **({"GRPC_ENABLE_FORK_SUPPORT": said} if said else {}))


def test_a_child_that_is_forked_beside_a_connection_runs_no_handler_of_grpc(tmp_path: Path) -> None:
    """Spark's JVM is such a child: it is forked and executed while threads of gRPC run. The server is no other."""
    script = tmp_path / "forks.py"
    script.write_text(
        "import importlib, os, sys\n"
        "importlib.import_module(sys.argv[1])\n"
        "import grpc\n"
        "channel = grpc.insecure_channel('127.0.0.1:1')\n"
        "try:\n    channel.unary_unary('/a/b')(b'', timeout=5)\n"
        "except grpc.RpcError:\n    pass\n"
        "child = os.fork()\n"
        "child or os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    said = {}
    theirs, ours = "grpc", ("lakestore.wire.rpc", "lakestore_server.main")
    for module in (theirs, *ours):
        program = f"import runpy, sys; sys.argv = ['forks', {module!r}]; runpy.run_path({str(script)!r})"
        said[module] = run(program, GRPC_VERBOSITY="debug", GRPC_TRACE="fork,event_engine")
    assert "PrepareFork" in said[theirs], "gRPC's handlers say another word by now: look for that one"
    assert [module for module in ours if "PrepareFork" in said[module]] == []
