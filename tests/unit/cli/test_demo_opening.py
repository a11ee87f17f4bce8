"""The first screen of `lakestore demo`, and its end with and without `--keep`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lakestore_demo import Demo, opening
from lakestore_demo.broker import cluster_id

CONSOLE = "http://127.0.0.1:7341/"


@pytest.mark.parametrize("keep", [False, True])
def test_five_lines_say_what_will_happen_and_the_last_links_the_console(keep: bool) -> None:
    lines = opening(CONSOLE, 60, keep=keep).strip().split("\n")
    assert [line[:2] for line in lines] == ["1.", "2.", "3.", "4.", "5."]
    assert CONSOLE in lines[-1]
    assert ("--keep leaves" not in lines[-1]) == keep


def test_the_processes_stay_until_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    looks: list[float] = []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", wait)
    demo = Demo(tmp_path, said.append, seconds=1, keep=True)
    demo._stay()
    assert len(looks) == 3
    assert demo._console in said[0]


def test_a_cluster_id_has_the_length_that_kafka_wants_and_is_no_option() -> None:
    ids = {cluster_id() for _ in range(100)}
    assert len(ids) == 100
    assert {len(each) for each in ids} == {22}
    assert not any(each.startswith("-") for each in ids)
