"""What is installed: a wheel of the sources has every package, its data files and the generated wire code."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = {
    "lakestore": ".",
    "lakestore_server": "server",
    "lakestore_tiering": "tiering",
    "lakestore_spark": "spark_reader",
}
"""Package to the folder that holds it."""
GENERATED = {f"lakestore/v1/lakestore_pb2{rest}" for rest in (".py", ".pyi", "_grpc.py")}


def test_a_wheel_of_a_fresh_checkout_has_everything(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    nothing_made = shutil.ignore_patterns("__pycache__", "*_pb2*", "*.egg-info")
    for folder in ("proto", *(f"{place}/{package}" for package, place in SOURCES.items())):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=nothing_made)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), "."]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {
        path.relative_to(ROOT / place).as_posix()
        for package, place in SOURCES.items()
        for path in (ROOT / place / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "_pb2" not in path.name
    }
    assert packed == files | GENERATED
