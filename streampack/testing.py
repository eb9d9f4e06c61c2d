"""Simulation of data-parallel ranks by threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.errors import RankError
from streampack.job.ending import OtherPlaceError, Ranks


class SimulatedRanks:
    """Data-parallel ranks in threads of one process, for tests and to try other numbers of ranks.

    Batches, ends and states equal those of separate processes. Each rank has its own dataset and
    loader. Leave ``num_workers`` at 0, because processes should not be forked beside threads.

    Args:
        number: number of ranks.
        timeout_s: longest time in seconds that a rank waits for the others.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from streampack import PackedDataset, PackedLoader, Topology
        >>> from streampack.testing import SimulatedRanks
        >>> ranks = SimulatedRanks(2)
        >>> def tokens_of(rank):
        ...     documents = [[7] * 50] * 90
        ...     dataset = PackedDataset(documents, seq_len=64, topology=Topology(rank, 2))
        ...     return sum(batch.num_tokens for batch in PackedLoader(dataset, ranks=ranks[rank]))
        >>> with ThreadPoolExecutor(2) as pool:
        ...     sum(pool.map(tokens_of, range(2)))
        4500
    """

    def __init__(self, number: int, *, timeout_s: float = 60.0) -> None:
        self.number = number
        self.timeout_s = timeout_s
        self._members = [_Member(self) for _ in range(number)]
        self._answers: dict[int, list[Any]] = {}
        self._taken: dict[int, int] = {}
        self._changed = threading.Condition()

    def __getitem__(self, rank: int) -> Ranks:
        """Return the ``ranks=`` argument for the loader of a rank."""
        return self._members[rank]

    def _asked(
        self, question: int, value: Any, together: Callable[[list[Any]], Any]
    ) -> Callable[[], Any]:
        """Submit a rank's value; return a function that waits for and combines all values."""
        with self._changed:
            values = self._answers.setdefault(question, [])
            values.append(value)
            self._changed.notify_all()

        def wait() -> Any:
            with self._changed:
                if not self._changed.wait_for(lambda: len(values) == self.number, self.timeout_s):
                    raise RankError(
                        f"All {self.number} simulated ranks must reach a step, but {len(values)} "
                        f"did within {self.timeout_s:g} s.",
                        "Iterate every rank's loader in a separate thread, to the same step.",
                    )
                if len({type(value) for value in values}) > 1:
                    raise RankError(
                        "Simulated ranks must be at the same step, but they are at different ones.",
                        "Iterate every rank's loader to the same step, with the same settings.",
                    )
                self._taken[question] = self._taken.get(question, 0) + 1
                if self._taken[question] == self.number:
                    del self._taken[question], self._answers[question]
            return together(values)

        return wait


def _added(values: list[tuple[int, int]]) -> int:
    if len({same for _, same in values}) > 1:
        raise OtherPlaceError
    return sum(count for count, _ in values)


class _Member:
    """One simulated rank; implements `Ranks`."""

    def __init__(self, ranks: SimulatedRanks) -> None:
        self._ranks = ranks
        self.asked = 0

    def total(self, count: int, same: int = 0) -> Callable[[], int]:
        """See `Ranks`."""
        return self._ask((count, same), _added)

    def highest(self, values: NDArray[np.float32]) -> Callable[[], NDArray[np.float32]]:
        """See `Ranks`."""
        return self._ask(values.copy(), np.maximum.reduce)

    def _ask(self, value: Any, together: Callable[[list[Any]], Any]) -> Callable[[], Any]:
        question, self.asked = self.asked, self.asked + 1
        return self._ranks._asked(question, value, together)
