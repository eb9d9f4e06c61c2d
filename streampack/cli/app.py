"""The program: its commands, one file each, and the two that are short."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from streampack import __version__
from streampack.cli.bench import bench
from streampack.cli.convert import convert
from streampack.cli.options import (
    AnyCorpus,
    AsJson,
    EndToken,
    Integers,
    LossMask,
    TextField,
    TextTokenizer,
    TokensField,
    dataset_of,
)
from streampack.cli.order import order
from streampack.cli.replay import replay
from streampack.cli.warm import warm
from streampack.errors import ConfigError

_CHECKOUT = Path(__file__).resolve().parents[2]


def in_checkout() -> bool:
    """True if the package lies in a checkout of the repository, which has the demo."""
    return (_CHECKOUT / "demo" / "command.py").is_file()


def demo(context: typer.Context) -> None:
    """Stream a real corpus from a real object store, train, break things, and resume exactly.

    Runs in a checkout of the repository; `streampack demo --help` there lists its options.
    """
    if not in_checkout():
        raise ConfigError(
            "The demo is not part of the installed package.",
            "Clone the repository and run `bash scripts/demo.sh` in the clone.",
        )
    sys.path.insert(0, str(_CHECKOUT))
    from demo.command import app

    app(context.args, prog_name="streampack demo")


def explain(
    source: AnyCorpus,
    seq_len: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens per row; 2048, or as a PackedDataset has."),
    ] = None,
    tokenizer: TextTokenizer = None,
    text: TextField = None,
    tokens: TokensField = None,
    loss_mask: LossMask = None,
    dtype: Integers = None,
    eos_id: EndToken = None,
    documents: Annotated[int, typer.Option(min=1, help="Size of the sample.")] = 20_000,
    as_json: AsJson = False,
) -> None:
    """Say what a run will read, how many steps it takes, and what other choices would change."""
    dataset = dataset_of(
        source, tokenizer, eos_id, seq_len, text=text, tokens=tokens,
        dtype=dtype, loss_mask=loss_mask,
    )  # fmt: skip
    found = dataset.explain(documents=documents)
    print(json.dumps(found.as_dict()) if as_json else found)


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
