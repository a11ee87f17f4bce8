"""gRPC itself, imported once with its fork handlers off.

gRPC reads GRPC_ENABLE_FORK_SUPPORT when it is imported and at no other time. Its handlers run in every fork, and
Spark's JVM is started by fork and exec beside gRPC's threads: a handler can end the child before the child execs. The
variable is set for the length of the import alone, unless the user set it: nothing of it stays in the environment.
"""

from __future__ import annotations

import os

_FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"

_said = os.environ.get(_FORK_SUPPORT)
os.environ.setdefault(_FORK_SUPPORT, "false")
try:
    import grpc
finally:
    if _said is None:
        del os.environ[_FORK_SUPPORT]

__all__ = ["grpc"]
