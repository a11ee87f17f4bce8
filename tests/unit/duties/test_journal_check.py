"""A running server whose log was cut by somebody else, or may be cut, while it has commits in no checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from lakestore.errors import Invalid
from lakestore_server.duties.journal_check import JournalCheck
from tests.support.replicas import MemoryEnd, Replicas

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Replicas]:
    with Replicas(tmp_path, count=1) as replicas:
        yield replicas


def check_of(replicas: Replicas) -> JournalCheck:
    check = replicas.servers[0]._journal_check
    assert check is not None
    return check


def test_commits_that_only_the_log_had_outlive_their_removal_there(alone: Replicas, tmp_path: Path) -> None:
    """As by a retention that somebody set on a topic later."""
    with ls.connect(alone.address(0)) as lake:
        lake.create_table("a.t", SCHEMA, buckets=1).append([{"id": 7}])
    made = alone.servers[0].upkeep.checkpointer.figures
    check_of(alone).run_once()
    assert made.lsn == -1, "nothing is gone"
    alone.log.first = len(alone.log.messages)
    check_of(alone).run_once()
    assert made.lsn == 2
    alone.servers[0].close(checkpoint=False)
    alone.start(0)
    with ls.connect(alone.address(1)) as lake:
        assert lake.table("a.t").scan().count() == 1


def test_a_setting_by_which_the_log_may_lose_commits_fails_the_duty(
    alone: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(end: MemoryEnd, known: str) -> str:
        raise Invalid("topic t can lose commits: retention.ms is 1, not -1")

    monkeypatch.setattr(MemoryEnd, "open", opened)
    with pytest.raises(Invalid, match=r"retention\.ms"):
        check_of(alone).run_once()
