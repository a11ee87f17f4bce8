"""An outside catalog: its secrets come from variables and files, no text repeats them, and it gets these updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakestore.errors import Invalid, Unavailable
from lakestore.model import settings as config
from lakestore_server.catalog import metadata_updates
from lakestore_server.catalog.outside_catalog import OutsideCatalog, OutsideSettings, resolved
from lakestore_server.catalog.outside_tables import OutsideCatalogs, requirements, updates_between
from lakestore_server.settings import Settings
from tests.support import catalogs
from tests.support.catalogs import own_table, set_ref, snapshot, tier
from tests.support.world.clock import HandClock


def settings_of(kind: str = "rest", uri: str = "http://127.0.0.1:9", **options: str) -> OutsideSettings:
    return OutsideSettings("prod", kind, uri, {name.replace("_", "-"): value for name, value in options.items()})


def test_variables_and_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_SECRET", "s3cret")
    (tmp_path / "a token").write_text("t0ken\n")
    made = resolved(settings_of(credential="me:${CATALOG_SECRET}", token=f"file:{tmp_path / 'a token'}"))
    assert made == {"uri": "http://127.0.0.1:9", "credential": "me:s3cret", "token": "t0ken"}


@pytest.mark.parametrize(
    ("about", "sentence"),
    [
        (settings_of(credential="${NOT_THERE}"), "catalog prod: credential names the variable NOT_THERE"),
        (settings_of(token="file:/not/there"), "catalog prod: token names the file /not/there"),
        (settings_of(uri=""), "catalog prod of kind rest needs a uri"),
        (settings_of(kind="sql", uri=""), "catalog prod of kind sql needs a uri"),
    ],
)
def test_what_is_missing_is_said(about: OutsideSettings, sentence: str) -> None:
    with pytest.raises(Invalid, match=sentence):
        resolved(about)


def test_a_database_gets_the_driver_that_is_installed_and_bounds_on_waiting() -> None:
    made = resolved(settings_of("sql", "postgresql://u:p@h/d?connect_timeout=3"))
    assert made["uri"] == "postgresql+psycopg://u:p@h/d?connect_timeout=3&tcp_user_timeout=20000"
    assert resolved(settings_of("sql", "sqlite:///x.db"))["uri"] == "sqlite:///x.db"


@pytest.mark.parametrize(
    "about",
    [
        settings_of(uri="http://user:s3cretword@127.0.0.1:9", header_x="s3cretword"),
        settings_of("sql", "nosuchdatabase://user:s3cretword@127.0.0.1:9/d"),
        settings_of("sql", "postgresql://user:s3cretword@127.0.0.1:9/d"),
    ],
)
def test_a_catalog_that_is_away_is_left_alone(about: OutsideSettings) -> None:
    clock = HandClock()
    catalog = OutsideCatalog(about, clock)
    with pytest.raises(Unavailable, match="catalog prod does not answer") as away:
        catalog.load("db", "own")
    assert "s3cretword" not in str(away.value)
    with pytest.raises(Unavailable, match="asked again in"):
        catalog.load("db", "own")
    clock.advance(2)
    with pytest.raises(Unavailable) as again:
        catalog.register("db", "own", "file:///x")
    assert "asked again" not in str(again.value)
    assert again.value.applied == "unknown"
    assert "s3cretword" not in repr(about)


def test_no_error_says_a_secret() -> None:
    catalog = OutsideCatalog(settings_of(uri="http://me:pa55word@127.0.0.1:9", token="t0ken-of-mine"), HandClock())
    said = "http://me:pa55word@127.0.0.1:9 and http://me:other@h refuse t0ken-of-mine"
    for error in (ValueError(said), OSError(said)):
        text = str(catalog._explained(error, "db.own", changes=False))
        assert "http://me:********@127.0.0.1:9 and http://me:********@h refuse ********" in text


def test_address_and_options_are_secrets_of_the_settings() -> None:
    hidden = {option.name for option in config.options(Settings) if option.secret}
    assert {"catalog.uri", "catalog.options"} <= hidden


def test_a_table_of_version_three_needs_a_rest_catalog() -> None:
    rest, sql = (OutsideCatalogs([settings_of(kind)], HandClock(), default="prod") for kind in ("rest", "sql"))
    assert rest.placed(own_table(format_version=3)).lake.catalog == "prod"
    assert sql.placed(own_table()).lake.catalog == "prod"
    assert sql.placed(own_table(format_version=3, catalog="own")).lake.catalog == "own"
    with pytest.raises(Invalid, match="no table of format version 3"):
        sql.placed(own_table(format_version=3))


def test_the_updates_between_two_documents_turn_one_into_the_other(tmp_path: Path) -> None:
    world = catalogs.world(tmp_path)
    world.create_own()
    old = world.load("own")
    steps: list[list[Any]] = [
        [*tier(1, None, [0, 0], [1, 1]), snapshot(2, 1, 2), set_ref("side", 2)],
        [{"action": "set-properties", "updates": {"a": "1"}}, set_ref("side", 1)],
        [{"action": "remove-properties", "removals": ["a"]}, {"action": "remove-snapshot-ref", "ref-name": "side"}],
        [{"action": "remove-snapshots", "snapshot-ids": [2]}],
    ]
    for number, step in enumerate(steps):
        new = metadata_updates.updated(old, step, now_ms=old["last-updated-ms"] + 1, base_location="x")
        sent = updates_between(old, new)
        made = metadata_updates.updated(old, sent, now_ms=old["last-updated-ms"] + 1, base_location="x")
        for key in ("schemas", "current-schema-id", "properties", "snapshots", "refs", "current-snapshot-id"):
            assert made[key] == new[key], (number, key)
        asked = {each.get("ref") for each in requirements(old, new)}
        moved = number > 0 and old["refs"].get("side") != new["refs"].get("side")
        assert {"main", *({"side"} if moved else ())} <= asked
        assert number > 0 or "side" not in asked, "PyIceberg's catalogs refuse that for a table without snapshots"
        old = new
