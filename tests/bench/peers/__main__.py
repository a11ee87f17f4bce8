"""`python -m tests.bench.peers [WORKLOAD …]`: run workloads beside other systems and write docs/benchmarks.md.

Without names all workloads run. A trial run (`--scale` below 1, or `--dry`) prints its table and writes nothing.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import click

from tests.bench import page, report
from tests.bench.peers import contest
from tests.bench.peers.contest import Workload

NAMES = (
    *("log-append", "upserts", "upserts-10m", "lookups", "latency", "fan-out", "columns", "recovery"),
    "small-writes",
    "lake-changes",
    "rounds",
)
"""All workloads in the order in which they run. `log-append` is `WORKLOAD` of `workloads/log_append.py`."""


def workload(name: str) -> Workload:
    """The workload of a name."""
    found: Workload = import_module(f"tests.bench.peers.workloads.{name.replace('-', '_')}").WORKLOAD
    return found


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--rounds", default=contest.ROUNDS, show_default=True, help="Turns of each system.")
@click.option("--scale", default=1.0, show_default=True, help="Part of the work that is done.")
@click.option("--dry", is_flag=True, help="Write nothing to docs.")
def main(names: tuple[str, ...], rounds: int, scale: float, dry: bool) -> None:
    """Run workloads, all by default."""
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM")
    )  # else the systems would outlive this process
    for name in names or NAMES:
        one, folder = workload(name), Path(tempfile.mkdtemp(prefix="lakestore-peers-"))
        start = report.RunStart(f'make bench peers ARGS="{name}"')
        try:
            content = {"contest": contest.outcome(one, folder, rounds=rounds, scale=scale)}
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        run = start.end()
        sys.stdout.write("\n".join(page.table(report.table(one.title, run, content))) + "\n")
        if not dry and scale == 1.0:
            report.write(one.title, run, content)


if __name__ == "__main__":
    main()
