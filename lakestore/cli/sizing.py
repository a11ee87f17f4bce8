"""The command `sizing`, which estimates the resources of a table."""

from __future__ import annotations

import math

import click

from lakestore.cli.connection import json_option
from lakestore.cli.output import duration, emit, emit_json, emit_text, size
from lakestore.errors import Invalid
from lakestore.model import ttl

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}
_BYTES = {"": 1, **{f"{unit}b": factor for unit, factor in (("", 1), ("k", 10**3), ("m", 10**6), ("g", 10**9))}}
_BYTES |= {"tb": 10**12}


def number(text: str, units: dict[str, int], what: str) -> float:
    """Parse a number above 0 with a unit, such as 50M. Raises `Invalid`."""
    plain = text.strip().lower().replace(",", "").replace(" ", "")
    digits = plain.rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        found = float(digits) * units[plain[len(digits) :]]
    except (ValueError, KeyError):
        raise Invalid(f"{what} is a number such as 50M or 20GB, not {text!r}") from None
    if not (math.isfinite(found) and found > 0):
        raise Invalid(f"{what} is above 0, not {text!r}")
    return found


@click.command()
@click.option("--rows", required=True, help="Keys of the table, or rows of a log at first, as in 50M or 1B.")
@click.option("--rate", required=True, help="Rows a second, as in 100k: even updates, or appends to a log.")
@click.option("--row-bytes", default=44.0, show_default=True, help="Bytes of a row's values.")
@click.option("--key-bytes", default=8, show_default=True, help="Bytes of a key; 0 for a log table.")
@click.option("--key-kind", type=click.Choice(["number", "bytes"]), help="Default: numbers up to 8 bytes, else bytes.")
@click.option("--buckets", default=4, show_default=True, help="Buckets of the table.")
@click.option("--retention", help="Time for which the log is kept, as in 7d; all of it by default.")
@click.option("--seconds", default=7 * 86_400, show_default=True, help="Time for which the table has been used.")
@click.option("--batch-rows", default=10_000, show_default=True, help="Rows of a commit.")
@click.option("--memory", help="Memory of the machine, as in 24GB.")
@click.option("--disk", help="Size of the disk, as in 2TB.")
@json_option
def sizing(
    rows: str,
    rate: str,
    row_bytes: float,
    key_bytes: int,
    key_kind: str | None,
    buckets: int,
    retention: str | None,
    seconds: int,
    batch_rows: int,
    memory: str | None,
    disk: str | None,
    as_json: bool,
) -> None:
    """Estimate disk, memory, bytes written and times of a table, and the first limit that it reaches.

    Needs no server. The constants are measurements; --json lists them with their sources. docs/sizing.md compares
    results with benchmarks.
    """
    from lakestore_server.operate.sizing import Workload, sized

    if seconds <= 0:
        raise Invalid("--seconds is above 0")
    asked = Workload(
        rows=number(rows, _UNITS, "--rows"),
        rate=number(rate, _UNITS, "--rate"),
        row_bytes=row_bytes,
        key_bytes=key_bytes,
        key_kind=key_kind or "",
        buckets=buckets,
        retention_seconds=ttl.seconds(retention, "--retention") if retention else math.inf,
        batch_rows=batch_rows,
        memory_bytes=number(memory, _BYTES, "--memory") if memory else 0.0,
        disk_bytes=number(disk, _BYTES, "--disk") if disk else 0.0,
    )
    found = sized(asked, seconds)
    if as_json:
        emit_json(found.as_dict())
        return
    shown = [
        {"part": each.part, "figure": each.name, "value": value(each.value, each.unit), "why": each.why}
        for each in found.figures
    ]
    emit(shown, as_json=False)
    emit_text("")
    breaking = [
        {"what breaks, the first first": each.name, "used": f"{each.share:.0%}", "then": each.why}
        for each in found.breaking
    ]
    emit(breaking, as_json=False)


def value(amount: float, unit: str) -> str:
    """Format a figure with its unit."""
    if unit == "bytes":
        return size(amount)
    if unit == "seconds":
        return f"{amount:.1f} s" if amount < 120 else duration(amount)
    return f"{amount:.1f}x"


COMMANDS = (sizing,)
