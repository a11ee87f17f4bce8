"""`python -m jepsen run`: one or many runs against real processes."""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

import click

from jepsen import schedule
from jepsen.nemeses import NEMESES
from jepsen.run import Course, Run
from jepsen.system import System
from jepsen.verdict import Verdict
from jepsen.workloads import WORKLOADS


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Break a Lakestore and look whether it keeps its promises."""


@main.command()
@click.option("--seed", default="", help="Of everything that is drawn; any if none is given.")
@click.option("--seconds", default=20.0, show_default=True, help="Length of the main phase.")
@click.option("--workload", "-w", "workloads", multiple=True, type=click.Choice(sorted(WORKLOADS)))
@click.option("--nemesis", "-n", "nemeses", multiple=True, type=click.Choice(sorted(NEMESES)))
@click.option("--folder", type=click.Path(path_type=Path), help="Where histories and logs are kept.")
def run(seed: str, seconds: float, workloads: tuple[str, ...], nemeses: tuple[str, ...], folder: Path | None) -> None:
    """One run against real processes."""
    seed = seed or str(random.randrange(1, 1 << 31))
    folder = folder or Path(tempfile.mkdtemp(prefix="jepsen-"))
    verdict = run_once(seed, seconds, workloads or tuple(WORKLOADS), nemeses or tuple(NEMESES), folder)
    click.echo(verdict.line)
    sys.exit(1 if verdict.anomalies else 0)


def run_once(seed: str, seconds: float, workloads: tuple[str, ...], nemeses: tuple[str, ...], folder: Path) -> Verdict:
    """The run of a seed in a folder of its own."""
    chance = random.Random(seed)
    made = [WORKLOADS[name](random.Random(chance.random())) for name in workloads]
    needs = frozenset[str]().union(*(each.needs for each in made))
    planned = schedule.plan(seed, seconds, nemeses)
    with System(folder, needs, {}) as system:
        verdict = Run(system, made, NEMESES, planned, Course(seed, seconds), folder).run()
    (folder / "verdict.json").write_text(json.dumps(verdict.to_json(), indent=1))
    return verdict


if __name__ == "__main__":
    main()
