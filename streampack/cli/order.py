"""`streampack order`, which rewrites a corpus so that related documents are next to each other."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from streampack.cli.convert import parse_bytes
from streampack.cli.options import (
    AddedEnd,
    AsJson,
    Compression,
    EndToken,
    Integers,
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
from streampack.errors import ConfigError

if TYPE_CHECKING:
    from streampack.corpus_order import Summary


def order(
    source: Annotated[
        str, typer.Argument(help="Files of any format: a file, folder, glob or URL.")
    ],
    destination: ShardFolder,
    text: TextField = None,
    tokens: TokensField = None,
    loss_mask: LossMask = None,
    dtype_in: Integers = None,
    end_token: EndToken = None,
    tokenizer: ShardTokenizer = None,
    eos_id: AddedEnd = None,
    embedder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="bm25, wordllama, sentence-transformers:NAME or package.module:function (texts to "
            "vectors); default: n-grams of tokens.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Order by this field of numbers instead, or by compression_ratio, "
            "lexical_diversity or flesch_reading_ease of the texts.",
        ),
    ] = None,
    pace: Annotated[
        Literal["ascending", "interleaved", "quantiles"],
        typer.Option(help="For --by: small values first; in --groups passes; by quantiles."),
    ] = "ascending",
    groups: Annotated[int, typer.Option(min=1, help="Passes or quantiles, for --pace.")] = 10,
    descending: Annotated[
        bool, typer.Option("--descending", help="For --by: large values first.")
    ] = False,
    k: Annotated[int, typer.Option(min=1, help="Neighbours of each document in the graph.")] = 10,
    duplicate_threshold: Annotated[
        float, typer.Option(help="Cosine above which the later document is dropped; 1 drops none.")
    ] = 0.95,
    max_similarity: Annotated[
        float, typer.Option(help="Highest cosine of two documents in a row; 1 is no limit.")
    ] = 1.0,
    row_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of a row, for --max-similarity.")
    ] = 8192,
    first_tokens: Annotated[int, typer.Option(min=1, help="Tokens that the embedder sees.")] = 512,
    search: Annotated[
        Literal["auto", "exact", "faiss"], typer.Option(help="auto: exact up to 65,536.")
    ] = "auto",
    parts: Annotated[
        int | None,
        typer.Option(min=1, help="Pieces in which the source is read; default: by its size."),
    ] = None,
    shard_size: ShardSize = "64MiB",
    compression: Compression = None,
    dtype: ShardIntegers = None,
    on_error: OnError = "raise",
    work: Annotated[
        str | None,
        typer.Option(
            help="Folder for the stages' results, where DEST is a URL; all workers see it."
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster; default: this machine.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Workers on this machine; default: one per core; 0 uses no Ray."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite a corpus so that related documents are next to each other, or by a field.

    If it is stopped, repeat the command to continue; the result has the same shards.
    Near-duplicates are left out and listed in DEST/_order.
    """
    if by is None and (pace != "ascending" or groups != 10 or descending):
        raise ConfigError(
            "--pace, --groups and --descending require --by.",
            "Name the field with --by, or leave them out.",
            setting="by",
        )
    # imported here, because they import torch
    from streampack.conversion.api import IN_ORDER, tokenizer_of
    from streampack.conversion.shards import Destination
    from streampack.corpus_order import CorpusOrder, run_job
    from streampack.corpus_order.job import STAGES
    from streampack.ordering.by_field import ByField
    from streampack.sources.resolve import open as open_source

    job = CorpusOrder(
        source=open_source(
            source,
            text=text,
            tokens=tokens,
            loss_mask=loss_mask,
            dtype=dtype_in,
            eos_id=end_token,
            reading=IN_ORDER,
        ),
        destination=Destination(destination),
        tokenizer=tokenizer_of(tokenizer, eos_id),
        work=work,
        embedder=embedder,
        k=k,
        duplicate_threshold=duplicate_threshold,
        max_similarity=max_similarity,
        row_tokens=row_tokens,
        first_tokens=first_tokens,
        search=search,
        by=None if by is None else ByField(by, pace=pace, groups=groups, descending=descending),
        parts=parts,
        shard_bytes=parse_bytes(shard_size),
        compression=compression,
        dtype=dtype,
        on_error=on_error,
    )
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as bar:
        shown = {stage: bar.add_task(stage, total=None, start=False) for stage in STAGES}

        def report(stage: str, done: int, total: int) -> None:
            if not bar.tasks[shown[stage]].started:
                bar.start_task(shown[stage])
            bar.update(shown[stage], completed=done, total=total)

        summary = run_job(job, address=address, workers=workers, report=report)
    if as_json:
        print(json.dumps(asdict(summary)))
        return
    for line in _words(summary, destination):
        say(console, line)


def _words(summary: Summary, destination: str) -> list[str]:
    skipped = (
        f"; broken documents or shards skipped: {summary.skipped:,}" if summary.skipped else ""
    )
    above = (
        f"; {summary.above_limit:.1%} of the pairs within rows are above max_similarity"
        if summary.above_limit
        else ""
    )
    counts = (
        f"{summary.documents:,} documents = {summary.written:,} in {summary.shards:,} shards + "
        f"{summary.duplicates:,} near-duplicates{skipped}, in {destination}"
    )
    if summary.quartiles is not None:
        quartiles = ", ".join(f"{value:.4g}" for value in summary.quartiles)
        return [counts, f"Quartiles of the value: {quartiles}."]
    return [
        counts,
        f"Mean cosine: {summary.neighbours:.3f} of documents side by side, "
        f"{summary.within_rows:.3f} within rows, {summary.random_pairs:.3f} in random "
        f"order{above}. {summary.runs:,} runs; "
        f"{summary.without_neighbours:,} documents are like no other, {summary.empty:,} are empty.",
    ]
