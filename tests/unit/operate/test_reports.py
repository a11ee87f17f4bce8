"""Reports have types and sizes, and one principal takes no more than its share."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from lakestore.cli.tables import _report
from lakestore.errors import Exhausted, Invalid
from lakestore.kafka.bridge.counts import Counts
from lakestore.limits import Limits
from lakestore.v1 import lakestore_pb2 as pb
from lakestore.wire.tracing import DETAIL
from lakestore_server.operate.reports import BYTES_MAX, REPORTS_MAX, Reports
from tests.support.world.clock import HandClock

BIG = json.dumps({"waiting": "\U0001f600" * 4_000}, ensure_ascii=False)


@pytest.fixture
def reports() -> Reports:
    return Reports(HandClock(), Limits())


def _filled(reports: Reports, owner: str, detail: str) -> int:
    for number in range(REPORTS_MAX + 1):
        try:
            reports.report(pb.ReportRequest(producer=f"{owner}/{number}", detail=detail, owner=owner))
        except Exhausted:
            return number
    pytest.fail("no limit")


@pytest.mark.parametrize("detail", ["{}", BIG])
def test_one_principal_leaves_room_for_another(reports: Reports, detail: str) -> None:
    assert 0 < _filled(reports, "writer", detail) <= REPORTS_MAX // 2
    reports.report(pb.ReportRequest(producer="writer/0", detail=detail, owner="writer"))
    reports.report(pb.ReportRequest(producer="etl/0", detail=detail, owner="etl"))
    _filled(reports, "etl", detail)
    status = orjson.dumps([report.as_dict(age) for age, report in reports.now()])
    assert len(status) < BYTES_MAX + REPORTS_MAX * 200


def test_sizes_are_bytes(reports: Reports) -> None:
    for request in (
        pb.ReportRequest(producer="€" * 400, detail="{}"),
        pb.ReportRequest(producer="p", detail=json.dumps({"waiting": "€" * 6_000}, ensure_ascii=False)),
    ):
        with pytest.raises(Invalid, match=r"1024 bytes|16384 bytes at most, not 18015"):
            reports.report(request)


@pytest.mark.parametrize("detail", ['"text"', "[1]", "5", '{"halted": 5}', '{"rejected": "x"}', '{"lag": {"a": true}}'])
def test_a_detail_of_another_type_is_refused(reports: Reports, detail: str) -> None:
    with pytest.raises(Invalid, match="detail"):
        reports.report(pb.ReportRequest(producer="p", detail=detail))
    assert not reports.now()


def test_fields_without_a_type_are_dropped_and_a_bridge_has_none(reports: Reports) -> None:
    counts = Counts().shown()
    assert counts.keys() == DETAIL.keys()
    reports.report(pb.ReportRequest(producer="p", detail=json.dumps({**counts, "tables": {"a": [1]}})))
    assert reports.now()[0][1].detail == counts


@pytest.mark.parametrize("detail", ["text", [1], 5, None, {"halted": 5, "unread": [1]}, {"halted": {"t": "a\nb"}}])
def test_status_shows_a_report_with_any_detail_as_one_line(detail: Any) -> None:
    report = {"name": "p\nq", "records": 1, "lag": 2, "rejected": 3, "reported_seconds": 4.0, "detail": detail}
    assert _report(report).startswith("p q: 1 records, 2 behind, 3 rejected, 4 s ago")
    assert "\n" not in _report(report)
