"""Memory of a worker process over a long synthetic stream."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys

from benchmarks.protocol import ROWS, SEQ_LEN, Measured, WrongOutputError, status_mib

__all__ = ["WorkerMemory"]

TOKENS = 10_000_000_000
_INTERPRETER = """
import numba, numpy, torch
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")][0])
"""


class WorkerMemory(Measured):
    """One worker, started afresh ("spawn"), over documents that cost nothing to read."""

    label = "a worker"

    def measure(self, seconds: float) -> dict[str, dict[str, float]]:
        """MiB; shared pages of libraries included."""
        from benchmarks.synthetic import Synthetic
        from streampack import PackedDataset, PackedLoader, Topology
        from streampack.window.config import DEFAULT_ROWS

        total = int(TOKENS * self.workload.scale)
        source = Synthetic(self.workload.lengths[:4096], total)
        dataset = PackedDataset(source, seq_len=SEQ_LEN, batch_size=ROWS, topology=Topology())
        loader = PackedLoader(dataset, num_workers=1, multiprocessing_context="spawn")
        taken, early, now, peak = 0, 0.0, 0.0, 0.0
        for batch in loader:
            taken += batch.num_tokens
            if taken >= total or (not early and taken >= total / 5):
                (worker,) = multiprocessing.active_children()
                now, peak = (status_mib(f, worker.pid or 0) for f in ("VmRSS", "VmHWM"))
                early = early or now
            if taken >= total:
                break
        if taken < total:
            raise WrongOutputError(f"{taken} tokens came, {total} were to come.")
        lanes = loader.state_dict()["fingerprint"]["lanes"]
        windows = lanes * DEFAULT_ROWS * SEQ_LEN * 2 / 2**20
        done = subprocess.run([sys.executable, "-c", _INTERPRETER], capture_output=True, check=True)
        interpreter = int(done.stdout) / 1024
        return {
            "peak": {"MiB": peak},
            "a process that imports torch, numpy and numba": {"MiB": interpreter},
            f"full windows of {lanes} lanes, uint16": {"MiB": windows},
            "peak above both": {"MiB": peak - interpreter - windows},
            "growth over the last four fifths": {"MiB": now - early},
        }
