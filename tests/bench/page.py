"""The tables of docs/benchmarks.md, made from the files in docs/benchmarks.

- Each table names the one run that made it: day, commit, command, machine, load, pace before and after.
- A table without a run holds figures that were measured before this rule, over several days. Its head says so, and its
  rows keep their day and commit.
- A contest's cell is the median, its spread, and how many times better Lakestore is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.bench import earlier
from tests.bench.earlier import ratios_of
from tests.bench.peers.contest import advantage

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"
MET = {True: "yes", False: "**no**", None: "–"}
UNKNOWN_CAUSE = "The cause is not known yet."


def text(page: str, tables: Sequence[Mapping[str, Any]]) -> str:
    """`page` with the part between `BEGIN` and `END` replaced by all tables: contests first, each kind by title."""
    head, rest = page.split(BEGIN)
    tail = rest.split(END)[1]
    contests = [table for table in tables if "contest" in table]
    others = [table for table in tables if "contest" not in table]
    lines = [
        *_chapter("Beside other systems", contests),
        *_chapter("Lakestore alone", [table for table in others if table["run"]]),
        *_chapter("Older figures", [table for table in others if not table["run"]]),
    ]
    return f"{head}{BEGIN}\n\n" + "\n".join(lines) + f"\n{END}{tail}"


def _chapter(title: str, tables: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if tables:
        yield from (f"## {title}", "")
    for each in sorted(tables, key=lambda each: str(each["title"])):
        yield from table(each)


def table(each: Mapping[str, Any]) -> Iterator[str]:
    """The lines of one table with its heading."""
    yield from (f"### {each['title']}", "")
    if "contest" in each:
        yield from (_work(each["contest"]), "", _origin(each["run"]), "", *_contest(each["contest"]))
    elif each["run"]:
        yield from (_origin(each["run"]), "", *_figures(each["figures"]))
    else:
        yield from (_older(each), "", *_older_figures(each["figures"]))
    yield ""


def _work(contest: Mapping[str, Any]) -> str:
    """The paragraph about the work: the text of the workload, and how many rounds came before the counted ones."""
    rounds = contest.get("warm_rounds", 0)
    before = f" Rounds before the counted ones, to warm the systems up: {rounds}." if rounds else ""
    return f"{contest['what']}{before}"


def _origin(run: Mapping[str, Any]) -> str:
    """The head of a table that one run made."""
    before, after = run["before"], run["after"]
    pace = "; ".join(
        f"{name} {before[key]:,.0f} before, {after[key]:,.0f} after"
        for key, name in (("hashed", "SHA-256 MB/s"), ("gathered", "random read ns"), ("synced", "synced MB/s"))
    )
    return (
        f"One run of `{run['command']}`: {run['day']}, commit {run['commit']}, {run['seconds']:.0f} s."
        f" {run['machine']}; load {run['load']:g}. Pace: {pace}."
    )


def _older(table: Mapping[str, Any]) -> str:
    """The head of a table whose rows are of several runs."""
    origins = sorted({(figure["day"], figure["commit"]) for figure in table["figures"]})
    (first, commit), (last, _) = origins[0], origins[-1]
    if len(origins) == 1:
        said = f"All rows are of {first}, commit {commit}. Whether one run made them was not recorded. The pace"
    else:
        said = f"**Several runs**, {first} to {last}: each row names its own. Rows of two runs do not compare. The pace"
    return f"{said} of the machine is not known. `{table['command']}` replaces the whole table by one run."


def _figures(figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from ("| work | measured | bar | met |", "|---|---|---|---|")
    for figure in figures:
        yield f"| {figure['name']} | {figure['measured']} | {figure['bar']} | {MET[figure['met']]} |"


def _older_figures(figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if len({(figure["day"], figure["commit"]) for figure in figures}) == 1:
        yield from _figures(figures)
        return
    yield from ("| work | measured | bar | met | day, commit |", "|---|---|---|---|---|")
    for figure in figures:
        origin = f"{figure['day']} {figure['commit']}"
        yield f"| {figure['name']} | {figure['measured']} | {figure['bar']} | {MET[figure['met']]} | {origin} |"


def _contest(contest: Mapping[str, Any]) -> Iterator[str]:
    present = [each for each in contest["contestants"] if not each["missing"]]
    names = [each["name"] for each in present]
    yield f"| work | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for row in contest["rows"]:
        cells = (_cell(row, name) for name in names)
        yield f"| {row['name']}, {row['unit']} | {' | '.join(cells)} |"
    yield ""
    yield from _behind(contest["rows"])
    yield from earlier.lines(contest)
    for each in contest["contestants"]:
        yield from _contestant(each)


def _behind(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line for each cause: the rows in which another system is ahead, as far as the two digits of a cell show."""
    by_cause: dict[str, list[str]] = {}
    for row in rows:
        if any(round(ratio, 2) < 1 for ratio in ratios_of(row).values()):
            by_cause.setdefault(row["cause"] or UNKNOWN_CAUSE, []).append(row["name"])
    for cause, behind in by_cause.items():
        yield f"- **Behind** in {'; '.join(behind)}. {cause}"


def _cell(row: Mapping[str, Any], name: str) -> str:
    value = row["values"].get(name)
    if value is None:
        return "–"
    ratio = "" if value["ratio"] is None else f", {ratio_text(row, name, '**')}"
    return f"{value['median']:,.{row['digits']}f} ({value['spread']:.0%}){ratio}"


def ratio_text(row: Mapping[str, Any], name: str, mark: str = "") -> str:
    """The ratio of a row between Lakestore and the system `name`, such as `1.40x`. Above 1 Lakestore was better.

    `mark` is written before and behind the ratio, for instance `**` for bold print. If Lakestore was better in some
    rounds and worse in others, the lowest and the highest ratio of a round are added: `1.10x (0.90 to 1.30)`.
    """
    theirs = row["values"][name]
    ours = next(iter(row["values"].values()))["rounds"]
    found = (advantage(row["better"], *each) for each in zip(ours, theirs["rounds"], strict=False))
    ratios = [ratio for ratio in found if ratio is not None]
    is_open = ratios and round(min(ratios), 2) < 1 < round(max(ratios), 2)
    span = f" ({min(ratios):.2f} to {max(ratios):.2f})" if is_open else ""
    return f"{mark}{theirs['ratio']:.2f}x{mark}{span}"


def _contestant(each: Mapping[str, Any]) -> Iterator[str]:
    if each["missing"]:
        yield f"- **{each['name']}** is missing: {each['missing']}"
        return
    settings = "; ".join(f"`{one['name']}={one['value']}` ({one['source']})" for one in each["settings"])
    failure = f" **Failed**: {each['failure']}" if each["failure"] else ""
    yield f"- **{each['name']}** {each['version']}. {each['fairness']} {settings or 'No setting differs.'}{failure}"
