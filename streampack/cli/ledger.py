"""`streampack ledger`, which finds documents in the batches of a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from streampack.cli.options import AsJson
from streampack.cli.replay import alone, one_state


def ledger(
    states: Annotated[
        list[Path],
        typer.Argument(metavar="STATE.json...", help="The state of a run, or one of every rank."),
    ],
    dataset: Annotated[
        str,
        typer.Option(
            metavar="FILE.py:NAME",
            help="The run's PackedDataset, or a function without arguments that makes it.",
        ),
    ],
    document: Annotated[
        list[str],
        typer.Option(
            metavar="COLUMN=KEY",
            help="A document: a key of a column, or a place as `locate` prints it. Repeatable.",
        ),
    ],
    steps: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Steps after the state; default: up to the end."),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Number of ranks of the run; default: the number of states."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the steps, ranks and rows in which documents were, or will be."""
    from streampack.ledger.seen import seen

    state = one_state(states)
    ranks = len(states) if ranks is None else ranks
    typer.echo("The corpus is read from the beginning of the run on.", err=True)
    batches = None if steps is None else steps * ranks
    for each in seen(alone(dataset), state, _documents(document), batches=batches):
        step, rank = divmod(each.batch, ranks)
        if as_json:
            where = {"step": step + 1, "rank": rank, "row": each.row, "delivered": each.delivered}
            print(json.dumps({**where, **asdict(each.piece)}), flush=True)
        else:
            when = "delivered" if each.delivered else "to come"
            print(
                f"step {step + 1}, rank {rank}, row {each.row}: {each.piece} ({when})", flush=True
            )


def _documents(named: list[str]) -> list[Any]:
    """Return the documents in the form of the argument `exclude`."""
    documents: list[Any] = []
    keys: dict[str, list[str]] = {}
    for each in named:
        column, equals, key = each.partition("=")
        if equals and ", index " not in each:
            keys.setdefault(column, []).append(key)
        else:
            documents.append(each)
    return [*documents, keys] if keys else documents
