"""A training loop beside its loader: its waits, and the slowdown of its compute."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, ClassVar

from benchmarks.corpus_files import mds_shards
from benchmarks.protocol import SEQ_LEN, Measured
from benchmarks.runners.streampack import fields_of

__all__ = ["STALLS"]

COMPUTE_S = 0.020
SHARE = 4  # the loop needs a quarter of the loader's rate
STEPS = 120
STRETCH = 20  # steps with the loader, then as many without, in turn
AHEAD = 4


class Stall(Measured):
    """20 ms of torch work per batch, of which the loader makes four in that time.

    The batch is sized so that one lane process makes it in 5 ms, fields included. Waiting is the
    time from asking for a batch until all its fields are there. The compute is matrix products on
    one torch thread, so that a machine of two cores has one for the loader; how much slower it
    gets is measured against the same work between stretches of loading.
    """

    workers: ClassVar[int] = 0

    def prepare(self) -> None:
        """Write the shards."""
        mds_shards(self.workload)

    def loader(self, rows: int, workers: int) -> Any:
        """An endless loader."""
        from streampack import PackedDataset, PackedLoader, Topology, sources

        source = sources.MDS(mds_shards(self.workload), tokens="tokens")
        dataset = PackedDataset(
            source, seq_len=SEQ_LEN, batch_size=rows, epochs=None, topology=Topology()
        )
        return PackedLoader(dataset, num_workers=workers)

    def rows(self) -> int:
        """Rows of a batch that takes a quarter of the compute's time to make."""
        rows = 64
        batches = iter(self.loader(rows, 0))
        with closing(batches):  # type: ignore[type-var]
            for _ in range(8):
                fields_of(next(batches))
            steps = 40
            began = time.perf_counter()
            for _ in range(steps):
                fields_of(next(batches))
            each = (time.perf_counter() - began) / steps
        return max(round(rows * COMPUTE_S / SHARE / each), 1)

    def measure(self, seconds: float) -> dict[str, dict[str, float]]:
        """Shares of wall time, and how much slower the compute is."""
        import torch

        torch.set_num_threads(1)
        work = calibrated(COMPUTE_S)
        rows = self.rows()
        steps = max(int(STEPS * self.workload.scale), 4)
        loader = self.loader(rows, self.workers)
        batches: Any = made(loader)
        waits, beside, alone = [], [], []
        with closing(batches):
            for _ in range(AHEAD):
                next(batches)
            for step in range(steps):
                began = time.perf_counter()
                next(batches)
                waits.append(time.perf_counter() - began)
                beside.append(timed(work))
                if step % STRETCH == STRETCH - 1:
                    time.sleep(0.5)  # until everything that is made ahead is made
                    alone += [timed(work) for _ in range(STRETCH)]
                    next(batches)
        alone = alone or [timed(work) for _ in range(STRETCH)]
        figures = {
            "waiting, % of wall time": 100 * sum(waits) / (sum(waits) + sum(beside)),
            "compute slower, %": 100 * (statistics.median(beside) / statistics.median(alone) - 1),
            "compute alone, ms": 1000 * statistics.median(alone),
            "rows per batch": rows,
        }
        return {self.label: figures}


def made(loader: Any) -> Iterator[Any]:
    """Batches with their fields made by the loop's own thread."""
    with closing(iter(loader)) as batches:
        for batch in batches:
            yield fields_of(batch)


def calibrated(seconds: float) -> Callable[[], object]:
    """Matrix products that take about so long on one thread."""
    import torch

    left, right = torch.rand(192, 192), torch.rand(192, 192)
    out = torch.empty(192, 192)

    def work(products: int = 50) -> None:
        for _ in range(products):
            torch.mm(left, right, out=out)

    work()
    each = statistics.median(timed(work) for _ in range(9)) / 50
    products = max(round(seconds / each), 1)
    return lambda: work(products)


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _stall(workers: int, label: str) -> type[Stall]:
    members = {"workers": workers, "label": label, "__doc__": Stall.__doc__}
    return type(f"Stall{workers}", (Stall,), members)


#: In the loop's own process, in one and two worker processes.
STALLS = (
    _stall(0, "no worker"),
    _stall(1, "one worker process"),
    _stall(2, "two worker processes"),
)
