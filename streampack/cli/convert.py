"""`streampack convert`, which rewrites text or token files as shards that load fast."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
from streampack.conversion.convert import Progress as Figures
from streampack.conversion.convert import convert_source
from streampack.conversion.settings import Conversion
from streampack.conversion.shards import Destination
from streampack.errors import ConfigError
from streampack.sources.formats import DOCUMENT_FORMATS
from streampack.sources.paths import open_files
from streampack.sources.reading import ReadOptions
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
    part_size: Annotated[
        str, typer.Option(help="Source files in a part, the unit of work of a process.")
    ] = "256MiB",
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Processes; default: one per core."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            envvar="RAY_ADDRESS",
            metavar="ADDRESS",
            help="Ray cluster with machines that see the same files; default: this machine.",
        ),
    ] = None,
) -> None:
    """Rewrite a corpus as Parquet shards, tokenized or not; loss masks stay with their ids.

    If it is stopped, repeat the command to continue after the finished parts; the result has the
    same bytes, with any number of workers.
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
        part_bytes=parse_bytes(part_size, "part_bytes"),
    )
    console = Console(stderr=True)
    with Progress(
        TextColumn("parts"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=conversion.num_parts)
        figures = convert_source(
            conversion,
            address=ray,
            workers=workers,
            report=lambda now: bar.update(task, completed=now.parts, description=_words(now)),
        )
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


def _words(figures: Figures) -> str:
    parts = [f"{figures.documents:,} documents"]
    if figures.tokens:
        parts.append(f"{figures.tokens:,} tokens")
    parts.append(f"{figures.shards} shards")
    if figures.skipped:
        parts.append(f"broken documents or shards skipped: {figures.skipped:,}")
    return ", ".join(parts)


def parse_bytes(size: str, setting: str = "shard_bytes") -> int:
    """Parse a size such as "67108864", "64MiB" or "64 MB" into bytes.

    Args:
        size: the text.
        setting: name of the setting, for the error.

    Raises:
        ConfigError: the text is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([kmg])(i?)b?|b)?\s*", size, re.IGNORECASE)
    if match is None:
        raise ConfigError(
            f'A size must be a number of bytes, with or without a unit, got "{size}".',
            "Write bytes, or a number with KiB, MiB, GiB, KB, MB or GB.",
            setting=setting,
        )
    number, unit, binary = match.groups()
    power = "kmg".index(unit.lower()) + 1 if unit else 0
    return int(float(number) * (1024 if binary else 1000) ** power)
