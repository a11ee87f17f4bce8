"""The files of examples/deploy hold: commands and options exist, metrics and settings are those of the code."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from lakestore.cli.main import COMMANDS, command
from lakestore.connectors.bridge.config import spec_file
from lakestore.limits import Limits
from lakestore.model import settings
from lakestore_server.edge import exposure_check
from lakestore_server.operate import metrics
from lakestore_server.settings import Settings

DEPLOY = Path(__file__).resolve().parent.parent / "examples" / "deploy"
FILES = sorted(DEPLOY.iterdir())
LABELS = {"job", "instance", "le"}
"""Labels that Prometheus gives, beside those of the metrics."""
FUNCTIONS = {"up"}


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def samples() -> dict[str, set[str]]:
    """Every sample that a server shows, with its labels."""
    found = {}
    for family in metrics.FAMILIES:
        ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.kind, [""])
        for end in ends:
            found[family.name + end] = set(family.labels) | LABELS
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """(place, expression) of every rule and of every panel's line."""
    (rules,) = documents("prometheus-rules.yaml")
    for rule in rules["groups"][0]["rules"]:
        yield rule["alert"], rule["expr"]
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_every_metric_and_label_of_rules_and_dashboard_is_one(place: str, expression: str) -> None:
    known = samples()
    asked = re.findall(r"(lakestore_\w+)(?:\{([^}]*)\})?", expression)
    assert asked or "up{" in expression, place
    for name, selection in asked:
        assert name in known, f"{place}: {name}"
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selection):
            assert label in known[name], f"{place}: {name} has no {label}"
    for labels in re.findall(r"by \(([^)]*)\)", expression):
        of_all = set.union(*(known[name] for name, _ in asked))
        assert {label.strip() for label in labels.split(",")} <= of_all, place


def test_every_alert_says_what_to_do_and_shows_labels_that_its_metrics_have() -> None:
    known, (rules,) = samples(), documents("prometheus-rules.yaml")
    for rule in rules["groups"][0]["rules"]:
        assert set(rule["annotations"]) == {"summary", "do"}, rule["alert"]
        names = re.findall(r"lakestore_\w+", rule["expr"])
        labels = set().union(*(known[name] for name in names)) if names else LABELS
        kept = re.findall(r"by \(([^)]*)\)", rule["expr"])
        labels = {label.strip() for label in kept[-1].split(",")} if kept else labels
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= labels, rule["alert"]


def test_alerts_cover_each_state_that_a_server_reports_as_broken() -> None:
    asked = " ".join(expression for _, expression in expressions())
    for name in ("damage", "duty_failing", "index_ready", "clock_confirmed", "table_tier_failures", "disk_free_bytes"):
        assert f"lakestore_{name}" in asked


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """(file, words behind `lakestore`) of every command that a file starts."""
    for unit in DEPLOY.glob("*.service"):
        for line in re.findall(r"^Exec\w+=\S*/lakestore (.*)$", unit.read_text(), re.MULTILINE):
            yield unit.name, shlex.split(line)
    (compose,) = documents("compose.yaml")
    for service in compose["services"].values():
        if service.get("image") == "lakestore":
            yield "compose.yaml", service["command"]
    for document in documents("kubernetes.yaml"):
        for container in document["spec"].get("template", {}).get("spec", {}).get("containers", ()):
            yield "kubernetes.yaml", container["args"]
    words = re.search(r"^CMD (\[.*\])$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    assert words
    yield "Containerfile", json.loads(words[1])


@pytest.mark.parametrize(("file", "words"), list(command_lines()))
def test_every_command_that_is_started_parses(file: str, words: list[str]) -> None:
    name, *rest = words
    assert name in COMMANDS, file
    found = command(name)
    rest = [re.sub(r"^/etc/lakestore/(bridge|server)\.yaml$", str(DEPLOY / r"\1.yaml"), word) for word in rest]
    with click.Context(found, info_name=name, help_option_names=["-h", "--help"]) as context:
        found.parse_args(context, rest)


def test_the_settings_file_is_one_with_which_a_server_may_be_reached() -> None:
    text = (DEPLOY / "server.yaml").read_text()
    given = settings.read(Settings, file="server.yaml", text=text, environment={}, flags={}).settings()
    exposure_check.check(given)
    assert given.warehouse_uri.startswith("s3://")


def test_stops_wait_longer_than_a_server_drains() -> None:
    drains = Settings(Path("x")).drain_seconds
    unit = (DEPLOY / "lakestore.service").read_text()
    assert int(re.findall(r"TimeoutStopSec=(\d+)", unit)[0]) > drains
    (compose,) = documents("compose.yaml")
    assert int(compose["services"]["server"]["stop_grace_period"].rstrip("s")) > drains
    (server,) = (each for each in documents("kubernetes.yaml") if each["kind"] == "StatefulSet")
    assert server["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > drains
    assert server["spec"]["replicas"] == 1


def test_the_bridge_of_the_compose_file_is_one_that_a_bridge_takes() -> None:
    assert spec_file.read(DEPLOY / "bridge.yaml").name == "pg"


def test_files_that_are_mounted_or_copied_are_there() -> None:
    (compose,) = documents("compose.yaml")
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            place = volume.partition(":")[0]
            assert place in compose["volumes"] or (DEPLOY / place).is_file(), place
    (prometheus,) = documents("prometheus.yaml")
    assert all((DEPLOY / name).is_file() for name in prometheus["rule_files"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_limits_and_settings_that_texts_name_are_some(path: Path) -> None:
    known = {each.name for each in settings.options(Settings)}
    text = path.read_text()
    for name in re.findall(r"limits\.(\w+)", text):
        assert hasattr(Limits(), name), name
    for name in re.findall(r"LAKESTORE_(\w+)", text):
        assert name.lower() in {each.replace(".", "_") for each in known}, name
