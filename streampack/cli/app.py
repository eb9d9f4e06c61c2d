"""The program's commands, one file each."""

from __future__ import annotations

from typing import Annotated

import typer

from streampack import __version__
from streampack.cli.bench import bench
from streampack.cli.convert import convert
from streampack.cli.demo import demo, in_checkout
from streampack.cli.explain import explain
from streampack.cli.order import order
from streampack.cli.replay import replay
from streampack.cli.warm import warm

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}  # arguments of the demo

app = typer.Typer(
    name="streampack",
    help="Streaming sequence packing for language-model training.",
    rich_markup_mode="markdown",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"streampack {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


for command in (bench, convert, explain, order, replay, warm):
    app.command()(command)
app.command(add_help_option=False, context_settings=_PASSED_ON, hidden=not in_checkout())(demo)
