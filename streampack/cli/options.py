"""Options that several commands take, as types of their arguments."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

AnyCorpus = Annotated[
    str,
    typer.Argument(
        help="A file, folder, glob or URL of any format that can be read; or FILE.py:NAME, a "
        "source or PackedDataset that your code makes."
    ),
]
TextField = Annotated[
    str | None, typer.Option(metavar="FIELD", help="Field or column that holds text.")
]
TokensField = Annotated[
    str | None, typer.Option(metavar="FIELD", help="Field or column that holds token ids.")
]
LossMask = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD",
        help='Field or column with loss masks or labels; "": all is learnt.',
        callback=lambda name: [] if name == "" else name,
    ),
]
EndToken = Annotated[
    int | None,
    typer.Option(
        help="Token that ends a document: in flat files of tokens, or added by the tokenizer."
    ),
]
Integers = Annotated[
    str | None, typer.Option(metavar="TYPE", help="Integers of raw files of tokens: uint16, ...")
]
TextTokenizer = Annotated[
    str | None, typer.Option(metavar="PATH", help="tokenizer.json, for text.")
]
ShardTokenizer = Annotated[
    str | None, typer.Option(metavar="PATH", help="tokenizer.json, to write token ids.")
]
AddedEnd = Annotated[
    int | None, typer.Option(help="End-of-document id, where the tokenizer names none.")
]
ShardFolder = Annotated[
    str, typer.Argument(metavar="DEST", help="Empty folder or URL for the shards.")
]
ShardSize = Annotated[str, typer.Option(help="Content of a shard.")]
Compression = Annotated[
    str | None, typer.Option(help="zstd, gzip, brotli, snappy or lz4; default: none.")
]
ShardIntegers = Annotated[
    Literal["uint16", "uint32"] | None,
    typer.Option(help="Type of the ids; default: as they come."),
]
OnError = Annotated[Literal["raise", "skip"], typer.Option(help="What broken documents do.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of words.")]
