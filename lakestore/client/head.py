"""The head of a server's history: the token of this moment."""

from __future__ import annotations

import json

from lakestore.client.transport import Transport
from lakestore.errors import UnknownCall
from lakestore.v1 import lakestore_pb2 as pb


def head(transport: Transport, table: str = "") -> str:
    """The token of the newest commit, in one small answer.

    A server older than `Head` says it in its status, which grows with the tables that it tells of: `table` is one that
    the caller may see, so that it tells of no other.
    """
    try:
        return transport.head(pb.HeadRequest()).token
    except UnknownCall:
        status = transport.status(pb.StatusRequest(tables=[table] if table else [])).status
        return str(json.loads(status)["token"])
