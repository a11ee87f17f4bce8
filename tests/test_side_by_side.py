"""Files of tests run side by side: which stay together, and what their processes may not take from each other."""

from __future__ import annotations

import socket
from collections import OrderedDict
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

from jepsen.system import server
from lakestore_demo import processes
from tests.support.side_by_side import KAFKA, FilesSideBySide, unit
from tests.support.spark import MARK


def test_a_file_stays_together_and_so_do_all_that_take_spark_or_kafka(tmp_path: Path) -> None:
    marked = {"s": f"pytestmark = {MARK}", "t": f"pytestmark = [{MARK}]", "k": f"@{KAFKA}", "l": f"[{KAFKA}]"}
    for name, text in {"a": "", "b": "", **marked}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    units = {name: unit(tmp_path, f"test_{name}.py::test_x[a::b]") for name in "abstkl"}
    assert units["a"] == unit(tmp_path, "test_a.py::Group::test_y")
    assert units["s"] == units["t"]
    assert units["k"] == units["l"]
    assert len(set(units.values())) == 4


def test_the_files_that_take_spark_or_kafka_are_given_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(
        LoadScopeScheduling, "_assign_work_unit", lambda self, _: given.append(self.workqueue.popitem(last=False)[0])
    )
    scheduler = FilesSideBySide.__new__(FilesSideBySide)
    scheduler.workqueue = OrderedDict.fromkeys(["a", KAFKA, "b", MARK, "c"])
    for node in range(5):
        scheduler._assign_work_unit(node)
    assert given == [MARK, KAFKA, "a", "b", "c"]


def test_a_free_port_is_none_that_a_connection_may_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = processes.free_ports(2)
    assert first != second
    assert {first, second} <= set(processes.PORTS)
    assert {server.free_port() for _ in range(20)} <= set(server.PORTS)
    with socket.socket() as given:
        given.bind(("127.0.0.1", 0))
        given.listen()
        port = given.getsockname()[1]
        assert port not in processes.PORTS
        assert port not in server.PORTS
        monkeypatch.setattr(processes, "PORTS", range(port, port + 1))
        monkeypatch.setattr(processes, "PORTS_TRIED", 1)
        with pytest.raises(OSError, match="of 1 ports from"):
            processes.free_ports(1)
