"""Memory of a worker process over a long synthetic stream."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.process_memory import status_mib
from benchmarks.protocol import ROWS, SEQ_LEN, Measured, WrongOutputError

__all__ = ["Readings", "WorkerMemory", "read_memory"]

TOKENS = 10_000_000_000
READINGS = 50
_INTERPRETER = """
import numba, numpy, torch
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")][0])
"""


@dataclass(frozen=True)
class Readings:
    """Resident memory of one worker, in MiB, shared pages of libraries included.

    Attributes:
        tokens, resident: of the stream so far, and then; peak: at any time.
        lanes: that the worker runs; windows: bytes of their full windows.
        interpreter: of a process that imports torch, numpy and numba and does nothing.
    """

    tokens: list[int]
    resident: list[float]
    peak: float
    lanes: int
    windows: float
    interpreter: float

    @property
    def more(self) -> float:
        """MiB above windows and interpreter."""
        return self.peak - self.interpreter - self.windows

    @property
    def growth(self) -> float:
        """MiB over the last four fifths of the stream."""
        return self.resident[-1] - self.resident[len(self.resident) // 5]


def read_memory(lengths: NDArray[np.int64], tokens: int) -> Readings:
    """Run one worker, started afresh ("spawn"), over so many tokens of documents so long."""
    from benchmarks.synthetic import Synthetic
    from streampack import PackedDataset, PackedLoader, Topology
    from streampack.window.config import DEFAULT_ROWS

    dataset = PackedDataset(
        Synthetic(lengths, tokens),
        seq_len=SEQ_LEN,
        batch_size=ROWS,
        topology=Topology(),
    )
    loader = PackedLoader(dataset, num_workers=1, multiprocessing_context="spawn")
    at: list[int] = []
    resident, taken, due, peak = [], 0, 0.0, 0.0
    for batch in loader:
        taken += batch.num_tokens
        if taken >= min(due, tokens):
            (worker,) = multiprocessing.active_children()
            at.append(taken)
            resident.append(status_mib("VmRSS", worker.pid or 0))
            peak = status_mib("VmHWM", worker.pid or 0)
            due = taken + tokens / READINGS
        if taken >= tokens:
            break
    if taken < tokens:
        raise WrongOutputError(f"{taken} tokens came, {tokens} were to come.")
    lanes = loader.state_dict()["fingerprint"]["lanes"]
    windows = lanes * DEFAULT_ROWS * SEQ_LEN * 2 / 2**20
    return Readings(at, resident, peak, lanes, windows, interpreter_mib())


def interpreter_mib() -> float:
    """Resident memory of a process that only imports."""
    command = [sys.executable, "-c", _INTERPRETER]
    return int(subprocess.run(command, capture_output=True, check=True).stdout) / 1024


class WorkerMemory(Measured):
    """One worker, 10 G tokens, twelve lanes."""

    label = "memory of a worker over 10 G tokens"
    settings = f"num_workers=1, spawn, batches of {ROWS} rows, defaults otherwise"

    def measure(self) -> dict[str, float]:
        """MiB, at the peak and over time."""
        found = read_memory(self.workload.lengths[:4096], int(TOKENS * self.workload.scale))
        return {
            "peak, MiB": found.peak,
            "interpreter with torch and numba, MiB": found.interpreter,
            f"windows ({found.lanes} lanes, uint16), MiB": found.windows,
            "more than both, MiB": found.more,
            "growth over the last 80 %, MiB": found.growth,
            "G tokens": found.tokens[-1] / 1e9,
        }
