"""gRPC itself, and the core that its Python servers are made of, imported once with its fork handlers off.

gRPC reads GRPC_ENABLE_FORK_SUPPORT when it is imported and at no other time. Its handlers run in every fork, and
Spark's JVM is started by fork and exec beside gRPC's threads: a handler can end the child before the child execs. The
variable is set for the length of the import alone, unless the user set it: nothing of it stays in the environment.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"

_said = os.environ.get(_FORK_SUPPORT)
os.environ.setdefault(_FORK_SUPPORT, "false")
try:
    import grpc

    core: Any = importlib.import_module("grpc._cython.cygrpc")
finally:
    if _said is None:
        del os.environ[_FORK_SUPPORT]

__all__ = ["core", "grpc"]
