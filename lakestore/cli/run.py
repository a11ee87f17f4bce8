"""Commands that run for long: serve, tier, demo."""

from __future__ import annotations

from pathlib import Path

import click

DEMO_SECONDS = 60


@click.command()
@click.option("--seconds", default=DEMO_SECONDS, show_default=True, help="How long everything runs together.")
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Keep logs and data here.")
@click.pass_context
def demo(context: click.Context, seconds: int, folder: Path | None) -> None:
    """Run the whole story once, and check it: exit code 1 if anything differs."""
    from lakestore.demo import run

    context.exit(0 if run(click.echo, seconds=seconds, folder=folder) else 1)


COMMANDS = (demo,)
