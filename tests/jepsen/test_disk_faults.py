"""The real server on a disk with faults: it keeps its promises through a power cut, and a lying disk is found out."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pytest

import lakestore as ls
from jepsen.history import Recorder
from jepsen.nemeses import damage
from jepsen.operation import Invocation, Kind
from jepsen.system import System
from jepsen.system.preload import NoCompiler, library
from jepsen.system.server import NotStarted
from jepsen.system.shim import SOURCE, Action, Operation, Rule
from jepsen.workload import Workload
from jepsen.workloads.log import Log
from tests.support.seeds import seeded

pytestmark = pytest.mark.slow


class Least(random.Random):
    """A chance by which nothing survives that was not synced."""

    def choice(self, seq: object) -> str:  # type: ignore[override]
        """Nothing."""
        return "none"

    def choices(self, *_: object, **__: object) -> list[str]:  # type: ignore[override]
        """Nothing."""
        return ["none"]


def test_acknowledged_rows_survive_a_power_cut_and_a_disk_that_lies_is_found_out(tmp_path: Path) -> None:
    try:
        library(SOURCE)
    except NoCompiler as error:
        pytest.skip(str(error))
    workload, recorder = Log(random.Random(1)), Recorder()
    with System(tmp_path, frozenset({"disk"}), {"LAKESTORE_LIMITS_JOURNAL_CHECKPOINT_BYTES": "2048"}) as system:
        assert system.disk is not None
        with system.connect(0) as lake:
            workload.setup(lake)
        invocations = workload.operations(0, random.Random(1))
        called(workload, system, recorder, islice(invocations, 12))
        after_cut(system)
        called(workload, system, recorder, workload.last(0))
        assert not workload.check(recorder.close()), "all that was acknowledged is there"
        assert "rebuilt" not in (tmp_path / "server.log").read_text(), "the key index has kept its name"
        no_checkpoint = Rule(Operation.CREATE, "checkpoint-*", Action.ERROR, errno.EIO)
        for rule in (no_checkpoint, Rule(Operation.SYNC, "journal-*[0-9]", Action.LIE)):
            system.disk.plant("lie", rule)
        called(workload, system, recorder, islice(invocations, 12))
        try:
            after_cut(system)
        except NotStarted as refused:
            # The journal went on in a new file, whose name tells of the records that are lost before it.
            assert "one is missing" in str(refused)
            return
        called(workload, system, recorder, workload.last(0))
        assert "lost" in {each.name for each in workload.check(recorder.close())}


def after_cut(system: System) -> None:
    """Cut power, and start on what is left."""
    assert system.disk is not None
    system.disk.switch_off()
    with system.server.down():
        system.disk.lose(Least(0))
    system.server.start()


def called(workload: Workload, system: System, recorder: Recorder, invocations: Iterable[Invocation]) -> None:
    """Calls one after the other."""
    client = workload.client(system, 0)
    for each in invocations:
        recorder.invoke(0, each)
        try:
            recorder.record(0, Kind.OK, each.f, client.invoke(each))
        except ls.LakestoreError as error:
            recorder.record(0, Kind.FAIL if error.applied == "no" else Kind.INFO, each.f, each.value, error.message)
    client.close()


def test_damage_spares_the_last_frame_of_a_journal(tmp_path: Path) -> None:
    chance, path = seeded("damage"), tmp_path / "journal-1"
    frame = damage.FRAME.ljust(128, b"x")
    path.write_bytes(b"header".ljust(64) + frame * 3)
    most = damage.harmed(path, "journal")
    assert most == 64 + 2 * len(frame)
    for _ in range(50):
        made = damage.flipped(path.read_bytes(), most, chance)
        assert made != path.read_bytes()
        assert made[most:] == frame


def test_a_journal_file_that_is_kept_is_damaged_by_the_name_by_which_it_is_restored(tmp_path: Path) -> None:
    journal, kept = tmp_path / "journal-1", tmp_path / "kept.journal"
    journal.write_bytes(bytes(64) + damage.FRAME.ljust(64, b"-") + damage.FRAME)
    assert damage.harmed(journal, "journal") == 128
    kept.hardlink_to(journal)
    assert damage.harmed(journal, "journal") == 0
    assert damage.harmed(kept, "extent") == journal.stat().st_size
    assert "extent" in damage.LASTING
