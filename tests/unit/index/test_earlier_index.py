"""The index of an earlier release is rebuilt once, and its files go when a durable checkpoint names the new runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakestore_server.duties import upkeep
from lakestore_server.duties.index_rebuild import Rebuilder
from tests.support import golden
from tests.support.served import Served

IDS = [{"order_id": number} for number in range(600)]
RELEASES = ["0.2.0", "0.3.0"]


@pytest.mark.parametrize("release", RELEASES)
def test_the_index_of_an_earlier_release_is_rebuilt_once(
    release: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = golden.unpacked(golden.FOLDER / f"data-{release}.tar.xz", tmp_path)
    assert (data / "index" / "data.mdb").exists()
    with Served(data) as served:
        assert "the key index is rebuilt: an earlier release wrote it" in caplog.text
        served.until_indexed()
        orders = served.lake.table("shop.orders")
        right = sorted(orders.scan().to_arrow().to_pylist(), key=lambda row: int(row["order_id"]))
        assert orders.lookup(IDS).to_pylist() == right
        served.checkpoint()
        assert {path.suffix for path in (data / "index").iterdir()} == {".run"}
    caplog.clear()
    with Served(data) as served:
        assert "rebuilt" not in caplog.text
        assert served.lake.table("shop.orders").lookup(IDS).to_pylist() == right


def test_a_start_that_ends_before_the_checkpoint_leaves_the_files_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They say that the index is not whole."""
    monkeypatch.setattr(upkeep, "Rebuilder", lambda loop, done: Rebuilder(loop, lambda: None))  # no checkpoint follows
    data = golden.unpacked(golden.FOLDER / f"data-{RELEASES[0]}.tar.xz", tmp_path)
    with Served(data) as served:
        served.until_indexed()
        served.kill()
        assert (data / "index" / "data.mdb").exists()
        served.start()
        served.until_indexed()
        assert served.lake.table("shop.orders").lookup(IDS).num_rows == served.lake.table("shop.orders").scan().count()
