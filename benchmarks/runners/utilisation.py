"""Utilisation of the default window, beside planning over the whole stream."""

from __future__ import annotations

from benchmarks.protocol import SEQ_LEN, Measured
from benchmarks.runners.streampack import FromMDSOneRow
from benchmarks.workloads import Workload

__all__ = ["Utilisation"]


class Utilisation(Measured):
    """Counted on real batches; the same in every run, so measured once."""

    label = "utilisation, default window beside planning over everything"
    settings = "MDS, all defaults; the plan is BestFitDecreasing over all lengths at once"

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.loader = FromMDSOneRow(workload)

    def prepare(self) -> None:
        """Write the shards."""
        self.loader.prepare()

    def measure(self) -> dict[str, float]:
        """Percent, and tokens lost."""
        from streampack.packing import BestFitDecreasing

        lengths = self.workload.lengths
        plan = BestFitDecreasing(seq_len=SEQ_LEN).plan(lengths, final=True, seed=0)
        everything = plan.metrics(lengths).utilisation
        counts = self.loader.check()
        return {
            "default window, %": 100 * counts.tokens / counts.slots,
            "planning over everything, %": 100 * everything,
            "points behind": 100 * (everything - counts.tokens / counts.slots),
            "empty batches of lanes that end before others, %": (
                100 * counts.empty_slots / (counts.slots + counts.empty_slots)
            ),
            "tokens lost": self.workload.num_tokens - counts.tokens,
        }
