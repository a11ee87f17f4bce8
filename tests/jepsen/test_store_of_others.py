"""Runs whose warehouse is on S3Proxy, an S3 server that others wrote, behind the proxy that breaks requests."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from jepsen.system.http_proxy import WRITES, Trouble, Weather
from jepsen.system.store import WAREHOUSE, Store
from jepsen.trial import Trial
from lakestore_server.catalog import metadata_store
from lakestore_server.catalog.metadata_store import ObjectStorage
from tests.support.s3proxy import S3ProxyProcess

SEEDS = 5


def test_s3proxy_as_the_backend_takes_writes_whose_answers_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_store, "PAUSE_SECONDS", 0.01)
    with S3ProxyProcess(tmp_path / "s3", memory="200m") as s3, closing(Store(s3.address)) as store:
        store.tell()
        storage = ObjectStorage(WAREHOUSE)
        kinds = (Trouble.LOSE, Trouble.HIDE, Trouble.REPEAT)
        store.proxy.breaks(Weather(kinds, 0.6, 0.05, WRITES, seed=1))
        for number in range(10):
            storage.write_new(f"{WAREHOUSE}/t/{number}", b"ours")
        with pytest.raises(FileExistsError):
            storage.write_new(f"{WAREHOUSE}/t/3", b"theirs")
        assert sum(store.proxy.mend().values())
        assert storage.read(f"{WAREHOUSE}/t/3") == b"ours"
        assert len(storage.names(f"{WAREHOUSE}/t")) == 10


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_tier_workload_finds_no_anomaly_on_s3proxy(tmp_path: Path, seed: int) -> None:
    with S3ProxyProcess(tmp_path / "s3", memory="400m") as s3:
        trial = Trial(str(seed), ("tier",), ("store", "kill-tierer"), seconds=30.0, s3=s3.address)
        verdict = trial.perform(tmp_path / "run")
    assert verdict.anomalies == []
