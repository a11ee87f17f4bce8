"""Generates the wire code before the package is built, when `make proto` has not done so."""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

NAMES = ("lakestore", "flight")
OUTPUTS = ("--python_out=.", "--grpc_python_out=.", "--mypy_out=quiet:.")


class BuildWithProto(build_py):
    """`build_py`, after protoc."""

    def run(self) -> None:
        """Generate what is missing, then build."""
        if not all(Path(f"lakestore/v1/{name}_pb2.py").exists() for name in NAMES):
            files = [f"proto/lakestore/v1/{name}.proto" for name in NAMES]
            command = [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", *OUTPUTS, *files]
            # protoc finds its plugin for types on the path, where an environment that is not activated is not.
            path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
            subprocess.run(command, check=True, env={**os.environ, "PATH": path})
        super().run()


setup(cmdclass={"build_py": BuildWithProto})
