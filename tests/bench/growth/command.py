"""The command line of `make bench growth`: which measures, of how many keys, where, and for how long."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import click

from tests.bench import report
from tests.bench.growth import crowd, lake, measured, pages, picture, upkeep
from tests.bench.growth.keyed import FAILURES, PARTS, Keyed, Limits
from tests.bench.growth.measured import Measured
from tests.bench.growth.rows import KINDS, NUMBER
from tests.bench.report import Figure, Part, Run

DISK_BYTES_PER_ROW, DISK_ROWS_PER_SECOND = 110, 1_000_000
"""About what a run takes: rows of the table, and upserts for as long as they last."""
_WIDTHS = 70, 75, 22
"""Columns of a printed figure."""
LAKE_PARTS = {
    "files": Part("Growth: plans of many files", lake.files),
    "server": Part("100,000 files: the server", upkeep.server),
    "verify": Part("100,000 files: verify", upkeep.exact),
    "upkeep": Part("100,000 files: rounds and upkeep", upkeep.upkeep),
    "readers": Part("100,000 files: other engines", upkeep.readers),
}
_COMMAND = 'make bench growth ARGS="{}"'
_UNITS = {"": 1, "K": 1_000, "M": 1_000_000, "G": 1_000_000_000}


def _numbers(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Numbers such as `200k,10M`, with commas between."""
    found = []
    for word in filter(None, text.split(",")):
        unit = word[-1].upper() if not word[-1].isdigit() else ""
        digits = word[:-1] if unit else word
        if unit not in _UNITS or not digits.isdigit():
            raise click.BadParameter(f"{word!r} is no number such as 200k or 10M", context, parameter)
        found.append(int(digits) * _UNITS[unit])
    return tuple(found)


@click.command()
@click.option("--keys", default="1M,10M,50M", show_default=True, callback=_numbers, help="Numbers of keys, none: ''.")
@click.option("--key", default=NUMBER, show_default=True, type=click.Choice(list(KINDS)), help="Kind of the keys.")
@click.option("--seconds", default=60.0, show_default=True, help="Time of the sustained upserts.")
@click.option("--fill-seconds", default=240.0, show_default=True, help="Time after which a fill stops short.")
@click.option("--settle-seconds", default=30.0, show_default=True, help="Longest wait for the index to be at rest.")
@click.option("--parts", default=",".join(PARTS), show_default=True, help="Measures behind the fill.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where data is kept for later measures.")
@click.option("--log", "logs", help="Parts of tests.bench.growth_log, with commas between, or `all`.")
@click.option("--crowd", "crowds", is_flag=True, help="Many tables, buckets, segments, subscribers, once each.")
@click.option("--lake", "lakes", default="", help=f"Parts upon many data files: {', '.join(LAKE_PARTS)}; or `all`.")
@click.option("--rounds", default="", callback=_numbers, help="Sizes of tables that rounds with Spark are made upon.")
@click.option("--crowd-scale", default=1.0, show_default=True, help="Part of the crowds' sizes.")
@click.option("--limit", default=900.0, show_default=True, help="Seconds after which no further number of keys begins.")
@click.option("--dry", is_flag=True, help="Write nothing to docs.")
def main(
    keys: tuple[int, ...],
    key: str,
    seconds: float,
    fill_seconds: float,
    settle_seconds: float,
    parts: str,
    folder: Path | None,
    logs: str | None,
    crowds: bool,
    lakes: str,
    rounds: tuple[int, ...],
    crowd_scale: float,
    limit: float,
    dry: bool,
) -> None:
    """Measure growth, and put it into docs/growth.json, docs/growth.svg, docs/benchmarks.md and docs/sizing.md."""
    chosen = tuple(part for part in PARTS if part in parts.split(","))
    limits = Limits(seconds, fill_seconds, settle_seconds)
    known, began = dict[int, Measured](), time.monotonic()
    for count in keys:
        place = folder or Path(tempfile.mkdtemp(prefix="lakestore-growth-"))
        place.mkdir(parents=True, exist_ok=True)
        free, wanted = shutil.disk_usage(place).free, DISK_BYTES_PER_ROW * (count + seconds * DISK_ROWS_PER_SECOND)
        if time.monotonic() - began > limit or free < wanted:
            _note(f"{measured.count_of(count)} keys: left out, after {limit:.0f} s or with {free / 1e9:.0f} GB free")
            continue
        start = report.RunStart(_COMMAND.format(f"--keys {','.join(map(str, keys))} --key {key}"))
        try:
            found = Keyed(place, count, limits, key).measure(chosen)
        except FAILURES as error:
            _note(f"{measured.count_of(count)} keys FAILED: {type(error).__name__} {error}")
            continue
        finally:
            if folder is None:
                shutil.rmtree(place, ignore_errors=True)
        known[found.keys] = found
        show = list(measured.figures(found, known))
        _say(show)
        if not dry:
            _write(found, show, start.end())
    if logs:
        _logs(logs, is_dry=dry)
    if lakes or rounds:
        _lake(lakes, rounds, limit, is_dry=dry)
    if crowds:
        _crowd(crowd_scale, is_dry=dry)
    if not dry:
        pages.write()


def _write(found: Measured, figures: Sequence[Figure], run: Run) -> None:
    measured.store([found], {})
    picture.draw(measured.known())
    report.write(f"Growth: {measured.told(found)}", run, {"figures": [asdict(figure) for figure in figures]})


def _logs(names: str, *, is_dry: bool) -> None:
    """The parts of the log's own module."""
    parts: dict[str, Part] = import_module("tests.bench.growth_log").PARTS
    chosen = list(parts) if names == "all" else names.split(",")
    report.measure(parts, chosen, _WIDTHS, _COMMAND.format("--keys '' --log {}"), is_dry=is_dry)


def _lake(names: str, rounds: Sequence[int], limit: float, *, is_dry: bool) -> None:
    """The lake's parts."""
    chosen = [name for name in LAKE_PARTS if names == "all" or name in names.split(",")]
    report.measure(LAKE_PARTS, chosen, _WIDTHS, _COMMAND.format("--keys '' --lake {}"), is_dry=is_dry)
    if rounds:
        part = Part("Growth: rounds upon many rows", lambda folder: lake.rounds(folder, rounds, limit))
        command = _COMMAND.format(f"--keys '' --rounds {','.join(map(str, rounds))}")
        report.measure({"rounds": part}, ["rounds"], _WIDTHS, command, is_dry=is_dry)


def _crowd(scale: float, *, is_dry: bool) -> None:
    """Every crowd, one after the other."""
    place = Path(tempfile.mkdtemp(prefix="lakestore-growth-"))
    found = {}
    try:
        for name, each in crowd.measure(place, scale):
            found[name] = asdict(each)
            _note(f"{name}: {json.dumps(found[name])}")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if not is_dry:
        measured.store([], {"crowd": found})


def _note(text: str) -> None:
    sys.stderr.write(f"  {text}\n")


def _say(figures: Iterable[Figure]) -> None:
    for figure in figures:
        report.say(figure, _WIDTHS)


if __name__ == "__main__":
    main()
