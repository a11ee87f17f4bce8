"""The RPCs of a lake, each sent once: for tests that look at a server's refusals, which a lake would try again."""

from __future__ import annotations

from functools import partial
from typing import Any

import lakestore as ls
from lakestore.client.calls import CALL_SECONDS
from lakestore.client.transport import Transport
from lakestore.wire import rpc


class _OneTry:
    def __init__(self, lake: ls.Lake) -> None:
        transport: Any = lake.transport
        for method in rpc.METHODS.values():
            if method.streams_out:
                setattr(self, method.attribute, getattr(transport, method.attribute))
            else:
                setattr(self, method.attribute, partial(_call, transport.wire, method))


def _call(wire: Any, method: rpc.Method, request: Any) -> Any:
    return wire.call(method, request, CALL_SECONDS)


def one_try(lake: ls.Lake) -> Transport:
    """The transport of a lake without its tries."""
    made: Any = _OneTry(lake)
    found: Transport = made
    return found
