"""`python -m jepsen`: one run, many runs, a history judged again, bugs planted and hunted."""

from __future__ import annotations

import json
import random
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import get_args

import click

from jepsen import suite as suites
from jepsen import trial as trials
from jepsen.history import History
from jepsen.mutants import hunt as hunts
from jepsen.mutants import mutant
from jepsen.nemeses import NEMESES
from jepsen.nemeses.replicas import NAMES as OF_REPLICAS
from jepsen.system.cluster import Cluster
from jepsen.system.reached import Reads
from jepsen.verdict import judge
from jepsen.workloads import WORKLOADS

SEEDS = 1 << 31
NONE = "none"
OPERATIONS_SECONDS = 3_600.0
"""Length of a run that has a number of operations: they end it before."""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Break a Lakestore and look whether it keeps its promises."""


@main.command()
@click.option("--seed", default="", help="Of everything that is drawn, as a run prints it; any if none is given.")
@click.option("--seconds", type=float, help="Length of the main phase.")
@click.option("--processes", type=click.IntRange(1), help="Clients of each workload.")
@click.option("--operations", type=click.IntRange(1), help="Of each client; the run ends when they are done.")
@click.option("--workload", "-w", "workloads", multiple=True, type=click.Choice(sorted(WORKLOADS)))
@click.option(
    "--light", "all_light", is_flag=True, help="All workloads that need no Spark, Kafka or object store, side by side."
)
@click.option(
    "--nemesis", "-n", "nemeses", multiple=True, type=click.Choice([*sorted(NEMESES.keys() | OF_REPLICAS), NONE])
)
@click.option("--folder", type=click.Path(path_type=Path), help="Where histories, logs and the report are kept.")
@click.option("--servers", type=click.IntRange(1, 7), default=1, help="Several share a journal in Kafka.")
@click.option("--reads", type=click.Choice(get_args(Reads)), default="leader", help="Where clients of several read.")
@click.option("--s3", default="", help="Host and port of an S3 server with an empty bucket `lakestore`, for the lake.")
@click.option("--server", help="A Lakestore that runs: its host and gRPC port. Tables `jepsen.…` there are dropped.")
@click.option("--catalog", default="", help="With --server: the address of its Iceberg REST catalog.")
@click.option("--begin", "begins", default="", help="With --server: a shell command that breaks something.")
@click.option("--end", "ends", default="", help="With --server: the command that mends it.")
def run(
    seed: str,
    seconds: float | None,
    processes: int | None,
    operations: int | None,
    workloads: tuple[str, ...],
    all_light: bool,
    nemeses: tuple[str, ...],
    folder: Path | None,
    servers: int,
    reads: Reads,
    s3: str,
    server: str | None,
    catalog: str,
    begins: str,
    ends: str,
) -> None:
    """One run; the seed chooses what is not given."""
    cluster = Cluster(server, catalog, begins=begins, ends=ends) if server else None
    workloads += tuple(name for name in sorted(WORKLOADS) if not trials.needs_of([name])) if all_light else ()
    if same := trials.of_same_tables(workloads):
        raise click.UsageError(f"these workloads write the same tables, a run has one of them: {', '.join(same)}")
    trial = trials.of_seed(seed or str(random.randrange(1, SEEDS)))
    if servers > 1:
        trial = replace(trials.with_replicas(trial, servers), reads=reads)
        if unfit := set(nemeses) - OF_REPLICAS - {NONE} or trials.needs_of(workloads):
            raise click.UsageError(f"not with several servers: {', '.join(sorted(unfit))}")
    elif unfit := set(nemeses) - NEMESES.keys() - {NONE}:
        raise click.UsageError(f"these faults need --servers: {', '.join(sorted(unfit))}")
    trial = replace(
        trial,
        seconds=seconds or (OPERATIONS_SECONDS if operations else trial.seconds),
        processes=processes or trial.processes,
        operations=operations or trial.operations,
        workloads=workloads or trial.workloads,
        nemeses=tuple(name for name in nemeses if name != NONE) if nemeses else trial.nemeses,
        s3=s3,
    )
    if s3 and (servers > 1 or server):
        raise click.UsageError("--s3 needs a run that starts one server: leave out --servers and --server")
    if cluster is not None:
        light = tuple(name for name in trial.workloads if not trials.needs_of([name]))
        if lacking := trials.needs_of(workloads) - cluster.parts:
            raise click.UsageError(
                f"these workloads need what --server has not: {', '.join(sorted(lacking))}; see --catalog"
            )
        trial = replace(trial, workloads=workloads or light, nemeses=tuple(cluster.nemeses))
    folder = folder or _folder()
    verdict = trial.perform(folder, cluster)
    click.echo(f"{verdict.line}\n  report:   {folder / 'report.md'}\n  again:    {trial.again(cluster)}")
    sys.exit(1 if verdict.anomalies else 0)


@main.command()
@click.option("--seed", type=click.IntRange(0), help="Of the whole suite; any if none is given.")
@click.option("--minutes", type=float, default=4.0, show_default=True)
@click.option("--light", is_flag=True, help="Without workloads that need Spark, Kafka or an object store.")
@click.option("--servers", type=click.IntRange(1, 7), default=1, help="Several share a journal in Kafka.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where runs that fail are kept.")
def suite(seed: int | None, minutes: float, light: bool, servers: int, folder: Path | None) -> None:
    """One run after the other, every workload in turn, under faults drawn from the seed."""
    folder = folder or _folder()
    folder.mkdir(parents=True, exist_ok=True)
    base = random.randrange(1, SEEDS) if seed is None else seed
    click.echo(f"suite of seed {base} in {folder}")
    summary = suites.run(base, minutes * 60, folder, click.echo, light=light, servers=servers)
    sys.exit(1 if summary.failed else 0)


@main.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True))
@click.option("--workload", "-w", type=click.Choice(sorted(WORKLOADS)), help="As the file is named, if not given.")
def check(file: Path, workload: str | None) -> None:
    """Judge the history of a file of JSON lines again."""
    judged = judge(WORKLOADS[workload or file.stem](random.Random(0)), History.load(file))
    for each in judged.anomalies:
        click.echo(f"{each.name}: {each.sentence}")
    click.echo(f"{judged.workload}: {len(judged.anomalies)} anomalies")
    sys.exit(1 if judged.anomalies else 0)


@main.command()
@click.option("--mutant", "-m", "names", multiple=True, help="Only these, by name.")
@click.option("--simulated", default=hunts.SIMULATED_SECONDS, show_default=True, help="Seconds in the simulation.")
@click.option("--real", default=hunts.REAL_SECONDS, show_default=True, help="Seconds with real processes after that.")
@click.option("--out", type=click.Path(path_type=Path), help="Where the outcomes are written as JSON.")
def mutants(names: tuple[str, ...], simulated: float, real: float, out: Path | None) -> None:
    """Plant one bug after the other and look whether the suite finds it."""
    chosen = [each for each in mutant.planted() if not names or each.name in names]
    if simulated and not names:
        alarm = hunts.false_alarms(simulated)
        if alarm.by:
            raise click.ClickException(f"the simulation complains of a server without a bug: {alarm}")
    outcomes = hunts.hunt(chosen, click.echo, simulated=simulated, real=real)
    missed = [each.mutant for each in outcomes if not each.by]
    click.echo(f"\n{hunts.table(outcomes)}\n\n{len(outcomes) - len(missed)} of {len(outcomes)} mutants caught")
    if out:
        out.write_text(json.dumps(hunts.to_json(outcomes), indent=1))
    sys.exit(1 if missed else 0)


def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="jepsen-"))


if __name__ == "__main__":
    main()
