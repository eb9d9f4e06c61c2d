"""A function on every one of several simulated ranks, and runs that change their number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

from streampack import PackedDataset, PackedLoader, Topology, merge_states
from streampack.testing import SimulatedRanks
from tests.support.runs import identity, in_order

#: For ranks on a busy machine.
WAIT_S = 500.0

Value = TypeVar("Value")


def on_ranks(number: int, function: Callable[[int, Any], Value]) -> list[Value]:
    """``function(rank, member)`` on so many ranks at once."""
    ranks: Any = SimulatedRanks(number, timeout_s=WAIT_S)
    with ThreadPoolExecutor(number) as pool:
        futures = [pool.submit(function, rank, ranks[rank]) for rank in range(number)]
        results = [future.result() for future in futures]
    assert len({ranks[rank].asked for rank in range(number)}) == 1, (
        "a rank asked what others did not"
    )
    return results


def over_legs(
    make: Callable[[Topology], PackedDataset],
    legs: Iterable[tuple[int, int, int]],
    of: Callable[[Any], Any] = identity,
) -> list[Any]:
    """Run in legs of (ranks, workers, steps), each resumed from the one before, until the end.

    Return `of(batch)` for each batch that holds documents.
    """
    state: str | None = None
    found: list[Any] = []
    for ranks, workers, steps in legs:

        def one(rank: int, member: Any, world: int = ranks, procs: int = workers) -> Any:
            loader = PackedLoader(make(Topology(rank, world)), num_workers=procs, ranks=member)
            if state is not None:  # noqa: B023
                loader.load_state_dict(json.loads(state))  # noqa: B023
            batches = [
                of(batch) if batch.num_documents else None
                for batch in islice(loader, steps)  # noqa: B023
            ]
            return batches, loader.state_dict()

        results = on_ranks(ranks, one)
        found += in_order([batches for batches, _ in results])
        if len(results[0][0]) < steps:
            break
        state = json.dumps(merge_states([saved for _, saved in results]))
    return [one for one in found if one is not None]
