"""`streampack check`, which looks for faults in the batches of any loader."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from streampack.cli.options import AsJson, target_at

if TYPE_CHECKING:
    from streampack import CheckReport


def check(
    loader: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME",
            help="A loader, or a function that returns one, which may have the arguments "
            "`documents`, `rank` and `world_size`; also MODULE:NAME.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="A model, or a function that returns one."),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="Folder or name of a tokenizer of transformers.")
    ] = None,
    eos_id: Annotated[int | None, typer.Option(help="Token at the end of documents.")] = None,
    bos_id: Annotated[int | None, typer.Option(help="Token at their beginning.")] = None,
    pad_id: Annotated[int | None, typer.Option(help="Token of padding.")] = None,
    documents: Annotated[int, typer.Option(min=1, help="Number of marked documents.")] = 400,
    answers: Annotated[
        bool, typer.Option("--answers", help="Only the last part of marked documents has loss.")
    ] = False,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks to make loaders for.")] = 1,
    batches: Annotated[int, typer.Option(min=1, help="Most batches to read of a rank.")] = 1000,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Kind of fault to leave out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look for faults in a loader's batches: boundaries, labels, padding, epochs, ranks, resume.

    The exit status is 1 if there is a fault.
    """
    import streampack
    from streampack.checking.loaders import Loaders

    target = target_at(loader)
    named: Any = None
    if tokenizer is not None:
        from transformers import AutoTokenizer

        named = AutoTokenizer.from_pretrained(tokenizer)  # type: ignore[no-untyped-call]
    special = [eos_id, bos_id, *(getattr(named, "all_special_ids", None) or [])]
    reserved = [token for token in special if token is not None]
    marked = streampack.marked_documents(
        documents,
        answers=answers,
        pad_id=getattr(named, "pad_token_id", None) or 0 if pad_id is None else pad_id,
        reserved=reserved,
        vocab_size=None if named is None else len(named),
    )
    run = target_at(model) if model is not None else None
    report = streampack.check(
        target,
        documents=marked if Loaders(target, None, 1).takes_documents else None,
        model=run() if callable(run) and not hasattr(run, "forward") else run,
        tokenizer=named,
        eos_id=eos_id,
        bos_id=bos_id,
        pad_id=pad_id,
        ranks=ranks,
        max_batches=batches,
        ignore=ignore or (),
    )
    if as_json:
        print(json.dumps(report.as_dict()))
    else:
        _print_page(report)
    raise typer.Exit(0 if report else 1)


def _print_page(report: CheckReport) -> None:
    console = Console(soft_wrap=False)
    figures = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for name, value in report.figures():
        figures.add_row(name, value)
    console.print(figures)
    if report:
        console.print("\n[green]No fault.[/green]")
    for fault in report.faults:
        console.print(f"\n[bold red]{fault.kind}[/bold red]: {fault.first}")
        for line in (fault.consequence, fault.remedy):
            console.print(Padding(line, (0, 0, 0, 2)))
