"""connect: connects the ranks of a job, or one rank alone."""

from __future__ import annotations

import logging
import os

import torch.distributed as dist
from torch.utils.data import get_worker_info

from streampack.job.ending import Alone, Ranks
from streampack.job.topology import Topology

logger = logging.getLogger(__name__)

#: As long as torch's default: a rank may write a checkpoint or evaluate while others wait.
TIMEOUT_S = 1800.0


LONGEST_S = 1e8  # three years; torch stores timeouts as 64-bit nanoseconds


def connect(topology: Topology, *, timeout_s: float = TIMEOUT_S) -> Ranks:
    """Connect the ranks of this topology: the processes of the job, or this rank alone.

    A rank is alone if it is the only one, if no process group is initialised (as for simulated
    ranks, each of which ends with its own lanes), or in a worker process. A warning is logged if a
    launcher started several ranks that are not connected.
    """
    if _connected(topology):
        from streampack.distributed.exchange import ProcessRanks

        return ProcessRanks(topology, timeout_s=timeout_s)
    warn_unconnected(topology)
    return Alone()


def warn_unconnected(topology: Topology) -> None:
    """Log a warning if a launcher started several ranks without a process group."""
    if dist.is_available() and dist.is_initialized():
        return
    launched = (os.environ.get("RANK"), os.environ.get("WORLD_SIZE"))
    if topology.world_size > 1 and launched == (str(topology.rank), str(topology.world_size)):
        logger.warning(
            "This is rank %d of %d by RANK and WORLD_SIZE, and torch.distributed is not "
            "initialised, so the ranks cannot agree on the step after which a finite run ends: "
            "some may take more steps than others and wait for them forever. Call "
            "torch.distributed.init_process_group() before the loop begins.",
            topology.rank,
            topology.world_size,
        )


def _connected(topology: Topology) -> bool:
    return (
        topology.world_size > 1
        and get_worker_info() is None
        and dist.is_available()
        and dist.is_initialized()
        and dist.get_world_size() > 1
    )
