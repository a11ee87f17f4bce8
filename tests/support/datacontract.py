"""The tools of others for contracts, in an environment of their own: the JSON schema of ODCS, and datacontract-cli.

The environment has other releases of DuckDB and PyIceberg than ours. It is made once, at the first test that needs it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

VERSION, STANDARD = "1.2.8", "3.2.0"
_SCHEMA_FAULTS = """
import json, sys
from importlib.resources import files
from jsonschema import Draft201909Validator
schema = json.loads(files("open_data_contract_standard").joinpath("schema.json").read_text())
judge = Draft201909Validator(schema)
for line in sys.stdin:
    print(json.dumps(next((error.message for error in judge.iter_errors(json.loads(line))), "")))
"""


def home() -> Path:
    """The folder of the environment."""
    folder = Path(sys.prefix) / "datacontract" / VERSION
    if (folder / ".ready").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "-q", "--disable-pip-version-check"]
    packages = [f"datacontract-cli[iceberg]=={VERSION}", f"open-data-contract-standard=={STANDARD}"]
    subprocess.run([*pip, *packages], check=True)
    (folder / ".ready").touch()
    return folder


def schema_faults(documents: Sequence[object]) -> list[str]:
    """The first fault of each document by the JSON schema of the standard; empty for a valid one."""
    lines = "".join(json.dumps(document) + "\n" for document in documents)
    done = subprocess.run(
        [str(home() / "bin" / "python"), "-c", _SCHEMA_FAULTS], input=lines, text=True, capture_output=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def datacontract(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command `datacontract`."""
    return subprocess.run(
        [str(home() / "bin" / "datacontract"), *arguments],
        text=True,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": "", "COLUMNS": "200", **variables},
    )
