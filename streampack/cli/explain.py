"""`streampack explain`: what a run will read, pack, cut, drop and learn."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from streampack.cli.named import dataset_of
from streampack.cli.options import (
    AnyCorpus,
    AsJson,
    EndToken,
    Integers,
    LossMask,
    TextField,
    TextTokenizer,
    TokensField,
)


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
