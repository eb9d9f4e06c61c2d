"""`streampack convert`, which rewrites text or token files as shards that load fast."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from streampack.cli.options import (
    AddedEnd,
    Compression,
    LossMask,
    OnError,
    ShardFolder,
    ShardIntegers,
    ShardSize,
    ShardTokenizer,
    TextField,
    TokensField,
    say,
)
from streampack.conversion.convert import Conversion, convert_source
from streampack.conversion.convert import Progress as Figures
from streampack.conversion.shards import Destination
from streampack.errors import ConfigError
from streampack.sources.base import Source
from streampack.sources.formats import DOCUMENT_FORMATS
from streampack.sources.paths import open_files
from streampack.sources.reading import ReadOptions
from streampack.sources.sharded import ShardedSource
from streampack.tokenization import Tokenizer, load_tokenizer


def convert(
    source: Annotated[
        str,
        typer.Argument(help="JSON lines, Parquet or .txt files: a file, folder, glob or URL."),
    ],
    destination: ShardFolder,
    text: TextField = None,
    tokens: TokensField = None,
    loss_mask: LossMask = None,
    tokenizer: ShardTokenizer = None,
    eos_id: AddedEnd = None,
    shard_size: ShardSize = "64MiB",
    compression: Compression = None,
    dtype: ShardIntegers = None,
    on_error: OnError = "raise",
) -> None:
    """Rewrite a corpus as Parquet shards, tokenized or not; loss masks stay with their ids.

    If it is stopped, repeat the command to continue after the last finished shard; the result has
    the same bytes.
    """
    opened = open_files(
        source,
        text=text,
        tokens=tokens,
        loss_mask=loss_mask,
        reading=ReadOptions(open_shards=1),
        formats=DOCUMENT_FORMATS,
    )
    conversion = Conversion(
        source=opened,
        destination=Destination(destination),
        tokenizer=named_tokenizer(tokenizer, eos_id),
        shard_bytes=parse_bytes(shard_size),
        compression=compression,
        dtype=dtype,
        on_error=on_error,
    )
    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as bar:
        task = bar.add_task("reading", total=_documents(opened))
        figures = convert_source(
            conversion,
            lambda now: bar.update(
                task, completed=now.documents + now.skipped, description=_words(now)
            ),
        )
        bar.update(task, total=1, completed=1)
    say(console, f"{_words(figures)} in {destination}")


def named_tokenizer(tokenizer: str | None, eos_id: int | None) -> Tokenizer | None:
    """Return the tokenizer of shards, or None.

    Raises:
        ConfigError: `eos_id` is given without a tokenizer.
    """
    if tokenizer is not None:
        return load_tokenizer(tokenizer, eos_id=eos_id)
    if eos_id is not None:
        raise ConfigError(
            f"--eos-id needs --tokenizer, got --eos-id {eos_id} alone.",
            "Omit --eos-id, or pass --tokenizer.",
            setting="eos_id",
        )
    return None


def _documents(source: Source) -> int | None:
    """Return the number of documents if the source's listing contains it, else None."""
    if isinstance(source.inner, ShardedSource):
        documents = source.inner.manifest.details.get("documents")
        return None if documents is None else int(documents.clip(0).sum())
    return None


def _words(figures: Figures) -> str:
    parts = [f"{figures.documents:,} documents"]
    if figures.tokens:
        parts.append(f"{figures.tokens:,} tokens")
    parts.append(f"{figures.shards} shards")
    if figures.skipped:
        parts.append(f"broken documents or shards skipped: {figures.skipped:,}")
    return ", ".join(parts)


def parse_bytes(size: str) -> int:
    """Parse a size such as "67108864", "64MiB" or "64 MB" into bytes.

    Raises:
        ConfigError: the text is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmg])(i?)b?|b)?\s*", size, re.IGNORECASE)
    if match is None:
        raise ConfigError(
            f'The shard size must be a number of bytes, with or without a unit, got "{size}".',
            "Write bytes, or a number with KiB, MiB, GiB, KB, MB or GB.",
            setting="shard_bytes",
        )
    number, unit, binary = match.groups()
    power = "kmg".index(unit.lower()) + 1 if unit else 0
    return int(float(number) * (1024 if binary else 1000) ** power)
