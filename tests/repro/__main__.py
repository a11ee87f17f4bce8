"""`python -m tests.repro [--list] [NAME…]`: run the scripts, each in its own process, and say what each one shows.

A NAME is a folder (`server`), a script (`t9_leases`) or both (`server/t9_leases`); all scripts if none is given. What a
script prints stays in `out/` of $LAKESTORE_REPRO_WORK, or of a new folder that the first line names.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.repro.cases import CASES, Case
from tests.repro.place import PYTHON, ROOT, WORK, room

MEMORY_MB_MAX = 6_500
NICE = 10
LINE = 150


@dataclass(frozen=True)
class Ran:
    """How a script ended, and what it printed."""

    code: int | None
    seconds: float
    peak_mb: int
    ended: str
    text: str


def main(asked: list[str]) -> int:
    """Run what was asked for, one at a time; 1 if any shows its fault or does not get to its end."""
    # Started in the background we may have been told to ignore Ctrl-C, and scripts that try it would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cases = chosen([name for name in asked if name != "--list"])
    if "--list" in asked:
        for case in cases:
            print(f"{case.label:36} {case.point:10} {case.fault}")
        return 0
    print(f"what they print: {room('out')}", flush=True)
    verdicts = []
    for case in cases:
        ran = run(case)
        verdicts.append(verdict(case, ran))
        print(f"{case.label:36} {ran.seconds:4.0f} s {ran.peak_mb:5} MB  {verdicts[-1]}", flush=True)
    for folder in {case.folder for case in cases}:
        shutil.rmtree(WORK / folder, ignore_errors=True)
    return int(not all(text.startswith("right") for text in verdicts))


def chosen(names: list[str]) -> list[Case]:
    """The cases of these names in the order of the table, after those they need."""
    unknown = [name for name in names if not any(name in case.names for case in CASES)]
    if unknown:
        raise SystemExit(f"no such script: {', '.join(unknown)}; --list names them")
    wanted = [case for case in CASES if not names or any(name in case.names for name in names)]
    needed = {case.needs for case in wanted if case.needs}
    return [case for case in CASES if case in wanted or case.label in needed]


def run(case: Case) -> Ran:
    """The script in a session of its own, which ends with it, at the latest when its time or memory is up."""
    out = room("out") / f"{case.label.replace('/', '__').replace(' ', '_')}.txt"
    command = ["nice", "-n", str(NICE), PYTHON, "-u", "-m", f"tests.repro.{case.folder}.{case.name}", *case.arguments]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": paths, "LAKESTORE_REPRO_WORK": str(WORK)}
    began, peak, ended = time.monotonic(), 0, ""
    with out.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=room(case.folder),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        while process.poll() is None and not ended:
            peak = max(peak, session_mb(process.pid))
            if peak > MEMORY_MB_MAX:
                ended = f"ended by the runner at {peak} MB"
            elif time.monotonic() - began > case.seconds:
                ended = f"ended by the runner after {case.seconds} s"
            time.sleep(0.2)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return Ran(process.returncode, time.monotonic() - began, peak, ended, out.read_text(errors="replace"))


def session_mb(session: int) -> int:
    """Resident memory of all processes of a session."""
    pages = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rsplit(")", 1)[1].split()
            if int(fields[3]) == session:
                pages += int(fields[21])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def verdict(case: Case, ran: Ran) -> str:
    """FAULT if the output shows it, right if the script got to its end without, else UNCLEAR."""
    shown, reached = line_of(case.shows, ran.text), line_of(case.reached, ran.text)
    if shown:
        return f"FAULT    {shown}"
    if ran.ended or not reached:
        last = (ran.text.strip().splitlines() or ["nothing printed"])[-1][:LINE]
        return f"UNCLEAR  {ran.ended or f'exit code {ran.code}'}: {last}"
    return f"right    {reached}"


def line_of(pattern: str, text: str) -> str:
    """The first line in which the pattern is found, cut to what fits."""
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        return ""
    start = text.rfind("\n", 0, found.start()) + 1
    line = text[start:].split("\n", 1)[0].strip()
    beyond = max(0, found.end() - start - LINE)
    return f"…{line[beyond : beyond + LINE]}" if beyond else line[:LINE]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
