"""`streampack replay`, which describes a saved state and prints a later batch as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

import streampack  # imports its names on first use, because torch takes a second
from streampack.arguments import type_in_words
from streampack.cli.options import AsJson, object_at
from streampack.errors import ConfigError, StateError


def one_state(paths: Sequence[Path]) -> dict[str, Any]:
    """Read a state from one file, or merge the states of all ranks from several.

    Raises:
        ConfigError: a file cannot be read.
        StateError: a file has no state, or the states do not belong together.
    """
    from streampack.distributed.merging import (
        merge_states,  # imported here, because it imports torch
    )

    states = [_read(path) for path in paths]
    return states[0] if len(states) == 1 else merge_states(states)


def summary_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Summarise a run's position and settings by name, as values that JSON can hold."""
    fingerprint = state["fingerprint"]
    lanes, following = fingerprint["lanes"], state["next_batch"]
    source = fingerprint["source"]
    members = source["sources"].values() if "sources" in source else [source]
    lane_states = state["lanes"].values()
    waiting = sum(each is None for each in lane_states)
    return {
        "next batch": following,
        "its lane": following % lanes,
        "lanes": f"{len(lane_states)} of {lanes}, {waiting} not begun",
        "sources": ", ".join(str(member["kind"]) for member in members),
        "packer": fingerprint["packer"]["kind"],
        "batch tokens": fingerprint["batch_tokens"],
        "window rows": fingerprint["window"]["rows"],
        "seed": fingerprint["seed"],
        "shuffle": fingerprint["shuffle"],
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}.",
            "Name JSON files with a result of `state_dict()`.",
            path=str(path),
        ) from error
    except (ValueError, RecursionError) as error:
        raise StateError(
            f"{path} is not JSON.",
            "Write it with json.dump(loader.state_dict(), file).",
            path=str(path),
        ) from error
    # A checkpoint, such as {"data": loader.state_dict()}.
    if isinstance(state, dict) and "lanes" not in state:
        inside = [held for held in state.values() if isinstance(held, dict) and "lanes" in held]
        state = inside[0] if len(inside) == 1 else state
    from streampack.run.state import check_state

    try:
        check_state(state)
    except StateError as error:
        raise StateError(f"{path}: {error.fact}", error.remedy, path=str(path)) from error
    return state


def replay(
    states: Annotated[
        list[Path],
        typer.Argument(metavar="STATE.json...", help="The state of a run, or one of every rank."),
    ],
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="The run's PackedDataset, or a function without arguments that makes it; also "
            "MODULE:NAME. Without it only the state is described.",
        ),
    ] = None,
    step: Annotated[
        int, typer.Option(min=1, metavar="N", help="Steps after the state; 1 is the next one.")
    ] = 1,
    rank: Annotated[
        int, typer.Option(min=0, metavar="R", help="Rank with the batch to print.")
    ] = 0,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Number of ranks of the run; default: the number of states."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="tokenizer.json, if the dataset has none; default: print ids."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a saved state's position, and a rank's batch in a later step as text."""
    state = one_state(states)
    if dataset is None:
        summary = summary_of(state)
        print(json.dumps(summary) if as_json else "\n".join(f"{k}: {summary[k]}" for k in summary))
        return
    ranks = len(states) if ranks is None else ranks
    if rank >= ranks:
        raise ConfigError(
            f"--rank must be below the number of ranks, {ranks}, got {rank}.",
            "Count ranks from 0, and pass --ranks for a merged state of all ranks.",
            setting="rank",
        )
    traced = alone(dataset).with_provenance()
    number, batch = _batch(traced, state, step, rank, ranks)
    lane = number % state["fingerprint"]["lanes"]
    named = tokenizer if tokenizer is not None else traced.plan.config.preparation.find("tokenizer")
    if as_json:
        print(json.dumps({"batch": number, "lane": lane, **_as_dict(traced, batch, named)}))
        return
    head = f"batch {number:,} of the run, from lane {lane}"
    if batch is None:
        print(f"{head}: empty, the lane had ended")
        return
    print(f"{head}: {batch.num_tokens:,} tokens, {batch.num_loss_tokens:,} with loss")
    print(batch.show(named, pieces=traced.locate(batch)))


def _batch(
    dataset: streampack.PackedDataset, state: Mapping[str, Any], step: int, rank: int, ranks: int
) -> tuple[int, streampack.PackedBatch | None]:
    """Return a rank's batch, with its number in the run, in a step after the state.

    Steps without a batch on any rank are left out of a run and do not count.

    Returns:
        The number and the batch, or None for the batch if the lane had ended.
    """
    from streampack.context_parallel.groups import CpGroups
    from streampack.job.topology import Topology

    loader = streampack.PackedLoader(dataset)
    first: int = state["next_batch"]
    try:
        loader.load_state_dict(state)
    except StateError as error:
        if error.setting is None:
            raise
        remedy = "Name a dataset with the settings that it had when the state was saved."
        raise StateError(error.fact, remedy) from error
    lanes: int = state["fingerprint"]["lanes"]
    steps = 0

    groups = CpGroups.of(dataset.plan.config, Topology(rank, ranks))

    def number(batch: streampack.PackedBatch) -> int:
        return batch.step * lanes + batch.lane

    def ranks_own(batch: streampack.PackedBatch) -> int:
        """Return the number of the rank's batch in the step of a given batch."""
        if groups is not None:
            step = groups.step_of(batch)
            return step.step * lanes + step.lane
        return number(batch) - (number(batch) - first) % ranks + rank

    for wanted, batches in groupby(loader, ranks_own):
        steps += 1
        if steps == step:
            wanted_batches = (
                batch for batch in batches if number(batch) == wanted and batch.num_documents
            )
            return wanted, next(wanted_batches, None)
    raise ConfigError(
        f"--step must be at most {steps:,}, the run's steps after the state, got {step:,}.",
        f"Pass --step {steps}, the last one, or less." if steps else "Name an earlier state.",
        setting="step",
    )


def _as_dict(
    dataset: streampack.PackedDataset, batch: streampack.PackedBatch | None, tokenizer: Any
) -> dict[str, Any]:
    """Describe a batch by name: its pieces in row order, each with its origin, ids and text."""
    if batch is None:
        return {"tokens": 0, "loss_tokens": 0, "pieces": []}
    ids, labels, documents = batch.input_ids, batch.labels, batch.document_ids
    pieces = []
    for number, piece in enumerate(dataset.locate(batch)):
        slots = documents == number
        pieces.append(
            {
                "row": int(slots.any(dim=1).nonzero()[0]),
                **asdict(piece),
                "input_ids": ids[slots].tolist(),
                "loss": (labels[slots] != -100).tolist(),
                "text": batch.decode(number, tokenizer),
            }
        )
    return {"tokens": batch.num_tokens, "loss_tokens": batch.num_loss_tokens, "pieces": pieces}


def alone(named: str) -> streampack.PackedDataset:
    """Return the dataset from a user's code, and require that it is for a single rank."""
    dataset = object_at(named)
    if not isinstance(dataset, streampack.PackedDataset):
        raise ConfigError(
            f"{named} must be a PackedDataset, got {type_in_words(dataset)}.",
            "Name a PackedDataset, or a function without arguments that returns one.",
            setting="dataset",
        )
    if dataset.topology.world_size != 1:
        raise ConfigError(
            f"A replay needs a dataset for one rank, got {dataset.topology.world_size} ranks.",
            "Omit topology= when the dataset is made for a replay, and unset RANK and WORLD_SIZE "
            "in the environment.",
            setting="topology",
        )
    return dataset
