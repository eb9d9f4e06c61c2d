"""Options that commands share, the dataset they work on, and their output on a terminal."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from streampack.errors import ConfigError

if TYPE_CHECKING:
    from streampack.dataset import PackedDataset
    from streampack.packing import Packer
    from streampack.sources.base import Source

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
        help='Field or column with loss masks or labels; "": all tokens carry loss.',
        callback=lambda name: [] if name == "" else name,
    ),
]
Conversations = Annotated[
    bool,
    typer.Option(
        "--chat",
        help="The records are conversations, rendered by the template beside tokenizer.json.",
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
    int | None, typer.Option(help="End-of-document id, if the tokenizer declares none.")
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
OnError = Annotated[Literal["raise", "skip"], typer.Option(help="Policy for broken documents.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def object_at(named: str) -> Any:
    """Return the object with a name in a user's file or module, as `target_at`; call functions."""
    target = target_at(named)
    return target() if callable(target) and not isinstance(target, type) else target


def target_at(named: str) -> Any:
    """Return the object with a name in a user's file or module.

    Args:
        named: FILE.py:NAME or MODULE:NAME.

    Raises:
        ConfigError: the file, the module or the name does not exist.
    """
    place, _, name = named.rpartition(":")
    if not place or not name:
        raise ConfigError(
            f'An object is named as FILE.py:NAME or MODULE:NAME, got "{named}".',
            "Pass both parts, separated by a colon.",
            setting="source",
        )
    sys.path.insert(0, str(Path(place).parent if place.endswith(".py") else Path.cwd()))
    try:
        names = (
            runpy.run_path(place, run_name=Path(place).stem)
            if place.endswith(".py")
            else vars(importlib.import_module(place))
        )
    except (FileNotFoundError, ModuleNotFoundError) as error:
        raise ConfigError(
            f"{place} cannot be loaded: {error}.",
            "Name a file that exists, or a module that can be imported from here.",
            setting="source",
        ) from error
    if name not in names:
        raise ConfigError(
            f'{place} has no object "{name}".',
            "Name an object or a function at the top level of that file.",
            setting="source",
        )
    return names[name]


def data_at(source: str) -> Any:
    """Return the object that FILE.py:NAME names; return `source` itself if it names files."""
    if "://" in source or os.path.exists(source):
        return source
    return object_at(source) if re.fullmatch(r"[^:]+:[A-Za-z_]\w*", source) else source


def dataset_of(
    source: str,
    tokenizer: str | None,
    eos_id: int | None,
    seq_len: int | None,
    *,
    chat: bool = False,
    **options: Any,
) -> PackedDataset:
    """Return the `PackedDataset` for a command: the user's own, or one made from a source.

    Args:
        source: a path, or FILE.py:NAME of a source or `PackedDataset`, which gives commands access
            to mixtures and other sources made in Python.
        tokenizer: path of the tokenizer, for a source of text.
        eos_id: id that the tokenizer appends or, without one, that ends a document in a flat file.
        seq_len: tokens per row; None means 2048, or the user's dataset's.
        chat: the records are conversations, as in `sources.Chat`.
        options: further arguments of `sources.open`.

    Raises:
        ConfigError: the source does not exist, or is text without a tokenizer.
    """
    # imported here, because they import torch
    from streampack.dataset import PackedDataset
    from streampack.job.topology import Topology
    from streampack.packing import BestFitDecreasing
    from streampack.sources.resolve import as_source
    from streampack.sources.resolve import open as open_source
    from streampack.tokenization import TokenRules

    options["eos_id"] = None if tokenizer is not None else eos_id
    data = data_at(source)
    path = data is source
    if chat:
        opened: Any = _chat_of(data, options)
    else:
        opened = open_source(source, **options) if path else data
    if isinstance(opened, PackedDataset):
        if tokenizer is not None or any(value is not None for value in options.values()):
            raise ConfigError(
                f"{source} is a PackedDataset, which takes no options for reading documents.",
                "Omit --tokenizer, --eos-id and the names of fields, or name its source.",
                setting="source",
            )
        if seq_len is None:
            return opened
        return packed_by(
            opened, BestFitDecreasing(seq_len=seq_len, overflow=opened.plan.config.source.overflow)
        )
    corpus = opened if path or chat else as_source(opened, **options)
    corpus.prepare()
    if tokenizer is None and not corpus.tokenized:
        raise ConfigError(
            "Documents of text need a tokenizer, got none.",
            "Pass --tokenizer PATH; or --tokens NAME, if a field or column holds token ids.",
            setting="tokenizer",
        )
    rules = TokenRules(eos_id=eos_id) if tokenizer is not None else None
    return PackedDataset(
        corpus, seq_len=seq_len or 2048, tokenizer=tokenizer, token_rules=rules, topology=Topology()
    )


def _chat_of(data: Any, options: Mapping[str, Any]) -> Source:
    """Return the source of conversations for files, or for records from the user's code."""
    from streampack.chats.source import Chat
    from streampack.dataset import PackedDataset
    from streampack.sources.base import Source

    if isinstance(data, (Source, PackedDataset)) or any(v is not None for v in options.values()):
        raise ConfigError(
            "--chat finds conversations in files and records by itself, and takes no other option "
            "for reading.",
            "Omit --text, --tokens, --loss-mask, --dtype and --eos-id, and name files or records; "
            "or omit --chat.",
            setting="chat",
        )
    return Chat(data)


def packed_by(
    dataset: PackedDataset, packer: Packer, batch_size: int | None = None, **others: Any
) -> PackedDataset:
    """Return a dataset of the same documents with another packer or batch size."""
    from streampack.packing.choice import RowChoice
    from streampack.window.config import WindowConfig

    config = dataset.plan.config
    rows = batch_size or config.batch_tokens // config.packer.seq_lens[-1]
    batch_tokens = rows * packer.seq_lens[-1]
    if (packer, batch_tokens) == (config.packer, config.batch_tokens):
        return dataset._alone(**others)
    return dataset._alone(
        packer=packer,
        batch_tokens=batch_tokens,
        window=WindowConfig().resolve(packer, batch_tokens),
        **{"order": None, "choice": RowChoice(), **others},
    )


def say(console: Console, text: str) -> None:
    """Print a paragraph, wrapped on a terminal and in one line elsewhere."""
    console.print(text, soft_wrap=not console.is_terminal, highlight=False, markup=False)
