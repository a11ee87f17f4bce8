"""Kills, stops and restarts of real processes: each has the effect that its name says, and is mended."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import lakestore as ls
from jepsen.nemeses import NEMESES, TOGETHER, combinations
from jepsen.nemeses.victims import PRESENTER
from jepsen.operation import Invocation
from jepsen.system import System
from jepsen.system.clients import is_alone
from jepsen.system.processes import Found, Nursery, Stopped, descendants, look
from jepsen.system.reached import Reached
from jepsen.workloads import WORKLOADS
from jepsen.workloads.list_append import ListAppend
from tests.support.waiting import WAIT_SECONDS, until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


class Never(random.Random):
    """A chance by which nothing happens that happens seldom."""

    def random(self) -> float:
        return 0.99


CHANCE = Never()


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    settings = {
        "LAKESTORE_DRAIN_SECONDS": "2",
        "LAKESTORE_LIMITS_JOURNAL_CHECKPOINT_BYTES": "1024",
    }
    with System(tmp_path_factory.mktemp("system"), frozenset(), settings) as made:
        with made.connect(-1) as lake:
            lake.create_table("t.k", SCHEMA, primary_key=["id"])
        yield made
    assert made.nursery.left() == []


def works(system: System) -> bool:
    with ls.connect(system.server.address, timeout=WAIT_SECONDS) as lake:
        table = lake.table("t.k")
        table.upsert([{"id": 1, "v": 2}])
        return bool(table.lookup([{"id": 1}]).to_pylist()[0]["v"] == 2)


def fails(system: System, seconds: float = 0.3) -> bool:
    with suppress(ls.LakestoreError), ls.connect(system.server.address, timeout=seconds) as lake:
        lake.table("t.k").upsert([{"id": 1, "v": 2}])
        return False
    return True


def presenter(system: System) -> Found:
    """The one that runs: a server starts it when an engine asks for the warehouse of cuts."""
    with urllib.request.urlopen(f"{system.server.catalog}/v1/config?warehouse=now", timeout=WAIT_SECONDS):
        until(lambda: system.server.children(PRESENTER), "a presenter")
    return system.server.children(PRESENTER)[0]


def begin(system: System, name: str, chance: random.Random = CHANCE) -> object:
    return NEMESES[name].begin(system, chance)


def test_kill_twice_and_while_it_stands_still(system: System) -> None:
    first = system.server.pid
    begin(system, "pause")
    begin(system, "kill")
    begin(system, "kill")
    assert fails(system)
    NEMESES["pause"].end(system)
    assert NEMESES["kill"].end(system) == "started"
    assert NEMESES["kill"].end(system) == "ran already"
    assert system.server.pid != first
    assert works(system)


def test_a_server_that_stands_still_answers_nothing_and_then_goes_on(system: System) -> None:
    pid = system.server.pid
    begin(system, "pause")
    assert all(each.is_stopped for each in system.server.found())
    assert fails(system)
    NEMESES["pause"].end(system)
    NEMESES["pause"].end(system)
    assert works(system)
    assert system.server.pid == pid


@pytest.mark.long
def test_a_pause_that_ends_in_a_kill(system: System) -> None:
    pid = system.server.pid
    begin(system, "pause-kill")
    assert fails(system)
    NEMESES["pause-kill"].end(system)
    assert works(system)
    assert system.server.pid != pid


def test_a_restart_drains_also_one_that_stands_still(system: System) -> None:
    begin(system, "pause")
    done = begin(system, "restart")
    assert isinstance(done, dict)
    assert done["code"] == 0
    assert fails(system)
    NEMESES["restart"].end(system)
    NEMESES["pause"].end(system)
    assert works(system)


def test_a_child_is_stopped_and_killed_and_the_server_gets_over_it(system: System) -> None:
    child = presenter(system)
    begin(system, "pause-presenter")
    assert child.is_stopped
    assert works(system)
    NEMESES["pause-presenter"].end(system)
    assert child.pid in NEMESES["kill-presenter"].begin(system, CHANCE)
    assert not child.is_there
    assert works(system)


@pytest.mark.long
def test_children_that_outlive_their_server_come_to_themselves_beside_the_next_ones(system: System) -> None:
    old = presenter(system)
    assert old.pid in NEMESES["zombie-children"].begin(system, CHANCE)
    assert old.is_stopped
    assert works(system)
    NEMESES["zombie-children"].end(system)
    until(lambda: not old.is_there, "a zombie sees that its server is gone")
    assert works(system)


def test_heal_mends_whatever_is_broken(system: System) -> None:
    chance = random.Random(1)
    for name in sorted(name for name, nemesis in NEMESES.items() if not nemesis.needs and name != "restart"):
        NEMESES[name].begin(system, chance)
    assert system.heal() == []
    assert works(system)
    with system.connect(0) as lake:
        assert [table.name for table in lake.tables()] == ["t.k"]


def test_a_client_in_a_process_of_its_own_answers_fails_and_dies(system: System) -> None:
    workload = ListAppend(random.Random(1))
    with system.connect(-1) as lake:
        workload.setup(lake)
    append = next(each for each in workload.operations(0, random.Random(1)) if each.f == "append")
    reached = system.reached(0)
    client = system.clients.client(workload, reached, 0)
    assert client.invoke(append) == append.value
    (child,) = system.clients.found()
    begin(system, "pause-client")
    assert child.is_stopped
    NEMESES["pause-client"].end(system)
    read = client.invoke(Invocation("everything"))
    assert {key: set(held) for _, key, held in read} == {
        key: {number for _, other, number in append.value if other == key} for _, key, _ in append.value
    }
    client.close()
    again = system.clients.client(workload, reached, 0)
    assert [each.pid for each in system.clients.found()] == [child.pid]
    begin(system, "kill-client")
    with pytest.raises(ls.Unavailable) as ended:
        again.invoke(append)
    assert ended.value.applied == "unknown"
    with pytest.raises(ls.LakestoreError):
        again.close()
    third = system.clients.client(workload, Reached("127.0.0.1:1"), 0)
    with pytest.raises(ls.Unavailable) as refused:
        third.invoke(append)
    assert refused.value.applied == "no"
    third.close()


def test_clients_that_share_nothing_go_into_other_processes() -> None:
    alone = {name for name in WORKLOADS if is_alone(WORKLOADS[name](random.Random(3)))}
    assert {"bank", "list_append", "subscription"} <= alone
    assert "log" not in alone


def _has_ended(system: System) -> bool:
    return system.server.pid is None


def _is_gone(pid: int) -> bool:
    return look(pid) is None


def test_a_crash_of_the_server_and_a_traceback_are_defects(tmp_path: Path) -> None:
    program = "import os,sys,time; print('gRPC on a:1', flush=True); print(sys.argv[-1][:0]); os.kill(os.getpid(), {})"
    for number, expected in ((signal.SIGSEGV, 1), (signal.SIGKILL, 0)):
        system = System(tmp_path / str(number), frozenset(), {})
        system.server._program = [sys.executable, "-c", program.format(int(number))]
        system.server.start()
        until(partial(_has_ended, system), "it ends")
        assert len(system.server.defects()) == expected
        (tmp_path / str(number) / "server.log").write_text("Traceback (most recent call last):\n  x\n")
        assert len(system.server.defects()) == expected + 1
        system.stop()


def test_nothing_is_left_behind_of_a_process_that_ends_in_any_way(tmp_path: Path) -> None:
    """Not by an exception, and not by kill -9, also of one that has only just been started."""
    slow = tmp_path / "setpriv"
    slow.write_text(f'#!/bin/sh\nsleep 0.5\nexec {shutil.which("setpriv")} "$@"\n')
    slow.chmod(0o755)
    body = (
        "import sys, time, threading; from pathlib import Path; from jepsen.system.processes import Nursery\n"
        "nursery = Nursery()\n"
        "def start(): print(nursery.spawn(['sleep', '1000']).pid, flush=True)\n"
        "thread = threading.Thread(target=start); thread.start(); thread.join()\n"
    )
    for end, first in (("1 / 0", []), ("time.sleep(100)", []), ("time.sleep(100)", [str(tmp_path)])):
        running = subprocess.Popen(
            [sys.executable, "-c", body + end],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PATH": os.pathsep.join([*first, os.environ["PATH"]])},
        )
        assert running.stdout is not None
        child = int(running.stdout.readline())
        if "sleep" in end:
            assert look(child) is not None
            running.kill()
        running.wait(WAIT_SECONDS)
        running.stdout.close()
        until(partial(_is_gone, child), "the child has ended")


@pytest.mark.kafka
def test_a_broker_in_a_nursery_ends_with_a_process_that_is_killed(tmp_path: Path) -> None:
    body = (
        "import sys, time; from pathlib import Path; from jepsen.system.kafka import KafkaProcess\n"
        "from jepsen.system.processes import Nursery\n"
        "broker = KafkaProcess(Path(sys.argv[1]), nursery=Nursery())\n"
        "broker.kill(); broker.start(); print(broker.pid, flush=True); time.sleep(1000)\n"
    )
    running = subprocess.Popen([sys.executable, "-c", body, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    broker = int(running.stdout.readline())
    assert look(broker) is not None
    running.kill()
    running.wait(WAIT_SECONDS)
    running.stdout.close()
    until(partial(_is_gone, broker), "the broker has ended")


def test_a_nursery_ends_what_its_processes_have_left(tmp_path: Path) -> None:
    nursery = Nursery()
    shell = nursery.spawn(["sh", "-c", "setsid sleep 1000 & sleep 1000"])
    until(lambda: len(descendants(shell.pid)) == 2, "both sleep")
    stopped = Stopped()
    stopped.stop("a", descendants(shell.pid))
    stopped.stop("b", descendants(shell.pid))
    assert stopped.go_on("a") == []
    os.kill(shell.pid, signal.SIGKILL)
    shell.wait()
    assert len(nursery.end()) == 2
    assert nursery.left() == []


def test_a_number_that_another_process_has_now_gets_no_signal() -> None:
    ours = look(os.getpid())
    assert ours is not None
    before = type(ours)(ours.pid, ours.began - 1, ours.parent, ours.command)
    assert not before.signal(signal.SIGKILL)
    assert not before.is_stopped


def test_combinations_name_nemeses_that_are_there() -> None:
    assert {name for names in TOGETHER for name in names} <= set(NEMESES)
    light = combinations(())
    assert ("power", "kill") in light
    assert not any("tierer" in name for names in light for name in names)
    assert any("zombie-tierer" in names for names in combinations({"tierer"}))
