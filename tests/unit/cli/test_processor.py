"""The processors on which numpy is told to sort otherwise, before it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakestore.cli import main

CHOICE = "NPY_DISABLE_CPU_FEATURES"
CPUINFO = """processor	: 0
vendor_id	: {vendor}
cpu family	: {family}
model		: 17
model name	: a processor
flags		: fpu avx2 {flags}
power management:

processor	: 1
vendor_id	: AuthenticAMD
cpu family	: 25
flags		: fpu avx2 avx512f
"""


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process that has not imported numpy, and whose environment says nothing about it."""
    monkeypatch.setenv(CHOICE, "")  # so that what the test sets is undone
    monkeypatch.delenv(CHOICE)
    monkeypatch.delitem(sys.modules, "numpy")
    return monkeypatch


def of(folder: Path, vendor: str, family: int, flags: str) -> Path:
    """What such a machine says of its processors."""
    path = folder / "cpuinfo"
    path.write_text(CPUINFO.format(vendor=vendor, family=family, flags=flags))
    return path


@pytest.mark.usefixtures("fresh")
def test_zen_4_sorts_with_avx2(tmp_path: Path) -> None:
    main.spare_slow_sorts(of(tmp_path, "AuthenticAMD", 25, "avx512f avx512bw"))
    assert "AVX512_ICL" in os.environ[CHOICE].split()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("vendor", "family", "flags"),
    [
        ("AuthenticAMD", 25, "sse4a"),
        ("AuthenticAMD", 26, "avx512f"),
        ("GenuineIntel", 6, "avx512f"),
        ("GenuineIntel", 25, "avx512f"),
    ],
    ids=["Zen 3", "Zen 5", "Intel", "another maker's family 25"],
)
def test_others_are_left_alone(tmp_path: Path, vendor: str, family: int, flags: str) -> None:
    main.spare_slow_sorts(of(tmp_path, vendor, family, flags))
    assert CHOICE not in os.environ


@pytest.mark.usefixtures("fresh")
def test_a_machine_that_does_not_say_is_left_alone(tmp_path: Path) -> None:
    main.spare_slow_sorts(tmp_path / "absent")
    (tmp_path / "empty").touch()
    main.spare_slow_sorts(tmp_path / "empty")
    assert CHOICE not in os.environ


def test_what_the_user_chose_stays_and_so_does_a_numpy_that_is_there(tmp_path: Path, fresh: pytest.MonkeyPatch) -> None:
    zen_4 = of(tmp_path, "AuthenticAMD", 25, "avx512f")
    fresh.setenv(CHOICE, "AVX2")
    main.spare_slow_sorts(zen_4)
    assert os.environ[CHOICE] == "AVX2"
    fresh.delenv(CHOICE)
    fresh.setitem(sys.modules, "numpy", sys)
    main.spare_slow_sorts(zen_4)
    assert CHOICE not in os.environ


def test_the_command_chooses_before_numpy_is_imported(tmp_path: Path) -> None:
    program = f"""
import os, sys
from pathlib import Path
from lakestore.cli import main
main.spare_slow_sorts.__defaults__ = (Path({str(of(tmp_path, "AuthenticAMD", 25, "avx512f"))!r}),)
main.run_command = lambda _: print("numpy" in sys.modules, os.environ.get({CHOICE!r}, "")[:4])
main.main([])
"""
    given = {name: text for name, text in os.environ.items() if name != CHOICE}
    done = subprocess.run([sys.executable, "-c", program], env=given, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("False AVX5\n", "")
