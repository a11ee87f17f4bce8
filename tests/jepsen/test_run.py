"""The suite's own parts: histories, schedules, phases, verdicts, shrinking, reports. No server is started here."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner

import lakestore as ls
from jepsen import edn, report, run, schedule
from jepsen.__main__ import main
from jepsen.anomaly import Anomaly
from jepsen.history import History, Recorder
from jepsen.operation import NEMESIS, READS, Invocation, Kind, Operation
from jepsen.run import Course, Run
from jepsen.schedule import Planned
from jepsen.shrinking import shrunk
from jepsen.system.server import NotStarted
from jepsen.trial import HEAVY, Trial, drawn, needs_of, of_seed
from jepsen.verdict import Judged, Verdict, judge
from jepsen.workloads import WORKLOADS
from jepsen.workloads.register import Register
from tests.jepsen.hand_made import Written
from tests.support.waiting import WAIT_SECONDS


class Cell:
    """A target that is one number; it can lose the answer of a write, or refuse it."""

    catalog = kafka = sql = ""

    def __init__(self) -> None:
        self.value, self.broken, self.healed = 0, "", 0
        self.met = threading.Event()
        """Set once a call has met what is broken."""

    def connect(self, _: int) -> Any:
        """A connection that does nothing."""
        return mock.MagicMock()

    def heal(self) -> None:
        """Nothing is broken any more."""
        self.broken, self.healed = "", self.healed + 1


class Counting:
    """A workload: every call adds one to the cell, and the last one reads the cell."""

    name, needs = "counting", frozenset[str]()

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self.clients = 0

    def setup(self, _: ls.Lake) -> None:
        """Nothing to make."""

    def operations(self, _: int, __: random.Random) -> Iterator[Invocation]:
        """Adds."""
        while True:
            yield Invocation("add", 1)

    def last(self, _: int) -> Iterator[Invocation]:
        """One read."""
        yield Invocation("read")

    def client(self, _: Any, __: int) -> Counting:
        """A client, which is counted."""
        self.clients += 1
        return self

    def invoke(self, invocation: Invocation) -> int:
        """Add or read, or fail as the cell says."""
        if self._cell.broken == "refuses":
            self._cell.met.set()
            raise ls.errors.Exhausted("full")
        self._cell.value += invocation.f == "add"
        if self._cell.broken == "loses":
            self._cell.met.set()
            raise ls.errors.Unavailable("gone", applied="unknown")
        return self._cell.value

    def close(self) -> None:
        """Nothing to close."""

    def check(self, _: History) -> Sequence[Anomaly]:
        """All is well."""
        return ()


class Breaking:
    """A nemesis that breaks the cell in one way, if need be until a call has met it: threads may start late."""

    needs = frozenset[str]()

    def __init__(self, way: str, wait_seconds: float = 0.0) -> None:
        self.name = self._way = way
        self._wait_seconds = wait_seconds

    def begin(self, system: Cell, _: random.Random) -> str:
        """Break it."""
        system.broken = self._way
        system.met.wait(self._wait_seconds)
        return self._way

    def end(self, system: Cell) -> None:
        """Mend it."""
        system.broken = ""


COURSE = Course("7", 0.2, processes=1, pause_seconds=0.001)


def _ran(way: str, folder: Path | None = None) -> tuple[Verdict, Counting, Cell]:
    cell = Cell()
    counting = Counting(cell)
    nemeses = {way: Breaking(way, wait_seconds=30.0)}
    planned = [Planned(0.05, 0.1, way, 1)] if way else []
    course = COURSE if way else replace(COURSE, seconds=60.0, operations=50)  # it ends with the last operation
    return Run(cell, [counting], nemeses, planned, course, folder).run(), counting, cell


def test_a_run_without_faults_succeeds_throughout(tmp_path: Path) -> None:
    verdict, counting, cell = _ran("", tmp_path)
    assert not verdict.anomalies
    assert counting.clients == 2, "one client in the main phase, one in the last"
    assert verdict.judged[0].counts["add"] == {"ok": cell.value}
    history = History.load(tmp_path / "counting.jsonl")
    assert [each.index for each in history] == list(range(len(history)))
    assert history.operations[-1].value == cell.value


def test_an_unknown_outcome_ends_the_process_and_a_refusal_does_not(tmp_path: Path) -> None:
    lost, counting, _ = _ran("loses", tmp_path)
    calls = History.load(tmp_path / "counting.jsonl").calls("add")
    unknown = [call for call in calls if call.kind is Kind.INFO]
    assert unknown
    assert lost.judged[0].counts["add"]["info"] == len(unknown)
    assert counting.clients == len({call.process for call in calls}) + 1
    assert len({call.process for call in unknown}) == len(unknown)
    last = {call.process: call for call in calls}
    assert all(last[call.process] is call for call in unknown), "its process does nothing after it"
    assert all(call.ended == float("inf") for call in unknown)
    refused, counting, _ = _ran("refuses")
    assert refused.judged[0].counts["add"]["fail"]
    assert counting.clients == 2


def test_faults_are_in_the_history_and_are_mended() -> None:
    cell = Cell()
    counting = Counting(cell)
    planned = [Planned(0.01, 10.0, "loses", 1)]  # its end lies behind the run
    tested = Run(cell, [counting], {"loses": Breaking("loses")}, planned, Course("7", 0.5, 1, 5))
    with mock.patch.object(run, "moments", lambda faults: schedule.moments(faults)[:1]):
        verdict = tested.run()
    assert not verdict.anomalies
    assert cell.healed == 1


def test_what_does_not_succeed_after_healing_is_stuck() -> None:
    cell = Cell()
    cell.broken = "refuses"
    with mock.patch.object(cell, "heal"), mock.patch.object(run, "HEAL_SECONDS", 0.0):
        verdict = Run(cell, [Counting(cell)], {}, [], COURSE).run()
    assert {each.name for each in verdict.anomalies} == {"stuck", "untested"}


def test_the_rest_is_read_behind_what_is_stuck() -> None:
    cell = Cell()
    counting, does = Counting(cell), Counting.invoke

    def invoke(each: Invocation) -> int:
        if each.f == "never":
            raise ls.errors.Exhausted("full")
        return does(counting, each)

    last = [Invocation("never"), Invocation("never"), Invocation("read")]
    with (
        mock.patch.object(run, "HEAL_SECONDS", 0.0),
        mock.patch.object(counting, "invoke", invoke),
        mock.patch.object(counting, "last", return_value=iter(last)),
    ):
        verdict = Run(cell, [counting], {}, [], COURSE).run()
    assert [each.name for each in verdict.anomalies] == ["stuck", "stuck"]
    assert verdict.judged[0].counts["read"] == {"ok": 1}


def test_a_call_that_never_ends_does_not_keep_the_rest() -> None:
    cell, never = Cell(), threading.Event()
    counting, does = Counting(cell), Counting.invoke
    adds = itertools.count()

    def invoke(each: Invocation) -> int:
        if each.f == "add" and next(adds) == 0:
            never.wait(60.0)
        return does(counting, each)

    try:
        with mock.patch.object(run, "LOOK_SECONDS", 0.01), mock.patch.object(counting, "invoke", invoke):
            verdict = Run(cell, [counting], {}, [], replace(COURSE, seconds=2.0, hung_seconds=3.0)).run()
    finally:
        never.set()
    assert [each.sentence for each in verdict.anomalies] == ["add of counting-0 has not ended after 3 s"]
    assert verdict.judged[0].counts["read"] == {"ok": 1}


def test_a_workload_says_settings_of_its_server(tmp_path: Path) -> None:
    trial = Trial("7.0", ("log", "retention"), ())
    with mock.patch("jepsen.trial.System", side_effect=OSError("none is started")) as system, pytest.raises(OSError):
        trial.perform(tmp_path)
    settings = system.call_args.args[2]
    assert settings["LAKESTORE_RETENTION_CHECK_SECONDS"] == "0.3"
    assert float(settings["LAKESTORE_LEASE_GRACE_SECONDS"]) <= 2


def test_a_system_that_does_not_start_any_more_is_unrecoverable() -> None:
    cell = Cell()
    with mock.patch.object(cell, "heal", side_effect=NotStarted("the journal has a gap")):
        verdict = Run(cell, [Counting(cell)], {}, [], COURSE).run()
    assert "unrecoverable" in {each.name for each in verdict.anomalies}


def test_a_client_that_crashes_is_told() -> None:
    cell = Cell()
    counting = Counting(cell)
    with mock.patch.object(counting, "invoke", side_effect=ZeroDivisionError("ours")):
        verdict = Run(cell, [counting], {}, [], COURSE).run()
    assert "crash" in {each.name for each in verdict.anomalies}
    assert "ZeroDivisionError" in next(each.sentence for each in verdict.anomalies if each.name == "crash")


def test_a_fault_that_cannot_be_made_is_told() -> None:
    cell = Cell()
    broken = Breaking("loses")
    with mock.patch.object(broken, "begin", side_effect=OSError("no such device")):
        verdict = Run(cell, [Counting(cell)], {"loses": broken}, [Planned(0.0, 0.1, "loses", 1)], COURSE).run()
    assert "no such device" in next(each.sentence for each in verdict.anomalies if each.name == "crash")


def test_a_defect_is_an_anomaly_of_every_workload() -> None:
    line = Operation(0, 0, 1, Kind.INVOKE, "add", 1), Operation(1, 1, 1, Kind.INFO, "add", 1, "Internal: a defect")
    judged = judge(Counting(Cell()), History([*line, *(replaced(each) for each in line)]))
    assert "defect" in {each.name for each in judged.anomalies}


def replaced(each: Operation) -> Operation:
    """The same operation a little later, and well."""
    kind = Kind.OK if each.kind is Kind.INFO else each.kind
    return Operation(each.index + 2, each.time + 2, 1, kind, each.f, each.value)


def test_no_name_of_an_anomaly_is_excused_where_connections_read_at_followers() -> None:
    workload, names = Counting(Cell()), ["nonlinearizable", "G-single-realtime", "stale", "lost"]
    history = Written().fault(READS, "follower").call(1, "add", 1).history()
    with mock.patch.object(workload, "check", return_value=[Anomaly(name, "") for name in names]):
        assert [each.name for each in judge(workload, history).anomalies] == names


def test_a_nemesis_that_takes_long_holds_up_no_other_one_if_each_has_a_thread() -> None:
    """`slow` ends only after `quick` has begun and ended, which is planned for later."""
    cell, over, waited = Cell(), threading.Event(), list[bool]()
    slow, quick = Breaking("slow"), Breaking("quick")
    planned = [Planned(0.0, 0.01, "slow", 1), Planned(0.05, 0.1, "quick", 2)]
    course = replace(COURSE, nemeses_apart=True)
    with (
        mock.patch.object(slow, "end", side_effect=lambda _: waited.append(over.wait(WAIT_SECONDS))),
        mock.patch.object(quick, "end", side_effect=lambda _: over.set()),
    ):
        verdict = Run(cell, [Counting(cell)], {"slow": slow, "quick": quick}, planned, course).run()
    assert waited == [True]
    assert (verdict.faults, verdict.anomalies) == ({"slow": 1, "quick": 1}, [])


def test_a_history_without_a_call_that_succeeded_is_not_valid() -> None:
    def names(*fs: str) -> set[str]:
        lines = [(kind, f) for f in fs for kind in (Kind.INVOKE, Kind.OK)]
        history = History(Operation(n, n, 1, kind, f, 1) for n, (kind, f) in enumerate(lines))
        return {each.name for each in judge(Counting(Cell()), history).anomalies}

    assert names() == {"untested"}
    assert names("pause", "shape") == {"untested"}, "rests and notes ask nothing of a server"
    assert names("add") == set()


def test_a_defect_that_a_client_met_on_the_way_to_its_answer_is_told() -> None:
    def names(*lines: tuple[int | str, Kind, str, Any]) -> set[str]:
        history = History(Operation(n, n, *line) for n, line in enumerate(lines))
        return {each.name for each in judge(Counting(Cell()), history).anomalies}

    asked = (1, Kind.INVOKE, "drain", None)
    assert names(asked, (1, Kind.OK, "drain", {"troubles": ["Unavailable: gone", "Internal: a defect"]})) == {"defect"}
    assert names(asked, (1, Kind.OK, "drain", {"troubles": ["Unavailable: gone"]})) == set()
    damaged = (1, Kind.OK, "drain", {"troubles": ["Corrupt: damaged"]})
    assert names((NEMESIS, Kind.INFO, "excuse", ["Corrupt:"]), asked, damaged) == set()


def test_faults_that_were_left_out_do_not_count() -> None:
    cell = Cell()
    broken, absent = Breaking("loses"), Breaking("refuses")
    planned = [Planned(0.0, 0.01, "loses", 1), Planned(0.02, 0.03, "refuses", 1)]
    with mock.patch.object(absent, "begin", return_value=f"{schedule.LEFT_OUT}no compiler"):
        nemeses = {"loses": broken, "refuses": absent}
        verdict = Run(cell, [Counting(cell)], nemeses, planned, COURSE).run()
    assert {name: count for name, count in verdict.faults.items() if count} == {"loses": 1}


def test_a_history_of_registers_is_judged_again_by_the_engine_of_its_run() -> None:
    made = Written().call(0, "shape", {"engine": "first_row"})
    for number in (1, 2):
        asked = {"form": "table", "kind": "upsert", "rows": [["0/k0", {"a": number, "b": number}]]}
        made.call(0, "write", asked, {"token": f"t{number}", "said": "inserted" if number == 1 else "ignored"})
    history = made.history()
    engines = set()
    for seed in range(8):
        register = Register(random.Random(seed))
        engines.add(register.engine)
        assert not register.check(history)
    assert len(engines) > 1


def test_a_history_is_the_same_in_json_and_reads_as_jepsens(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.invoke(0, Invocation("send", ["k", 1]))
    recorder.record(0, Kind.OK, "send", ["k", 1])
    recorder.record(NEMESIS, Kind.INFO, "kill-begin", {"pid": 3})
    recorder.invoke(1, Invocation("poll"))
    history = recorder.close()
    history.dump(tmp_path / "one.jsonl")
    assert History.load(tmp_path / "one.jsonl").operations == history.operations
    history.dump_edn(tmp_path / "one.edn")
    lines = (tmp_path / "one.edn").read_text().splitlines()
    assert lines[1].endswith(':process 0, :type :ok, :f :send, :value ["k" 1]}')
    assert ":process :nemesis, :type :info, :f :kill-begin" in lines[2]
    calls = history.calls()
    assert [(call.f, call.kind) for call in calls] == [("send", Kind.OK), ("poll", Kind.INFO)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nil"),
        (True, "true"),
        ([1, "a\n", 2.5], '[1 "a\\n" 2.5]'),
        ({"k": [edn.Keyword("append"), 3]}, '{"k" [:append 3]}'),
    ],
)
def test_edn(value: Any, text: str) -> None:
    assert edn.text(value) == text


def test_a_schedule_follows_from_its_seed() -> None:
    names = ["kill", "pause", "network", "power"]
    assert schedule.plan("5", 60, names) == schedule.plan("5", 60, reversed(names))
    assert schedule.plan("5", 60, names) != schedule.plan("6", 60, names)
    planned = [each for seed in range(40) for each in schedule.plan(seed, 60, names)]
    assert {each.nemesis for each in planned} == set(names)
    assert all(0 < each.begins <= each.ends <= 60 for each in planned)
    together = [
        max(sum(a.begins <= b.begins < a.ends for a in one) for b in one)
        for one in (schedule.plan(seed, 60, names) for seed in range(40))
    ]
    assert max(together) == schedule.TOGETHER_MAX


def test_schedules_have_quiet_times() -> None:
    quiet = [schedule.plan(seed, 5, ["kill"]) == [] for seed in range(400)]
    assert 0.1 < sum(quiet) / len(quiet) < 0.4, "of short runs about a quarter have no fault"


def test_every_second_fault_of_some_kinds_lasts_for_long_and_ends_before_the_next_of_its_kind() -> None:
    for seed in range(20):
        planned = schedule.plan(seed, 60, ["a", "b"])
        made = schedule.lasting(planned, {"a"}, 4.0)
        assert [(each.begins, each.nemesis, each.seed) for each in made] == [
            (each.begins, each.nemesis, each.seed) for each in planned
        ]
        for before, each in zip(planned, made, strict=True):
            following = [other.begins for other in made if other.nemesis == "a" and other.begins > each.begins]
            if each.nemesis == "b" or not each.seed % 2:
                assert each == before
            else:
                assert each.ends >= min([each.begins + 4.0, *following]) - 0.001
                assert each.ends <= max(min([each.begins + 4.0, *following]), before.ends) + 0.001


def test_moments_end_what_they_begin() -> None:
    planned = schedule.plan(3, 100, ["a", "b", "c"])
    standing: set[Planned] = set()
    for _, begins, each in schedule.moments(planned):
        assert (each not in standing) is begins
        standing ^= {each}
    assert not standing


def test_a_suite_has_every_workload_before_long() -> None:
    seen = [drawn(4, number).workloads for number in range(40)]
    assert {name for names in seen for name in names} == set(WORKLOADS)
    assert all(len([name for name in names if needs_of([name]) & HEAVY]) <= 1 for names in seen)
    assert drawn(4, 3) == of_seed("4.3")
    assert len({drawn(seed, 0).workloads for seed in range(20)}) > 1


def test_shrinking_finds_the_smallest_that_fails() -> None:
    tried: list[int] = []

    def fails(case: int) -> bool:
        tried.append(case)
        return case >= 10

    assert shrunk(100, lambda case: (case // 2, case - 1), fails, lambda: True) == 10
    assert shrunk(100, lambda case: (case - 1,), fails, lambda: len(tried) < 20) > 10, "the time was over"


def test_a_trial_shrinks_and_says_how_to_do_it_again() -> None:
    trial = Trial("5.1", ("bank", "log"), ("kill", "pause"))
    assert trial.command == "python -m jepsen run --seed 5.1 --seconds 12 --processes 3 -w bank -w log -n kill -n pause"
    smaller = list(trial.smaller())
    assert {each.workloads for each in smaller} == {("bank",), ("log",), ("bank", "log")}
    assert {each.nemeses for each in smaller} >= {(), ("kill",), ("pause",)}
    smallest = shrunk(trial, Trial.smaller, lambda each: "log" in each.workloads, lambda: True)
    assert (smallest.workloads, smallest.nemeses, smallest.processes, smallest.seconds) == (("log",), (), 1, 6.0)


def test_a_report_shows_anomalies_and_pictures(tmp_path: Path) -> None:
    verdict, _, _ = _ran("loses", tmp_path)
    found = Judged("counting", (Anomaly("lost", "3 is gone"),), verdict.judged[0].counts)
    bars: list[dict[str, Any]] = [
        {"process": 1, "label": "write 1", "begins": 0.1, "ends": None, "place": 0, "stuck": False},
        {"process": 2, "label": "read 2", "begins": 0.2, "ends": 0.3, "place": None, "stuck": True},
    ]
    shown = replace(found, figures={"keys": 12_000}, bars=({"key": "k", "state": "1", "bars": bars},))
    report.write(tmp_path, "make it again", Verdict("7", 1.0, (shown,)))
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# seed 7: counting: ")
    assert "INVALID: 1 counting:lost" in text
    assert "**lost**: 3 is gone" in text
    assert "`loses-begin`" in text
    assert "- keys: 12,000" in text
    assert "(counting-counterexample-0.svg)" in text
    assert "<svg" in (tmp_path / "counting-counterexample-0.svg").read_text()
    assert "<svg" in (tmp_path / "counting.svg").read_text()
    assert (tmp_path / "counting.edn").exists()
    assert json.dumps(verdict.to_json())


def test_damage_that_was_done_excuses_errors_until_everything_has_healed() -> None:
    def judged(*lines: tuple[int | str, Kind, str, Any, str]) -> set[str]:
        operations = [Operation(n, n, *line) for n, line in enumerate(lines)]
        return {each.name for each in judge(Counting(Cell()), History(operations)).anomalies}

    asked: tuple[int, Kind, str, Any, str] = (1, Kind.INVOKE, "add", 1, "")
    corrupt: tuple[int, Kind, str, Any, str] = (1, Kind.FAIL, "add", 1, "Corrupt: damaged")
    excuse, healed = (NEMESIS, Kind.INFO, "excuse", ["Corrupt:"], ""), (NEMESIS, Kind.INFO, "healed", None, "")
    assert "defect" in judged(asked, corrupt)
    assert "defect" not in judged(excuse, asked, corrupt)
    assert "defect" not in judged(excuse, asked, healed, corrupt), "it was asked while there was damage"
    assert "defect" not in judged(asked, excuse, corrupt)
    assert "defect" in judged(excuse, healed, asked, corrupt)
    assert "defect" in judged(excuse, asked, (1, Kind.INFO, "add", 1, "Internal: a defect"))


def test_a_few_calls_that_all_met_a_fault_are_no_anomaly_and_many_are() -> None:
    def names(tries: int) -> set[str]:
        lines = [(Kind.INVOKE, "add"), (Kind.OK, "add"), *[(Kind.INVOKE, "once"), (Kind.FAIL, "once")] * tries]
        history = History(Operation(n, n, 1, kind, f, 1) for n, (kind, f) in enumerate(lines))
        return {each.name for each in judge(Counting(Cell()), history).anomalies}

    assert "idle" not in names(1)
    assert "idle" in names(10)


def test_workloads_of_the_same_tables_are_refused_in_one_run(tmp_path: Path) -> None:
    told = CliRunner().invoke(
        main, ["run", "-w", "bank", "-w", "log", "-w", "bank_spark", "--folder", str(tmp_path / "run")]
    )
    assert told.exit_code == 2
    assert "write the same tables, a run has one of them: bank, bank_spark" in told.output
    assert not (tmp_path / "run").exists()
