"""Tokens that `lakestore token` makes: shown once, or in a file of the user's alone."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from lakestore.cli.main import cli
from lakestore_server.access import principals
from lakestore_server.access.scram import ScramVerifier


@pytest.mark.parametrize("as_json", [False, True])
def test_a_token_in_a_file_is_its_owner_s_alone_and_printed_nowhere(tmp_path: Path, as_json: bool) -> None:
    file = tmp_path / "tierer.token"
    before = os.umask(0)
    try:
        options = ["--json"] if as_json else []
        ran = CliRunner().invoke(
            cli, ["token", "tierer", "--grant", "read:shop.*", "--token-file", str(file), *options]
        )
    finally:
        os.umask(before)
    assert ran.exception is None, ran.exception
    made = file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert made not in ran.output
    assert principals.TOKEN_PREFIX not in ran.output
    entry = json.loads(ran.output)["principals"] if as_json else yaml.safe_load(ran.output)
    verifier = ScramVerifier.of("tierer", made).text()
    assert entry["tierer"]["tokens"] == [{"sha256": principals.hash_of(made), "scram": verifier}]


def test_a_file_that_is_there_keeps_its_token(tmp_path: Path) -> None:
    file = tmp_path / "kept"
    file.write_text("old")
    for place, said in ((file, "is there already"), (tmp_path / "none" / "file", "cannot be made")):
        ran = CliRunner().invoke(cli, ["token", "someone", "--token-file", str(place)])
        assert said in str(ran.exception)
        assert ran.output == ""
    assert file.read_text() == "old"
