"""Headspace: the gain of a perfect loader, measured with batches that lie ready.

SPDL does this with ``CacheDataLoader``: run the same training step on cached batches, and
compare.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from typing import Generic, TypeVar

import torch

from streampack.arguments import whole_number
from streampack.batch import PackedBatch
from streampack.errors import ConfigError

Item = TypeVar("Item")


class Headspace(Generic[Item]):
    """Iterate some batches of a loader, then repeat the last ones; `str` compares the two times.

    Example:
        >>> from streampack import Headspace, PackedDataset, PackedLoader
        >>> loader = PackedLoader(PackedDataset([[1, 2, 3]] * 900, seq_len=8, batch_size=2))
        >>> headspace = Headspace(loader, steps=40)
        >>> for batch in headspace:  # instead of loader
        ...     pass
        >>> headspace.gain > 0
        True

    The loop has ``warm_up + steps`` steps with the loader, and then `steps` with repeated batches,
    without workers. So it trains several times on some documents: use it on a copy of the model.
    All ranks must use it at once. If rows have several lengths, repeat many batches.

    Args:
        loader: any iterable of batches.
        steps: steps to measure of each kind.
        batches: batches to repeat, which stay in memory.
        warm_up: steps before the first measured one.

    Attributes:
        loader_s: seconds of a step with the loader.
        ready_s: seconds of a step with batches that lie ready.

    Raises:
        ConfigError: a number is not an integer of at least 1.

    Raises (while iterating):
        ConfigError: the loader ends before its measured steps.
    """

    def __init__(
        self, loader: Iterable[Item], *, steps: int = 50, batches: int = 8, warm_up: int = 10
    ) -> None:
        self._loader = loader
        self._steps = whole_number("steps", steps)
        self._batches = whole_number("batches", batches)
        self._warm_up = whole_number("warm_up", warm_up, least=0)
        self.loader_s = self.ready_s = float("nan")

    @property
    def gain(self) -> float:
        """Speed with a perfect loader over the speed with this one; nan before the end."""
        return self.loader_s / self.ready_s

    def __iter__(self) -> Iterator[Item]:
        """Yield batches of the loader, then ready ones."""
        items = iter(self._loader)
        yield from islice(items, self._warm_up)
        kept: deque[Item] = deque(maxlen=self._batches)
        steps, began = 0, _now_s()
        for item in islice(items, self._steps):
            kept.append(item)
            yield item
            steps += 1
        self.loader_s = (_now_s() - began) / self._steps
        if steps < self._steps:
            raise ConfigError(
                f"The loader must have {self._warm_up + self._steps} batches, and it has ended.",
                "Pass fewer steps, or a longer or endless dataset.",
                setting="steps",
            )
        del items  # its workers end
        for ready in kept:
            if isinstance(ready, PackedBatch):
                ready.make_fields()
        began = _now_s()
        yield from islice(cycle(kept), self._steps)
        self.ready_s = (_now_s() - began) / self._steps

    def __str__(self) -> str:
        return (
            f"A step takes {1000 * self.loader_s:.3g} ms with the loader, and "
            f"{1000 * self.ready_s:.3g} ms with batches that lie ready: a perfect loader would be "
            f"{self.gain:.3g} times as fast."
        )


def _now_s() -> float:
    """Return the time at which the device has finished its work."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.perf_counter()
