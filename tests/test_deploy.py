"""The files of examples/deploy hold: commands and options exist, metrics and settings are those of the code."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from compose_spec import PyCompose

from jepsen.system.server import free_port
from lakestore.cli.main import COMMANDS, command
from lakestore.kafka.bridge import spec_file
from lakestore.limits import Limits
from lakestore.model import settings
from lakestore_server.edge import exposure_check
from lakestore_server.operate import metrics
from lakestore_server.settings import Settings
from tests.support import kubernetes_models
from tests.support.waiting import until

DEPLOY = Path(__file__).resolve().parent.parent / "examples" / "deploy"
FILES = sorted(DEPLOY.iterdir())
LABELS = {"job", "instance", "le"}
"""Labels that Prometheus gives, beside those of the metrics."""
FUNCTIONS = {"up"}
COMPOSE = ("compose.yaml", "compose-replicas.yaml")
KUBERNETES = ("kubernetes.yaml", "kubernetes-replicas.yaml")
MODULES = {"v1": "core_v1", "apps/v1": "apps_v1", "batch/v1": "batch_v1", "policy/v1": "policy_v1"}
"""API version of a document to the module with its types."""


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def compose(name: str) -> Any:
    (document,) = documents(name)
    return document


def stateful_set(name: str) -> Any:
    (document,) = (each for each in documents(name) if each["kind"] == "StatefulSet")
    return document["spec"]


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


def test_no_alert_takes_a_checkpoint_for_a_change_of_the_leader() -> None:
    """A leader claims again at each checkpoint, so the epoch of the journal grows."""
    assert not any("lakestore_journal_epoch" in expression for _, expression in expressions())


def test_alerts_cover_each_state_that_a_server_reports_as_broken() -> None:
    asked = " ".join(expression for _, expression in expressions())
    for name in ("damage", "duty_failing", "index_ready", "clock_confirmed", "table_tier_failures", "disk_free_bytes"):
        assert f"lakestore_{name}" in asked


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """(file, words behind `lakestore`) of every command that a file starts."""
    for unit in DEPLOY.glob("*.service"):
        for line in re.findall(r"^Exec\w+=\S*/lakestore (.*)$", unit.read_text(), re.MULTILINE):
            yield unit.name, shlex.split(line)
    for name in COMPOSE:
        for service in compose(name)["services"].values():
            if service.get("image") == "lakestore":
                yield name, service["command"]
    for name in KUBERNETES:
        for document in documents(name):
            for container in document["spec"].get("template", {}).get("spec", {}).get("containers", ()):
                yield name, container["args"]
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


@pytest.mark.parametrize("name", ["server.yaml", "replica.yaml"])
def test_the_settings_file_is_one_with_which_a_server_may_be_reached(name: str) -> None:
    text = (DEPLOY / name).read_text()
    given = settings.read(Settings, file=name, text=text, environment={}, flags={}).settings()
    exposure_check.check_exposure(given)
    assert given.warehouse_uri.startswith("s3://")
    if name == "replica.yaml":
        assert (given.journal.kind, given.token_key) == ("kafka", "/etc/lakestore/token.key")


def test_servers_that_share_a_journal_differ_by_address_and_folder_alone() -> None:
    """They need one topic and one warehouse, and each names itself as the others and clients reach it."""
    services = {
        name: each for name, each in compose(COMPOSE[1])["services"].items() if "serve" in each.get("command", ())
    }
    assert [options(each["command"])["--advertise"] for each in services.values()] == [f"{n}:7340" for n in services]
    assert len({tuple(sorted(common(each["command"]).items())) for each in services.values()}) == 1
    assert [each["volumes"] for each in services.values()] == [[f"{name}:/data"] for name in services]
    found = stateful_set(KUBERNETES[1])
    (container,) = found["template"]["spec"]["containers"]
    names = {each["metadata"]["name"]: each for each in documents(KUBERNETES[1]) if each["kind"] == "Service"}
    headless = names[found["serviceName"]]["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    told = options(container["args"])["--advertise"]
    assert told == f"$(POD_NAME).{found['serviceName']}.$(POD_NAMESPACE).svc:7340"
    assert {"POD_NAME", "POD_NAMESPACE"} <= {each["name"] for each in container["env"]}
    (job,) = (each for each in documents(KUBERNETES[1]) if each["kind"] == "Job")
    (creating,) = job["spec"]["template"]["spec"]["containers"]
    assert options(creating["args"])["--journal"] == options(container["args"])["--journal"]
    creating_here = compose(COMPOSE[1])["services"]["journal"]["command"]
    assert {options(creating_here)["--journal"]} == {
        options(each["command"])["--journal"] for each in services.values()
    }


def test_every_server_that_serves_is_ready_so_that_an_update_goes_on() -> None:
    """A follower never is by `?role=leader`."""
    (container,) = stateful_set(KUBERNETES[1])["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"


def options(words: list[str]) -> dict[str, str]:
    """The options of a command that have a value."""
    return {word: value for word, value in pairwise(words) if word.startswith("--")}


def common(words: list[str]) -> dict[str, str]:
    """The options that servers of one journal have in common."""
    return {word: value for word, value in options(words).items() if word != "--advertise"}


def test_stops_wait_longer_than_a_server_drains() -> None:
    drains = Settings(Path("x")).drain_seconds
    unit = (DEPLOY / "lakestore.service").read_text()
    assert int(re.findall(r"TimeoutStopSec=(\d+)", unit)[0]) > drains
    services = [each for name in COMPOSE for each in compose(name)["services"].values() if each.get("ulimits")]
    assert len(services) == 4
    assert all(int(each["stop_grace_period"].rstrip("s")) > drains for each in services)
    servers = [stateful_set(name) for name in KUBERNETES]
    assert all(each["template"]["spec"]["terminationGracePeriodSeconds"] > drains for each in servers)
    assert [each["replicas"] for each in servers] == [1, 3]


def test_the_bridge_of_the_compose_file_is_one_that_a_bridge_takes() -> None:
    assert spec_file.read(DEPLOY / "bridge.yaml").name == "pg"


def test_files_that_are_mounted_or_copied_are_there() -> None:
    for document in map(compose, COMPOSE):
        for service in document["services"].values():
            for volume in service.get("volumes", ()):
                place = volume.partition(":")[0]
                assert place in document["volumes"] or (DEPLOY / place).is_file(), place
    (prometheus,) = documents("prometheus.yaml")
    assert all((DEPLOY / name).is_file() for name in prometheus["rule_files"])


@pytest.mark.parametrize("name", COMPOSE)
def test_the_compose_file_is_one(name: str) -> None:
    """By the parser of the specification, which refuses unknown keys and values; `<<` is joined by YAML's."""
    document = compose(name)
    found = PyCompose.from_yaml(yaml.safe_dump({key: part for key, part in document.items() if key[:2] != "x-"}))
    assert sorted(found.service_names()) == sorted(document["services"])
    with pytest.raises(ValueError, match="helthcheck"):
        PyCompose.from_yaml("services: {server: {image: lakestore, helthcheck: {test: x}}}")


