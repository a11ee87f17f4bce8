"""Commands that run for long: serve, tier, demo."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import yaml

from lakestore.errors import Invalid

DEMO_SECONDS = 60


@click.command()
@click.option(
    "-c", "--config", type=click.Path(path_type=Path, dir_okay=False), help="A server.yaml; flags win over it."
)
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="Folder of journal, index and segments.")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="gRPC; 0 picks a free one.  [default: 7340]")
@click.option("--http-port", type=int, help="Catalog, metrics, console; 0 picks a free one.  [default: 7341]")
@click.option("--warehouse", help="URI of the lake's files.  [default: DATA/warehouse]")
def serve(config: Path | None, **flags: Any) -> None:
    """Run the server until it is told to stop."""
    from lakestore.server import main as server

    given = {**_configured(config), **{name: value for name, value in flags.items() if value is not None}}
    known = {field.name for field in fields(server.Settings)}
    for name in given:
        if name not in known:
            raise Invalid(f"{config}: setting {name!r} is not known; known are {', '.join(sorted(known))}")
    if "data" not in given:
        raise Invalid("say where the server keeps its data: --data DIR, or data: in the file given by -c")
    server.serve(server.Settings(**{**given, "data": Path(given["data"])}), click.echo)


def _configured(config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        found = yaml.safe_load(config.read_text())
    except yaml.YAMLError as error:
        raise Invalid(f"{config} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise Invalid(f"{config} must hold 'name: value' lines, such as data: ./lake")
    return {str(name).replace("-", "_"): value for name, value in found.items()}


@click.command()
@click.option("--seconds", default=DEMO_SECONDS, show_default=True, help="How long everything runs together.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Keep logs and data here.")
@click.pass_context
def demo(context: click.Context, seconds: int, folder: Path | None) -> None:
    """Run the whole story once, and check it: exit code 1 if anything differs."""
    from lakestore.demo import run

    context.exit(0 if run(click.echo, seconds=seconds, folder=folder) else 1)


COMMANDS = (serve, demo)
