"""The board's part about the servers of a shared journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lakestore_server.operate.board import server_of
from lakestore_server.operate.status import JournalStatus, ReplicaStatus
from tests.support.served import Served


def test_a_server_is_silent_after_three_reports_that_did_not_come_and_no_age_is_shown(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        status = served.server.service.status.now()

        def shown(*heard: float) -> list[bool]:
            replicas = tuple(ReplicaStatus(f"{age}:7340", "follower", 5, age) for age in heard)
            journal = JournalStatus("kafka", "leader", 2, "a:7340", 0, replicas)
            said = server_of(replace(status, journal=journal))["journal"]["replicas"]
            assert all("heard_seconds" not in each for each in said), "an age would be a change at every look"
            return [each["is_silent"] for each in said]

        assert shown(0.0, 29.9, 30.1) == [False, False, True]
