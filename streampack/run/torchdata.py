"""From the state of a torchdata `StatefulDataLoader` to ours, for elastic resume.

torchdata keeps a state of each worker's iterator, as of the last batch of it that the loop has
taken, and goes on with as many workers. `extract_state` puts them together into the state of the
rank, which `merge_states`, `PackedDataset` and `PackedLoader` take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streampack.errors import StateError
from streampack.job.topology import Topology
from streampack.run.state import RunState, check_state
from streampack.run.worker_share import damaged_loader, run_state


def extract_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state of this rank, from that of its `StatefulDataLoader` over a `PackedDataset`.

    Args:
        state: what ``StatefulDataLoader.state_dict()`` returned.

    Returns:
        What a `PackedLoader` whose loop had taken the same batches would have returned.

    Raises:
        StateError: it is of another dataset, damaged, or older than what the loop has taken.
    """
    missing = state.get("_steps_since_snapshot", 0)
    if missing:
        raise StateError(
            f"The state is as of {missing} batches before the last one that the loop took.",
            "With snapshot_every_n_steps above 1, StatefulDataLoader saves older states and makes "
            "those batches again itself; going on elsewhere would give them twice.",
            "Use snapshot_every_n_steps=1, or save after a step that it divides.",
        )
    workers = [_iterator_state(worker) for worker in _workers(state)]
    first = workers[0]
    workers = workers[: first["workers"]]  # the others had nothing to do
    topology = Topology(first["rank"], first["world_size"])
    parts = [run_state(worker) for worker in workers]
    for part in parts:
        check_state(part)
    following = _next_batch(workers, parts, topology)
    if any(part["fingerprint"] != parts[0]["fingerprint"] for part in parts):
        raise damaged_loader("Its workers are of different runs.")
    lanes = {int(lane): own for part in parts for lane, own in part["lanes"].items()}
    run = RunState(
        parts[0]["fingerprint"], topology, following, lanes, parts[0]["stepped_over"]
    ).as_dict()
    check_state(run)
    return run


def _workers(state: Mapping[str, Any]) -> list[Any]:
    """States of the workers, or of the one that the loop's process is."""
    try:
        if "_snapshot" not in state:
            return [state]
        saved = state["_snapshot"]["_worker_snapshots"]
        return [saved[f"worker_{number}"] for number in range(len(saved))] or [None]
    except (KeyError, TypeError) as error:
        raise damaged_loader("It has no states of workers.") from error


def _iterator_state(worker: Any) -> dict[str, Any]:
    try:
        found = worker["fetcher_state"]["dataset_iter_state"]
        numbers = [found[name] for name in ("rank", "world_size", "worker", "workers")]
    except (KeyError, TypeError) as error:
        raise damaged_loader("Its dataset is no PackedDataset.") from error
    if not all(isinstance(number, int) for number in numbers):
        raise damaged_loader(f"A worker's place is {numbers!r:.80}.")
    state: dict[str, Any] = found
    return state


def _next_batch(
    workers: list[dict[str, Any]], parts: list[dict[str, Any]], topology: Topology
) -> int:
    """Number of the first batch that the ranks have not taken, which the workers agree on."""
    ranks, count = topology.world_size, len(workers)
    places = [(w["rank"], w["world_size"], w["worker"], w["workers"]) for w in workers]
    if places != [(topology.rank, ranks, number, count) for number in range(count)]:
        raise damaged_loader(f"Its workers are, by rank and number, {places!r:.200}.")
    # A worker's own place in the run is that of a rank among ranks x workers.
    coming = [part["next_batch"] + i * ranks for i, part in enumerate(parts)]
    going = [at for at, worker in zip(coming, workers, strict=True) if worker["ended"] is not True]
    if not going:  # all lanes are dry; the last rotation counts
        return int(max(part["next_batch"] for part in parts))
    if max(going) - min(going) >= ranks * count:
        raise StateError(
            f"The next batches of the workers are {coming} of the run.",
            "A loop that takes them in turn is not there.",
            "Use in_order=True, and pass what `StatefulDataLoader.state_dict()` returned.",
        )
    return int(min(going))