@pytest.mark.parametrize("name", KUBERNETES)
def test_the_documents_of_kubernetes_are_some_of_its_models(name: str) -> None:
    for document in documents(name):
        module = MODULES[document["apiVersion"]]
        kubernetes_models.check(document, document["kind"], module, document["kind"])
        template = document["spec"].get("template")
        if not template:
            continue
        if "selector" in document["spec"]:
            assert document["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        named = {volume["name"] for volume in template["spec"].get("volumes", ())}
        named |= {claim["metadata"]["name"] for claim in document["spec"].get("volumeClaimTemplates", ())}
        for container in template["spec"]["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", ())} == named
    with pytest.raises(AssertionError, match="replcas"):
        kubernetes_models.check({"spec": {"replcas": 1}}, "Deployment", "apps_v1", "Deployment")


INSTRUCTIONS = {
    "FROM",
    "ARG",
    "RUN",
    "COPY",
    "USER",
    "WORKDIR",
    "VOLUME",
    "EXPOSE",
    "ENV",
    "ENTRYPOINT",
    "CMD",
    "HEALTHCHECK",
}


def instructions() -> list[tuple[str, str]]:
    """(instruction, the rest) of the container file, continued lines as one."""
    text = re.sub(r"(?m)^#.*\n", "", (DEPLOY / "Containerfile").read_text()).replace("\\\n", " ")
    lines = [line.partition(" ") for line in text.splitlines() if line.strip()]
    return [(name, " ".join(rest.split())) for name, _, rest in lines]


def instruction(name: str) -> str:
    """The rest of the last one of a name."""
    return [rest for each, rest in instructions() if each == name][-1]


def test_the_container_file_reads_as_one() -> None:
    found = instructions()
    names = [name for name, _ in found]
    assert names[0] == "FROM"
    assert set(names) <= INSTRUCTIONS
    assert names.index("USER") > max(number for number, name in enumerate(names) if name in {"RUN", "COPY"})
    for name in ("ENTRYPOINT", "CMD"):
        assert all(isinstance(word, str) for word in json.loads(instruction(name)))
    for name, rest in found:
        if name == "RUN":
            shell = subprocess.run(["sh", "-n", "-c", rest], capture_output=True, text=True, check=False)
            assert shell.returncode == 0, shell.stderr
    assert "latest" not in instruction("FROM")
    for place in instruction("COPY").split()[:-1]:
        assert place.startswith("dist/") or (DEPLOY.parents[1] / place).exists(), place


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_the_container_file_installs_starts_and_is_healthy(tmp_path: Path) -> None:
    """Its lines, in a fresh environment in place of an image; not the base image, nor what `apt-get` brings."""
    root = DEPLOY.parents[1]
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), "."]
    subprocess.run(wheel, cwd=root, check=True)
    shutil.copy(root / "requirements.lock", tmp_path)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    programs = tmp_path / "venv" / "bin"
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path)}
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    for install in instruction("RUN").replace("/tmp/install", str(tmp_path)).split(" && ")[:2]:
        assert install.startswith("pip install")
        subprocess.run(["sh", "-c", install], env=environment, cwd=tmp_path, check=True)

    environment |= dict([instruction("ENV").split("=")])
    http = free_port()
    words = [*json.loads(instruction("ENTRYPOINT"))[2:], *json.loads(instruction("CMD")), "--insecure"]
    words = [word.replace("/data", str(tmp_path / "data")) for word in words]
    words += ["--port", "0", "--http-port", str(http)]
    check = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
    check = [programs / "python", *(word.replace("7341", str(http)) for word in check[1:])]

    def is_healthy() -> bool:
        return not subprocess.run(check, env=environment, stderr=subprocess.DEVNULL, check=False).returncode

    with subprocess.Popen([programs / words[0], *words[1:]], env=environment, cwd=tmp_path) as server:
        try:
            until(lambda: server.poll() is not None or is_healthy(), "the health of the server")
            assert server.poll() is None
        finally:
            server.terminate()
        assert server.wait(60) == 0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_limits_and_settings_that_texts_name_are_some(path: Path) -> None:
    known = {each.name for each in settings.options(Settings)}
    text = path.read_text()
    for name in re.findall(r"limits\.(\w+)", text):
        assert hasattr(Limits(), name), name
    for name in re.findall(r"LAKESTORE_(\w+)", text):
        assert name.lower() in {each.replace(".", "_") for each in known}, name
