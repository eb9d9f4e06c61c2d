"""Memory of a worker process over a long synthetic stream."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys

from benchmarks.process_memory import status_mib
from benchmarks.protocol import ROWS, SEQ_LEN, Measured, WrongOutputError

__all__ = ["WorkerMemory"]

TOKENS = 10_000_000_000
READINGS = 50
_INTERPRETER = """
import numba, numpy, torch
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")][0])
"""


class WorkerMemory(Measured):
    """One worker, started afresh ("spawn"), 10 G tokens, twelve lanes.

    Resident memory as the operating system counts it, shared pages of libraries included, against
    a process that imports torch, numpy and numba and does nothing.
    """

    label = "memory of a worker over 10 G tokens"
    settings = f"num_workers=1, spawn, batches of {ROWS} rows, defaults otherwise"

    def measure(self) -> dict[str, float]:
        """MiB, at the peak and over time."""
        from benchmarks.synthetic import Synthetic
        from streampack import PackedDataset, PackedLoader, Topology

        tokens = int(TOKENS * self.workload.scale)
        dataset = PackedDataset(
            Synthetic(self.workload.lengths[:4096], tokens),
            seq_len=SEQ_LEN,
            batch_tokens=ROWS * SEQ_LEN,
            topology=Topology(),
        )
        loader = PackedLoader(dataset, num_workers=1, multiprocessing_context="spawn")
        readings, taken, due = [], 0, 0.0
        for batch in loader:
            taken += batch.num_tokens
            if taken >= due:
                (worker,) = multiprocessing.active_children()
                readings.append(status_mib("VmRSS", worker.pid))
                peak = status_mib("VmHWM", worker.pid)
                due = taken + tokens / READINGS
            if taken >= tokens:
                break
        if taken < tokens:
            raise WrongOutputError(f"{taken} tokens came, {tokens} were to come.")
        lanes = loader.state_dict()["fingerprint"]["lanes"]
        windows = lanes * 128 * SEQ_LEN * 2 / 2**20
        interpreter = self.interpreter_mib()
        return {
            "peak, MiB": peak,
            "interpreter with torch and numba, MiB": interpreter,
            f"windows ({lanes} lanes, uint16), MiB": windows,
            "more than both, MiB": peak - interpreter - windows,
            "growth over the last 80 %, MiB": readings[-1] - readings[len(readings) // 5],
            "G tokens": taken / 1e9,
        }

    def interpreter_mib(self) -> float:
        """Resident memory of a process that only imports."""
        command = [sys.executable, "-c", _INTERPRETER]
        return int(subprocess.run(command, capture_output=True, check=True).stdout) / 1024
