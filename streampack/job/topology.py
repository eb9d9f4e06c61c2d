"""Topology: this process's data-parallel rank, the number of ranks, and the batches of each rank.

Batch g of a run comes from lane ``g % lanes``. At step s after a (re)start at batch `start`, rank r
of R takes batch ``start + s * R + r``, so the sequence of batches is the same for every R. If R
divides the lanes, all batches of a lane go to one rank. Otherwise several ranks run the same lane,
and each leaves out the batches of the others.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streampack.arguments import explained, whole_number
from streampack.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@explained
@dataclass(frozen=True, slots=True)
class Topology:
    """Position of a process among data-parallel ranks.

    Ranks that hold parts of one model (tensor, pipeline or context parallel) share one data-
    parallel rank and so get the same batches. With `Buckets(cp=...)` context-parallel ranks count.

    Args:
        rank: this process's data-parallel rank; world_size: number of data-parallel ranks.
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        ranks = whole_number("world_size", self.world_size)
        rank = whole_number("rank", self.rank, least=0, most=ranks - 1)
        object.__setattr__(self, "world_size", ranks)
        object.__setattr__(self, "rank", rank)

    @classmethod
    def detect(cls) -> Topology:
        """Detect it from torch.distributed, else from RANK and WORLD_SIZE, else one rank."""
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        try:
            return cls(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
        except ValueError:
            raise ConfigError(
                f"RANK and WORLD_SIZE must be two numbers, got {os.environ.get('RANK')!r} and "
                f"{os.environ.get('WORLD_SIZE')!r}.",
                "Correct them, or pass topology=Topology(rank, world_size).",
                setting="topology",
            ) from None

    def check_still_detected(self) -> None:
        """Raise `ConfigError` if it was detected and detection now gives another rank."""
        now = Topology.detect()
        if now != self:
            raise ConfigError(
                f"The dataset was built when this process was rank {self.rank} of "
                f"{self.world_size}, and now it is rank {now.rank} of {now.world_size}.",
                "Build it after torch.distributed.init_process_group(), or pass topology=.",
                setting="topology",
            )

    @classmethod
    def from_mesh(cls, mesh: DeviceMesh, dims: str | Sequence[str]) -> Topology:
        """Return this process's topology in the data-parallel dimensions of a torch `DeviceMesh`.

        ``Topology.from_mesh(mesh, ("dp_replicate", "dp_shard"))``. Processes that differ only in
        other dimensions (tensor, pipeline, context parallel) get the same batches.

        Args:
            mesh: mesh with named dimensions.
            dims: names of the dimensions over which batches differ, the slowest first; flattened
                dimensions are allowed.

        Raises:
            ConfigError: the mesh has no such dimension, or this process is not part of it.
        """
        rank, world_size = 0, 1
        for name in [dims] if isinstance(dims, str) else dims:
            try:
                group = mesh.get_group(name)
            except (KeyError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f"dims must name dimensions of the mesh, {mesh.mesh_dim_names}, got {name!r}: "
                    f"{error}",
                    "Name dimensions that were given as mesh_dim_names, from a process that is "
                    "part of the mesh.",
                    setting="dims",
                ) from error
            size = group.size()
            rank, world_size = rank * size + group.rank(), world_size * size
        return cls(rank, world_size)

    def batch(self, start: int, step: int) -> int:
        """Return the index of this rank's batch at local step `step` of a run from `start` on."""
        return start + step * self.world_size + self.rank

    def step_at(self, start: int) -> int:
        """Return the index of rank 0's batch in the first step of a run started at `start`."""
        return start

    def step_after(self, number: int) -> int:
        """Return the index of the first batch after the step in which this rank takes `number`."""
        return number - self.rank + self.world_size

    def takes(self, number: int, start: int) -> bool:
        """Return True if this rank takes batch `number` of the step that begins with `start`."""
        return (number - start) % self.world_size == self.rank

    def lanes(self, start: int, lanes: int) -> list[int]:
        """Return the lanes of this rank's batches from index `start` on, in the order of turns."""
        turns = lanes // math.gcd(self.world_size, lanes)
        return [self.batch(start, step) % lanes for step in range(turns)]

    def owned_lanes(self, next_batch: int, lanes: int) -> list[int]:
        """Return the lanes of which this rank had the latest turn before batch `next_batch`.

        Every lane belongs to exactly one rank. At the end of a step this rank knows their state.
        """
        return [
            lane
            for lane in self.lanes(next_batch, lanes)
            if self.takes(next_batch - 1 - (next_batch - 1 - lane) % lanes, next_batch)
        ]

    def shares(self, lanes: int) -> int:
        """Return the number of ranks that run each lane; 1 if the ranks divide the lanes."""
        return self.world_size // math.gcd(self.world_size, lanes)

    def among_workers(self, worker: int, workers: int) -> Topology:
        """Return the topology of a worker, if the rank's workers take its batches in turn."""
        return Topology(self.rank + worker * self.world_size, self.world_size * workers)
