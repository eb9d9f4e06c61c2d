"""The program's commands, one file each."""

from __future__ import annotations

import typer

from streampack.cli.compare import compare
from streampack.cli.convert import convert
from streampack.cli.demo import demo
from streampack.cli.where import where

__all__ = ["app"]

app = typer.Typer(
    name="streampack",
    help="Streaming sequence packing for language-model training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("compare")(compare)
app.command("convert")(convert)
app.command("demo")(demo)
app.command("where")(where)
