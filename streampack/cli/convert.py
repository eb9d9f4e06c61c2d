"""`streampack convert`, which rewrites text or token files as shards that load fast."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from streampack.cli.options import (
    Compression,
    Conversations,
    EndToken,
    LossMask,
    OnError,
    ShardFolder,
    ShardIntegers,
    ShardSize,
    ShardTokenizer,
    TextField,
    TokensField,
    data_at,
)
from streampack.errors import ConfigError

if TYPE_CHECKING:
    from streampack.conversion.convert import Progress as Figures


def convert(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC...",
            help="Files of any format: a file, folder, glob or URL; or FILE.py:NAME, a source that "
            "your code makes; several in this order.",
        ),
    ],
    destination: ShardFolder,
    text: TextField = None,
    tokens: TokensField = None,
    loss_mask: LossMask = None,
    chat: Conversations = False,
    keep: Annotated[
        str,
        typer.Option(
            metavar="FIELD,...",
            help="Fields with a text or number per document, kept beside the documents.",
        ),
    ] = "",
    tokenizer: ShardTokenizer = None,
    eos_id: EndToken = None,
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
    # imported here, because they import pyarrow and the kernels
    from streampack.conversion.api import convert as convert_corpus
    from streampack.conversion.api import open_in_order

    named = {"text": text, "tokens": tokens, "loss_mask": loss_mask}
    fields = {name: value for name, value in named.items() if value is not None}
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
        run = _Run()
        task = bar.add_task("", total=None)

        def report(now: Figures) -> None:
            run.update(now)
            bar.update(task, completed=now.parts, total=now.num_parts, description=run.words())

        in_files = {} if eos_id is None or tokenizer is not None else {"eos_id": eos_id}
        read: dict[str, Any] = {"chat": chat, "dtype": dtype, **fields, **in_files}
        figures = convert_corpus(
            [open_in_order(data_at(source), **read) for source in sources],
            destination,
            keep=[name for name in keep.split(",") if name],
            tokenizer=tokenizer,
            eos_id=None if in_files else eos_id,
            part_bytes=parse_bytes(part_size, "part_bytes"),
            shard_bytes=parse_bytes(shard_size),
            compression=compression,
            dtype=dtype,
            on_error=on_error,
            address=ray,
            workers=workers,
            report=report,
        )
    if run.first is not None and run.first.parts == run.first.num_parts:
        console.print(f"{destination} holds this conversion already; nothing was converted.")
    console.print(_table(figures, run))
    of_text = "" if figures.tokens else ', tokenizer="tokenizer.json"'
    print("from streampack import PackedDataset")
    print(f"dataset = PackedDataset({destination!r}, seq_len=2048{of_text})")


@dataclass
class _Run:
    """This run of the command; the parts finished in earlier ones do not count in its rate."""

    began: float = field(default_factory=time.monotonic)
    first: Figures | None = None
    now: Figures | None = None

    def update(self, now: Figures) -> None:
        self.first, self.now = self.first or now, now

    def rate(self) -> tuple[str, float]:
        """Return a unit and its number per second."""
        if self.now is None or self.first is None:
            return "documents", 0.0
        unit = "tokens" if self.now.tokens else "documents"
        done = getattr(self.now, unit) - getattr(self.first, unit)
        return unit, done / max(time.monotonic() - self.began, 1e-9)

    def words(self) -> str:
        unit, rate = self.rate()
        return f"{rate:,.0f} {unit}/s"


def _table(figures: Figures, run: _Run) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(justify="right")
    table.add_column()
    shown = {
        "parts": figures.parts,
        "shards": figures.shards,
        "documents": figures.documents,
        "tokens": figures.tokens,
        "tokens with loss": figures.loss_tokens if figures.loss_tokens < figures.tokens else 0,
        "broken documents or shards skipped": figures.skipped,
    }
    for name, count in shown.items():
        if count or name == "documents":
            table.add_row(f"{count:,}", name)
    unit, rate = run.rate()
    if rate:
        table.add_row(f"{rate:,.0f}", f"{unit} per second")
    return table


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
