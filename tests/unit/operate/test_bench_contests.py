"""Contests of benches: turns, medians, ratios, systems that are missing or fail, and the page made of the files.

No system runs here: the contestants are made up, and so are their figures.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from lakestore.errors import Unavailable
from tests.bench import dots, earlier, headlines, page, report
from tests.bench.__main__ import GROUPS
from tests.bench.peers import __main__ as command
from tests.bench.peers import contest
from tests.bench.peers.contest import LESS, MORE, Contestant, Failed, Measure, Missing, Setting, Workload
from tests.bench.report import Figure, Part, Run

PACE = {"hashed": 1_500.0, "gathered": 9.0, "synced": 400.0}
RUN = Run("2026-11-28", "0123abcd", "make bench x", "a machine", 0.1, PACE, {**PACE, "hashed": 750.0}, 12.0)
RATES: Mapping[str, list[float]] = {"ours": [100.0, 300.0, 200.0], "theirs": [50.0, 40.0, 60.0]}


def contestant(name: str, error: Exception | None = None) -> Contestant:
    """A system that yields its name, or does not start."""

    @contextmanager
    def start(_: Path) -> Iterator[str]:
        if error is not None:
            raise error
        yield name

    return Contestant(name, "1.0", start, "It syncs.", (Setting("linger.ms", "5", "its manual"),))


def turn(calls: list[str], stage: str, number: int) -> dict[str, float]:
    """The made-up rates of a system, and times that are the tenth of them; `slow` has no times, `weak` fails late."""
    calls.append(stage)
    if stage == "weak" and number == 1:
        raise Failed("out of memory")
    rate = RATES.get(stage, RATES["theirs"])[number]
    return {"rate": rate} if stage == "slow" else {"rate": rate, "time": rate / 10}


def outcome(
    folder: Path, *others: Contestant, first: Contestant | None = None, warm: int = 0, rounds: int = 3
) -> dict[str, Any]:
    """A contest of some rounds."""
    calls: list[str] = []
    workload = Workload(
        title="Work",
        what="They work.",
        measures=(Measure("rate", "rows/s"), Measure("time", "ms", LESS, 1, "We wait for the disk.")),
        contestants=(first or contestant("ours"), *others),
        prepare=lambda system, _: system,
        turn=partial(turn, calls),
        warm_rounds=warm,
    )
    found = contest.outcome(workload, folder, rounds=rounds)
    counted = [name for turns in found["order"] for name in turns]
    assert calls[len(calls) - len(counted) :] == counted
    assert (len(calls) > len(counted)) == bool(warm)
    return found


def test_turns_alternate_and_each_round_has_every_system(tmp_path: Path) -> None:
    found = outcome(tmp_path, contestant("theirs"), contestant("slow"))
    assert found["order"] == [["ours", "theirs", "slow"], ["slow", "theirs", "ours"], ["ours", "theirs", "slow"]]


def test_rounds_that_warm_the_systems_up_do_not_count(tmp_path: Path) -> None:
    found = outcome(tmp_path, contestant("theirs"), warm=1, rounds=2)
    assert found["order"] == [["ours", "theirs"], ["theirs", "ours"]]
    assert found["rows"][0]["values"]["ours"]["rounds"] == [300.0, 200.0]
    lines = list(page.table(report.table("Work", RUN, {"contest": found})))
    assert lines[2] == "They work. Rounds before the counted ones, to warm the systems up: 1."


def test_a_row_has_the_median_the_spread_and_how_many_times_better_ours_is(tmp_path: Path) -> None:
    rate, time = outcome(tmp_path, contestant("theirs"), contestant("slow"))["rows"]
    assert rate["values"]["ours"] == {"rounds": [100.0, 300.0, 200.0], "median": 200.0, "spread": 1.0, "ratio": None}
    assert rate["values"]["theirs"]["ratio"] == 4.0
    assert time["values"]["theirs"]["ratio"] == 0.25
    assert "slow" not in time["values"]
    assert contest.advantage(LESS, 0.0, 1.0) is None


@pytest.mark.parametrize(
    "error", [Missing("no jar of it in Maven Central"), Unavailable("no jar of it in Maven Central")]
)
def test_a_system_that_cannot_be_had_is_named_with_what_was_tried(tmp_path: Path, error: Exception) -> None:
    found = outcome(tmp_path, contestant("absent", error), contestant("theirs"))
    assert found["order"][0] == ["ours", "theirs"]
    lines = "\n".join(page.table(report.table("Work", RUN, {"contest": found})))
    assert "- **absent** is missing: no jar of it in Maven Central" in lines
    assert "| work | ours | theirs |" in lines


def test_a_system_that_fails_has_no_figures_and_the_others_go_on(tmp_path: Path) -> None:
    found = outcome(tmp_path, contestant("weak"), contestant("theirs"))
    assert found["order"][1:] == [["theirs", "weak", "ours"], ["ours", "theirs"]]
    assert list(found["rows"][0]["values"]) == ["ours", "theirs"]
    lines = "\n".join(page.table(report.table("Work", RUN, {"contest": found})))
    assert "**Failed**: in round 2: out of memory" in lines


def test_a_contest_without_lakestore_is_none(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ours: no server"):
        outcome(tmp_path, contestant("theirs"), first=contestant("ours", Missing("no server")))


def test_the_page_shows_the_run_the_cells_and_where_we_are_behind(tmp_path: Path) -> None:
    table = report.table("Work", RUN, {"contest": outcome(tmp_path, contestant("theirs"), contestant("slow"))})
    lines = list(page.table(json.loads(json.dumps(table))))
    assert lines[0] == "### Work"
    assert lines[4] == (
        "One run of `make bench x`: 2026-11-28, commit 0123abcd, 12 s. a machine; load 0.1. Pace: SHA-256 MB/s 1,500"
        " before, 750 after; random read ns 9 before, 9 after; synced MB/s 400 before, 400 after."
    )
    assert "| rate, rows/s | 200 (100%) | 50 (40%), **4.00x** | 50 (40%), **4.00x** |" in lines
    assert "| time, ms | 20.0 (100%) | 5.0 (40%), **0.25x** | – |" in lines
    assert "- **Behind** in time. We wait for the disk." in lines
    assert "- **theirs** 1.0. It syncs. `linger.ms=5` (its manual)" in lines


@pytest.mark.parametrize(("better", "shown"), [(MORE, "**2.00x** (0.50 to 2.00)"), (LESS, "**0.50x** (0.50 to 2.00)")])
def test_a_ratio_without_a_winner_shows_both_ends(better: str, shown: str) -> None:
    values: dict[str, Any] = {"ours": contest.summary([100, 200, 200]), "theirs": contest.summary([200, 100, 100])}
    ratio = contest.advantage(better, values["ours"]["median"], values["theirs"]["median"])
    values["theirs"]["ratio"] = ratio
    assert page.ratio_text({"better": better, "values": values}, "theirs", "**") == shown


def test_the_page_names_ratios_that_a_second_run_did_not_repeat(tmp_path: Path) -> None:
    file, found = tmp_path / "work.json", outcome(tmp_path, contestant("theirs"), contestant("slow"))
    assert earlier.ratios_before(file, "They work.") is None
    file.write_text(json.dumps(report.table("Work", RUN, {"contest": found})))
    assert earlier.ratios_before(file, "They rest.") is None
    before = earlier.ratios_before(file, "They work.")
    assert before is not None
    same = "\n".join(page.table(report.table("Work", RUN, {"contest": found | {"earlier": before}})))
    assert "- The run before (2026-11-28, commit 0123abcd) had the same ratios within 15%." in same
    before["ratios"]["rate"]["slow"] = 4.0 * 1.16
    other = "\n".join(page.table(report.table("Work", RUN, {"contest": found | {"earlier": before}})))
    assert "had 2 of 3 ratios within 15%. The others were: slow in rate 4.64x." in other


def test_a_run_replaces_its_whole_table_and_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "FOLDER", tmp_path / "benchmarks")
    monkeypatch.setattr(report, "PAGE", tmp_path / "benchmarks.md")
    monkeypatch.setattr(report, "_pace", lambda: PACE)
    monkeypatch.setattr(headlines, "README", tmp_path / "README.md")
    monkeypatch.setattr(headlines, "IMAGES", tmp_path)
    headlines.README.write_text(f"{headlines.BEGIN}\n{headlines.END}\n")
    report.PAGE.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    report.FOLDER.mkdir()
    old = {"name": "old work", "measured": "1 s", "bar": "", "met": None}
    rows = [{**old, "day": "2026-11-21", "commit": "aa"}, {**old, "day": "2026-11-22", "commit": "bb"}]
    older = {"title": "Server: writes", "run": None, "command": "make bench ARGS=writes", "figures": rows}
    for title in ("Server: writes", "Server: reads"):
        report.file_of(title).write_text(json.dumps({**older, "title": title}))

    def measure(folder: Path) -> Iterator[Figure]:
        assert folder.is_dir()
        yield Figure("new work", "2 s", "< 3 s", True)

    parts = {"writes": Part("Server: writes", measure)}
    report.measure(parts, parts, (1, 1, 1), "make bench ARGS={}", is_dry=True)
    assert "new work" not in report.PAGE.read_text()
    report.measure(parts, parts, (1, 1, 1), "make bench ARGS={}", is_dry=False)
    said = report.PAGE.read_text()
    assert said.startswith("before\n")
    assert said.endswith("\nafter\n")
    alone, old_part = said.split("## Older figures")
    assert "One run of `make bench ARGS=writes`" in alone
    assert "| new work | 2 s | < 3 s | yes |" in alone
    assert "old work" not in alone
    assert "**Several runs**, 2026-11-21 to 2026-11-22" in old_part
    assert old_part.count("| old work | 1 s |  | – | 2026-11-2") == 2
    assert page.text(said, report.tables()) == said


def test_the_page_of_this_checkout_is_made_of_its_files() -> None:
    said = report.PAGE.read_text()
    assert page.text(said, report.tables()) == said, "run `python -m tests.bench.report`"
    for table in report.tables():
        assert report.file_of(table["title"]).exists(), table["title"]
        assert len({figure["name"] for figure in table.get("figures", ())}) == len(table.get("figures", ()))


def test_the_readme_and_the_pictures_show_what_the_files_have_and_nothing_else() -> None:
    said = headlines.README.read_text()
    assert headlines.readme(said, report.tables()) == said, "run `python -m tests.bench.report`"
    for name, picture in headlines.pictures(report.tables()).items():
        assert (headlines.IMAGES / name).read_text() == picture, "run `python -m tests.bench.report`"
        assert f"docs/img/{name}" in said
        ElementTree.fromstring(picture)
    assert headlines.readme(f"{headlines.BEGIN}{headlines.END}", []).count("\n| ") == 1, "the head alone"
    workloads = map(command.workload, command.NAMES + command.LONG_NAMES)
    measures = {each.title: [one.name for one in each.measures] for each in workloads}
    growth = [(title, pair) for title, *pair in headlines.GROWTH.values()]
    for title, names in (*headlines.CONTESTS.items(), *growth):
        assert set(names) <= set(measures[title]), title


def test_a_row_of_the_readme_has_the_fastest_other_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headlines, "CONTESTS", {"Work": ("time",)})
    table = report.table("Work", RUN, {"contest": outcome(tmp_path, contestant("theirs"), contestant("others"))})
    for name, ratio in {"theirs": 0.5, "others": 2.0}.items():
        table["contest"]["rows"][1]["values"][name]["ratio"] = ratio
    said = headlines.readme(f"{headlines.BEGIN}{headlines.END}", [table])
    assert "| Work: time | 20.0 ms | theirs: 5.0 ms | 0.50x |" in said
    assert headlines.pictures([table])["peers.svg"].count("<circle") == 4, "two systems in the legend and two dots"


def test_the_picture_of_growth_divides_two_medians_of_each_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        headlines, "GROWTH", {"late over early": ("Work", "rate", "time"), "not run": ("None", "a", "b")}
    )
    table = report.table("Work", RUN, {"contest": outcome(tmp_path, contestant("theirs"), contestant("slow"))})
    shown: list[dots.Row] = []
    monkeypatch.setattr(dots, "picture", lambda _, __, rows: shown.extend(rows))
    headlines.pictures([table])
    assert shown == [("late over early", {"ours": 10.0, "theirs": 10.0})], "slow has no time"


def test_a_workload_that_breaks_does_not_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    made = outcome(tmp_path, contestant("theirs"))

    def result(one: Workload, _: Path, **__: object) -> dict[str, Any]:
        calls.append(one.title)
        if len(calls) == 1:
            raise ValueError("broken")
        return made

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(contest, "outcome", result)
    monkeypatch.setattr(report, "_pace", lambda: PACE)
    done = CliRunner().invoke(command.main, ["--dry", "fan-out", "columns"])
    assert calls == ["Fan-out", "Column pruning"]
    assert done.exit_code == 1
    assert "these workloads failed: fan-out" in done.output


def test_every_workload_has_a_name_and_lakestore_first() -> None:
    files = {file.stem for file in Path(command.__file__).with_name("workloads").glob("[a-z]*.py")}
    known = command.NAMES + command.LONG_NAMES
    assert files == {name.replace("-", "_") for name in known}
    workloads = [command.workload(name) for name in known]
    for workload in workloads:
        assert workload.contestants[0].name == "Lakestore"
        assert len(workload.contestants) > 1
        assert all(setting.source for each in workload.contestants for setting in each.settings)
        names = [each.name for each in workload.contestants]
        assert len(set(names)) == len(names)
    titles = [part.title for part in GROUPS.values()]
    titles += [part.title for part in import_module("tests.bench.growth.command").LAKE_PARTS.values()]
    titles += [workload.title for workload in workloads]
    assert len({report.file_of(title) for title in titles}) == len(titles)
