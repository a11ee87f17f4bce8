"""Stages of long work tell whoever does it, and nobody else."""

from __future__ import annotations

import threading

import pytest

from lakestore_server.host.stages import at_each_stage, stage


def test_a_stage_tells_the_innermost_listener_of_its_own_thread() -> None:
    told = list[str]()
    stage()
    with at_each_stage(lambda: told.append("outer")):
        stage()
        with at_each_stage(lambda: told.append("inner")):
            stage()
        other = threading.Thread(target=stage)
        other.start()
        other.join()
        stage()
    stage()
    assert told == ["outer", "inner", "outer"]


def test_what_a_stage_raises_ends_the_work_and_the_listening() -> None:
    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError), at_each_stage(stop):
        stage()
    stage()
