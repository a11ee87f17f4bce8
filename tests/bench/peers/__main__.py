"""`python -m tests.bench.peers [WORKLOAD …]`: run workloads beside other systems and write docs/benchmarks.md.

Without names all workloads run. A trial run (`--scale` below 1, or `--dry`) prints its table and writes nothing.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path

import click

from tests.bench import earlier, page, report
from tests.bench.peers import contest
from tests.bench.peers.contest import Workload

NAMES = (
    *("log-append", "upserts", "upserts-10m", "lookups", "latency", "fan-out", "columns", "recovery"),
    *("log-recovery", "failover", "small-writes", "writers"),
    *("lake-changes", "streaming-upserts", "union-read", "kafka-to-table"),
    "rounds",
)
"""The workloads of a run without names, in their order. `log-append` is `WORKLOAD` of `workloads/log_append.py`."""
LONG_NAMES = ("upserts-50m", "lake-changes-50m")
"""Workloads that run only by name, because they take longer than ten minutes."""


def workload(name: str) -> Workload:
    """The workload of a name."""
    found: Workload = import_module(f"tests.bench.peers.workloads.{name.replace('-', '_')}").WORKLOAD
    return found


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES + LONG_NAMES))
@click.option("--rounds", default=contest.ROUNDS, show_default=True, help="Turns of each system.")
@click.option("--scale", default=1.0, show_default=True, help="Part of the work that is done.")
@click.option("--dry", is_flag=True, help="Write nothing to docs.")
def main(names: tuple[str, ...], rounds: int, scale: float, dry: bool) -> None:
    """Run workloads, all by default."""
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM")
    )  # else the systems would outlive this process
    failures = [name for name in names or NAMES if not _is_done(name, rounds, scale, is_dry=dry or scale != 1.0)]
    if failures:
        sys.exit(f"these workloads failed: {', '.join(failures)}")


def _is_done(name: str, rounds: int, scale: float, *, is_dry: bool) -> bool:
    """Run a workload and write its table. False, with the error on stderr, if it failed: the next ones go on."""
    folder = Path(tempfile.mkdtemp(prefix="lakestore-peers-"))
    start = report.RunStart(f'make bench peers ARGS="{name}"')
    try:
        one = workload(name)
        found = contest.outcome(one, folder, rounds=rounds, scale=scale)
    except Exception:
        traceback.print_exc()
        return False
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    run = start.end()
    content = {"contest": found | {"earlier": earlier.ratios_before(report.file_of(one.title), one.what)}}
    sys.stdout.write("\n".join(page.table(report.table(one.title, run, content))) + "\n")
    if not is_dry:
        report.write(one.title, run, content)
    return True


if __name__ == "__main__":
    main()
