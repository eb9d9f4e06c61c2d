"""`streampack ledger`, which prints the totals of a run, and finds documents in its batches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from streampack.cli.options import AsJson
from streampack.cli.replay import alone, one_state
from streampack.errors import ConfigError


def ledger(
    states: Annotated[
        list[Path],
        typer.Argument(metavar="STATE.json...", help="The state of a run, or one of every rank."),
    ],
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="The run's PackedDataset, or a function without arguments that makes it. Without "
            "it the totals that the state has are printed.",
        ),
    ] = None,
    document: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=KEY",
            help="A document: a key of a column, or a place as `locate` prints it. Repeatable.",
        ),
    ] = None,
    summary: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Print the tokens trained by the values of a field."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Steps after the state; default: up to the end."),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Number of ranks of the run; default: the number of states."),
    ] = None,
    lengths: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="The lengths that hosts of the run kept; default: the ones of this host.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print totals and digest of a run, or the steps, ranks and rows that hold documents."""
    state = one_state(states)
    if (dataset is None) != (not document):
        raise ConfigError(
            "--dataset and --document belong together, got one of them.",
            "Name both to find documents, or neither for the totals.",
            setting="dataset",
        )
    if dataset is None or document is None:
        _print_totals(state, summary, as_json=as_json)
        return
    from streampack.accounts.lengths import lengths_folder
    from streampack.ledger.replay import Replayed
    from streampack.ledger.seen import seen, sees_contents

    ranks = len(states) if ranks is None else ranks
    run, replayed = alone(dataset), Replayed(lengths or lengths_folder())
    if sees_contents(run._config):
        typer.echo(
            "Its plans see contents of documents, so the corpus is read from the beginning of the "
            "run on.",
            err=True,
        )
    batches = None if steps is None else steps * ranks
    for each in seen(run, state, _documents(document), batches=batches, replayed=replayed):
        step, rank = divmod(each.batch, ranks)
        if as_json:
            where = {"step": step + 1, "rank": rank, "row": each.row, "delivered": each.delivered}
            print(json.dumps({**where, **asdict(each.piece)}), flush=True)
        else:
            when = "delivered" if each.delivered else "to come"
            print(
                f"step {step + 1}, rank {rank}, row {each.row}: {each.piece} ({when})", flush=True
            )
    if not sees_contents(run._config):
        counts = replayed.counts
        typer.echo(
            f"{counts['lengths']:,} documents were replayed on kept lengths, {counts['corpus']:,} "
            "were read.",
            err=True,
        )


def _print_totals(state: Mapping[str, Any], field: str | None, *, as_json: bool) -> None:
    """Print the ledger that a state has, or its table of one field.

    Raises:
        StateError: the state has no ledger.
        ConfigError: the ledger does not count by the field.
    """
    from streampack.accounts.totals import LEDGER, totals_of

    totals = totals_of(state)
    entry = state["counted"][LEDGER]
    tables = totals["fields"]
    if field is not None and field not in tables:
        raise ConfigError(
            f'The ledger counts by {", ".join(sorted(tables)) or "no field"}, not by "{field}".',
            f'A run counts by it with PackedDataset(ledger=["{field}"]).',
            setting="summary",
        )
    until = {"until": entry["until"], "next_batch": state["next_batch"], "gaps": entry["gaps"]}
    if as_json:
        print(json.dumps({**totals, **until, "rank": entry["rank"]}))
        return
    if field is None:
        counts = ("batches", "tokens", "documents", "loss_tokens")
        print(", ".join(f"{totals[name]:,} {name.replace('_', ' ')}" for name in counts))
        print(f"digest {totals['digest']}")
    else:
        every = ["all", *(totals[name] for name in ("tokens", "documents", "loss_tokens"))]
        by_tokens = sorted(tables[field].items(), key=lambda item: (-item[1][0], item[0]))
        left = [
            total - sum(n) for total, *n in zip(every[1:], *tables[field].values(), strict=True)
        ]
        if any(left):  # by batches before a resume added the field
            by_tokens.append(("(not counted by it)", left))
        rows = [[field, "tokens", "documents", "loss tokens", "of the tokens"]]
        for name, *numbers in [*([name, *each] for name, each in by_tokens), every]:
            share = numbers[0] / max(totals["tokens"], 1)
            rows.append([str(name), *(f"{number:,}" for number in numbers), f"{share:.2%}"])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for name, *numbers_ in rows:
            print("  ".join([name.ljust(widths[0]), *map(str.rjust, numbers_, widths[1:])]))
    from streampack.accounts.caps import met_tokens

    for value, (most, met) in met_tokens(state).get(field or "", {}).items():
        print(f"{value}: at most {most:,} tokens; lanes have met {met:,}")
    rank, ranks = entry["rank"]
    print(f"up to batch {entry['until']:,}; the state is at batch {state['next_batch']:,}")
    for first, end in entry["gaps"]:
        print(f"without batches {first:,} to {end - 1:,}, which no ledger counted")
    if ranks > 1:
        print(f"of rank {rank} of {ranks}; name the states of all ranks for the whole run")


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
