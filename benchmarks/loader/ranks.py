"""The job's processes: they measure at the same time, and the first one hears of all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = ["Job", "open_job"]


@dataclass(frozen=True)
class Job:
    """This process among those of the job.

    Attributes:
        rank, processes: of the job; on_host: processes on this machine; place: its number there.
    """

    rank: int = 0
    processes: int = 1
    on_host: int = 1
    place: int = 0

    @property
    def cores(self) -> int:
        """Processor cores of this machine for this process, shared evenly."""
        if hasattr(os, "sched_getaffinity"):
            return max(len(os.sched_getaffinity(0)) // self.on_host, 1)
        return max((os.cpu_count() or 1) // self.on_host, 1)

    def together(self) -> None:
        """Wait for all others."""
        if self.processes > 1:
            import torch.distributed as dist

            dist.barrier()

    def gather(self, mine: Any) -> list[Any]:
        """What every process has, by rank; empty on all but the first."""
        if self.processes == 1:
            return [mine]
        import torch.distributed as dist

        found: list[Any] | None = [None] * self.processes if self.rank == 0 else None
        dist.gather_object(mine, found)
        return found or []


@contextmanager
def open_job() -> Iterator[Job]:
    """As torchrun's environment variables say: its processes, or this one alone."""
    processes = int(os.environ.get("WORLD_SIZE", 1))
    if processes == 1:
        yield Job()
        return
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        yield Job(
            dist.get_rank(),
            processes,
            int(os.environ.get("LOCAL_WORLD_SIZE", processes)),
            int(os.environ.get("LOCAL_RANK", 0)),
        )
    finally:
        dist.destroy_process_group()
