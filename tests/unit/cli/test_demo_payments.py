"""The demo's payments, and where its broker comes from: records fold to a table; what is missing is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lakestore.errors import Unavailable
from lakestore.release import wheel_with
from lakestore_demo import broker, ivy, kafka_if_possible
from lakestore_demo.broker import jars
from lakestore_demo.kafka import Payments


def test_records_fold_to_the_table() -> None:
    payments = Payments(orders=50)
    folded = {}
    for _ in range(20):
        for key, value in payments.step(10, 9):
            said = json.loads(value)
            assert key == str(said["payment_id"]).encode()
            folded[said["payment_id"]] = (said["order_id"], said["status"], said["amount"], said["opened_at"])
    wanted = {
        row["payment_id"]: (
            row["order_id"],
            row["status"],
            str(row["amount"]),
            round(row["opened_at"].timestamp() * 1_000),
        )
        for row in payments.table().to_pylist()
    }
    assert folded == wanted
    assert len(wanted) == 200
    assert {status for _, status, _, _ in wanted.values()} == {"open", "paid", "refunded"}
    joined, total = payments.joined(payments.table().column("order_id").slice(0, 1).combine_chunks())
    assert joined == 4
    assert total == sum(round(float(amount) * 100) for order, _, amount, _ in wanted.values() if order == 0)


def no_java() -> str:
    raise Unavailable("there is no Java")


def test_a_broker_that_cannot_be_had_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(ivy, "java", no_java)
    assert kafka_if_possible(tmp_path / "kafka", 0, said.append) is None
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    assert kafka_if_possible(tmp_path / "kafka", 0, said.append) is None
    assert said == [
        "Kafka is left out: there is no Java",
        f"Kafka is left out: its library is not installed: {wheel_with('kafka')}",
    ]


def test_jars_that_cannot_be_fetched_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "http://127.0.0.1:1/")
    with pytest.raises(Unavailable, match=r"jars of kafka cannot be fetched \(module not found: .*kafka.*\): let this"):
        jars()
    assert list((tmp_path / "kafka").iterdir()) == []


def test_jars_that_another_process_fetched_meanwhile_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A broker may run of them."""
    folder = tmp_path / "kafka" / broker.VERSION

    def retrieve(name: str, coordinates: Sequence[str], place: Path, *, transitive: bool) -> Path:
        folder.mkdir()
        (folder / "theirs.jar").touch()
        (folder / ".ready").touch()
        (place / "jars").mkdir()
        return place / "jars"

    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(ivy, "retrieve", retrieve)
    assert jars() == folder
    assert (folder / "theirs.jar").exists()
