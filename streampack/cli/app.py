"""The program's commands: one file each, and the short ones here."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from streampack import __version__
from streampack.cli.bench import bench
from streampack.cli.check import check
from streampack.cli.convert import convert
from streampack.cli.drill import drill
from streampack.cli.ledger import ledger
from streampack.cli.options import (
    AnyCorpus,
    AsJson,
    Conversations,
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
    chat: Conversations = False,
    dtype: Integers = None,
    eos_id: EndToken = None,
    documents: Annotated[int, typer.Option(min=1, help="Size of the sample.")] = 20_000,
    as_json: AsJson = False,
) -> None:
    """Report a run's data, its number of steps, and the effect of other settings."""
    dataset = dataset_of(
        source, tokenizer, eos_id, seq_len, text=text, tokens=tokens,
        dtype=dtype, loss_mask=loss_mask, chat=chat,
    )  # fmt: skip
    report = dataset.explain(documents=documents)
    print(json.dumps(report.as_dict()) if as_json else report)


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


for command in (bench, check, convert, drill, explain, ledger, order, replay, warm):
    app.command()(command)
