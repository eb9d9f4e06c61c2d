"""Topology: which data-parallel rank this is, of how many; and which batches are whose.

Batch g of a run comes from lane ``g % lanes``. At step s after a (re)start at batch `start`, rank r
of R takes batch ``start + s * R + r``, so the sequence of batches is the same for every R. Where R
divides the lanes, all batches of a lane go to one rank. Where it does not, several ranks run the
same lane, and each leaves out the batches of the others.
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
    """A place among data-parallel ranks.

    Ranks that hold parts of one model (tensor, pipeline or context parallel) share one data-
    parallel rank and so get the same batches. With `Buckets(cp=...)` context-parallel ranks count.

    Args:
        rank: this process's data-parallel rank; world_size: how many there are.
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
        """From torch.distributed if it is initialised, else from RANK and WORLD_SIZE, else one."""
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        try:
            return cls(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
        except ValueError:
            raise ConfigError(
                f"RANK={os.environ.get('RANK')!r} and WORLD_SIZE="
                f"{os.environ.get('WORLD_SIZE')!r} are not two numbers.",
                "Correct them, or pass topology=Topology(rank, world_size).",
                setting="topology",
            ) from None

    def check_still_detected(self) -> None:
        """Raise `ConfigError` if this was detected and is no longer this process's place."""
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
        """From a torch `DeviceMesh`: this process's place in its data-parallel dimensions.

        ``Topology.from_mesh(mesh, ("dp_replicate", "dp_shard"))``. Processes that differ in other
        dimensions only (tensor, pipeline, context parallel) get the same batches.

        Args:
            mesh: with named dimensions.
            dims: the names of those over which batches differ, the slowest first; flattened ones
                may be among them.

        Raises:
            ConfigError: the mesh has no such dimension, or this process is not part of it.
        """
        rank, world_size = 0, 1
        for name in [dims] if isinstance(dims, str) else dims:
            try:
                group = mesh.get_group(name)
            except (KeyError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f"The mesh has the dimensions {mesh.mesh_dim_names}, and {name!r} is asked "
                    f"for: {error}",
                    "Name dimensions that were given as mesh_dim_names, from a process that is "
                    "part of the mesh.",
                    setting="dims",
                ) from error
            size = group.size()
            rank, world_size = rank * size + group.rank(), world_size * size
        return cls(rank, world_size)

    def batch(self, start: int, step: int) -> int:
        """Number of this rank's batch at local step `step` of a run started at `start`."""
        return start + step * self.world_size + self.rank

    def step_at(self, start: int) -> int:
        """Number of rank 0's batch in the first step of a run started at `start`."""
        return start

    def step_after(self, number: int) -> int:
        """Number of the first batch of the step after that in which this rank takes `number`."""
        return number - self.rank + self.world_size

    def takes(self, number: int, start: int) -> bool:
        """Whether batch `number` is this rank's, where a step begins with batch `start`."""
        return (number - start) % self.world_size == self.rank

    def lanes(self, start: int, lanes: int) -> list[int]:
        """The lanes this rank's batches from number `start` on come from, in the order of turns."""
        turns = lanes // math.gcd(self.world_size, lanes)
        return [self.batch(start, step) % lanes for step in range(turns)]

    def owned_lanes(self, next_batch: int, lanes: int) -> list[int]:
        """The lanes whose latest turn before batch `next_batch` was this rank's.

        Over all ranks, every lane once. At the end of a step this rank knows where they stand.
        """
        return [
            lane
            for lane in self.lanes(next_batch, lanes)
            if self.takes(next_batch - 1 - (next_batch - 1 - lane) % lanes, next_batch)
        ]

    def shares(self, lanes: int) -> int:
        """How many ranks run each lane; 1 where the ranks divide the lanes."""
        return self.world_size // math.gcd(self.world_size, lanes)

    def among_workers(self, worker: int, workers: int) -> Topology:
        """The place of one of a rank's workers that take the rank's batches in turn."""
        return Topology(self.rank + worker * self.world_size, self.world_size * workers)
