"""Reporting: the counts of a bridge to its server, which shows them in its status and metrics for a while."""

from __future__ import annotations

import json
import logging
import os
import socket
import time

from lakestore.client.lake import Lake
from lakestore.client.retry import within
from lakestore.connectors.bridge.lane.seen import Counts
from lakestore.errors import Invalid, LakestoreError
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire import reporters

REPORT_SECONDS, CALL_SECONDS = 5.0, 2.0
DETAIL_BYTES_MAX = 15 << 10
_LOG = logging.getLogger("lakestore.bridge")


class Reporter:
    """The reports of one bridge to its server. A failure is logged and nothing else: reports are for people."""

    def __init__(self, lake: Lake, bridge: str) -> None:
        self._lake = lake
        self._name = reporters.name_of(reporters.BRIDGE, bridge, socket.gethostname(), os.getpid())
        self._at = 0.0
        self._refused = False

    def tell(self, counts: Counts, *, last: bool = False) -> None:
        """Report, unless that was done just now and this is not the `last` one."""
        now = time.monotonic()
        if self._refused or (now - self._at < REPORT_SECONDS and not last):
            return
        self._at = now
        said = counts.shown()
        detail = json.dumps(said)
        if len(detail) > DETAIL_BYTES_MAX:
            detail = json.dumps({key: value for key, value in said.items() if not isinstance(value, dict)})
        request = pb.ReportRequest(
            producer=self._name,
            records=said["records"],
            bytes=said["bytes"],
            rejected=sum(said["rejected"].values()),
            lag=sum(said["lag"].values()),
            detail=detail,
        )
        try:
            with within(CALL_SECONDS):
                self._lake.transport.report(request)
        except Invalid as error:  # also of a server that is too old to know reports
            self._refused = True
            _LOG.info("the server takes no reports of this bridge: %s", error.message)
        except LakestoreError as error:
            _LOG.info("the bridge did not report to the server: %s", error.message)
