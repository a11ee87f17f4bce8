"""Checkpoints in a bucket: a server that lost its disk starts from the bucket alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jepsen.system.store import Store
from lakestore.errors import Invalid, OtherTimeline
from lakestore_server.doctor import visit
from lakestore_server.journals import object_store
from lakestore_server.journals.checkpoint_store import CheckpointStore
from lakestore_server.main import Server
from lakestore_server.settings import Journal, Settings
from tests.network.test_object_journal import JOURNAL, run
from tests.support.kafka_servers import KafkaServers
from tests.support.waiting import until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
CHECKPOINTS = "s3://lakestore/the checkpoints"
OFTEN = {"LAKESTORE_LIMITS_JOURNAL_CHECKPOINT_BYTES": "40000", "LAKESTORE_CHECKPOINTS_KEEP_SECONDS": "0"}


def keys(store: Store, folder: str) -> list[str]:
    """The objects below a folder of the bucket."""
    return store.kept.objects.keys(f"lakestore/{folder}")


def alone(folder: Path) -> KafkaServers:
    """One server with a journal and checkpoints in the bucket. Its disk is in the folder."""
    return KafkaServers(JOURNAL, folder, "a", arguments=["--checkpoints", CHECKPOINTS], environment=OFTEN)


def settings(folder: Path, *, journal: str = JOURNAL, **changes: Any) -> Settings:
    return Settings(folder, warehouse=str(folder.parent / "lake"), journal=Journal("object", url=journal), **changes)


def test_checkpoints_of_a_journal_in_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="a lost disk would take the commits after the newest checkpoint"):
        Server(Settings(tmp_path / "data", checkpoints=CHECKPOINTS))
    with pytest.raises(Invalid, match="checkpoints holds a user and a password"):
        Server(settings(tmp_path / "data", checkpoints="s3://me:secret@bucket/x"))
    with pytest.raises(Invalid, match="checkpoints is 'file:///x': name a bucket"):
        Server(settings(tmp_path / "data", checkpoints="file:///x"))
    with pytest.raises(Invalid, match="an entry of checkpoints_options has no `=`"):
        Server(settings(tmp_path / "data", checkpoints=CHECKPOINTS, checkpoints_options=("endpoint",)))


def test_the_checkpoints_of_another_journal_are_refused(store: Store, tmp_path: Path) -> None:
    run("init-journal", "--journal", JOURNAL)
    with alone(tmp_path):
        until(lambda: keys(store, "the checkpoints/heads/"), "a claim")
    other = "s3://lakestore/another journal"
    run("init-journal", "--journal", other)
    with pytest.raises(OtherTimeline, match="has the checkpoints of another journal"):
        Server(settings(tmp_path / "other", journal=other, checkpoints=CHECKPOINTS))


def test_a_store_that_lets_two_puts_win_gets_no_checkpoints(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("init-journal", "--journal", JOURNAL)
    about = settings(tmp_path / "data", checkpoints=CHECKPOINTS)
    assert [each.verdict for each in visit.checkpoint_bucket_of(about)] == ["ok"]
    assert list(visit.checkpoint_bucket_of(settings(tmp_path / "data"))) == []

    def put_over(self: object_store.ObjectStore, name: str, data: bytes) -> bool:
        import obstore

        obstore.put(self._store, name, data, mode="overwrite")
        return True

    monkeypatch.setattr(object_store.ObjectStore, "put_new", put_over)
    checkpoints = CheckpointStore(object_store.store_of(CHECKPOINTS), CHECKPOINTS)
    with pytest.raises(Invalid, match="take a store in which one wins"):
        checkpoints.check("timeline")
    (finding,) = visit.looked("checkpoints", lambda: visit.checkpoint_bucket_of(about))
    assert (finding.verdict, "take a store in which one wins" in finding.found) == ("failed", True)
