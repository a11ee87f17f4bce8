"""The core of grpcio, of which its own servers for Python are made. The port alone uses it; clients never come here.

It is no public interface. So the names that are used are looked up here, and a grpcio that lacks one is refused in a
sentence when a server is to listen.
"""

from __future__ import annotations

import importlib
from typing import Any

from lakestore.errors import Unavailable
from lakestore.wire.grpc import grpc  # first: it sets how gRPC behaves in a fork

USED = (
    "CompletionQueue",
    "CompletionType",
    "ReceiveCloseOnServerOperation",
    "ReceiveMessageOperation",
    "SendInitialMetadataOperation",
    "SendMessageOperation",
    "SendStatusFromServerOperation",
    "Server",
    "StatusCode",
    "auth_context",
)
"""The names of the core that the port uses."""


def loaded(module: str = "grpc._cython.cygrpc") -> Any:
    """The core, or `Unavailable` if this grpcio has no such core."""
    try:
        core = importlib.import_module(module)
    except ImportError:
        core = None
    lacking = [name for name in USED if not hasattr(core, name)]
    if lacking:
        raise Unavailable(
            f"grpcio {grpc.__version__} lacks {lacking[0]}, which this server uses: install the grpcio that"
            " requirements.lock names"
        )
    return core
