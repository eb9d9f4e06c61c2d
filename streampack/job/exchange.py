"""What the processes of a job exchange, over a gloo group on the CPU.

Sums over data-parallel ranks: do others still have batches, how many loss tokens has a group of
batches. All processes of the job take part, those of a model-parallel group too; what they
contribute counts once.

torch.distributed must be initialised; everything here fails with `RankError` when another process
dies, or answers nothing for `timeout_s`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from streampack.errors import ConfigError, RankError, first_line
from streampack.job.connect import TIMEOUT_S
from streampack.job.ending import OtherPlaceError
from streampack.job.kept import keep
from streampack.job.listed_once import job_store, within
from streampack.job.topology import Topology


class ProcessRanks:
    """The data-parallel ranks of a job whose processes torch.distributed connects.

    Creating one is a collective operation: every process of the job does it.

    Args:
        topology: of this process; every data-parallel rank is shared by equally many processes.
        timeout_s: how long to wait for others.

    Raises:
        ConfigError: the processes' topologies do not fit together.
        RankError: a process died or did not answer.
    """

    def __init__(self, topology: Topology, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._group = _group(timeout_s)
        processes = dist.get_world_size()
        found = torch.zeros(processes, 2, dtype=torch.int64)
        found[dist.get_rank()] = torch.tensor([topology.rank, topology.world_size])
        self._start(found, dist.ReduceOp.SUM)()
        counts = torch.bincount(found[:, 0], minlength=topology.world_size)
        if len({*counts.tolist()}) > 1 or len({*found[:, 1].tolist()}) > 1:
            raise ConfigError(
                f"The job's {processes} processes have data-parallel ranks "
                f"{found[:, 0].tolist()} of {found[:, 1].tolist()}, not each equally often.",
                "Pass topology=Topology.from_mesh(mesh, dims), or Topology(rank, world_size) with "
                "the same world_size everywhere.",
                setting="topology",
            )
        self._processes, self._replicas = processes, int(counts[0])

    def total(self, count: int, same: int = 0) -> Callable[[], int]:
        """See `Ranks`."""
        wait = self._start(torch.tensor([count, same, same**2]), dist.ReduceOp.SUM)

        def result() -> int:
            total, sames, squares = wait().tolist()
            # Only numbers that are all the same have no variance.
            if (self._processes * squares - sames**2) % (1 << 64):
                raise OtherPlaceError
            return int(total) // self._replicas

        return result

    def highest(self, values: NDArray[np.float32]) -> Callable[[], NDArray[np.float32]]:
        """See `Ranks`."""
        wait = self._start(torch.tensor(values), dist.ReduceOp.MAX)
        return lambda: wait().numpy()

    def _start(self, values: torch.Tensor, operation: Any) -> Callable[[], torch.Tensor]:
        """Start to reduce `values` in place; the result waits for it."""
        work = _finish(
            lambda: dist.all_reduce(values, operation, group=self._group, async_op=True),
            self._timeout_s,
        )
        keep(work, values)

        def wait() -> torch.Tensor:
            _finish(work.wait, self._timeout_s)
            return values

        return wait


MESH_TRIES = 5  # of gloo to connect all processes, each with the limit of the group
LEAST_TRY_S = 2.0

_groups: dict[float, tuple[Any, Any]] = {}  # by timeout: the default group of its time, and it
_made = 0  # groups that this process began to make


def _group(timeout_s: float) -> Any:
    """A gloo group over all processes, made once per timeout."""
    world = dist.group.WORLD
    made_in, group = _groups.get(timeout_s, (None, None))
    if made_in is not world:
        _finish(lambda: within(timeout_s, lambda: _wait_for_all(timeout_s)), timeout_s)
        tries_s = max(timeout_s, MESH_TRIES * LEAST_TRY_S)
        group = _finish(lambda: within(tries_s, lambda: _connected_group(timeout_s)), timeout_s)
        _groups[timeout_s] = world, group
    return group


def _wait_for_all(timeout_s: float) -> None:
    """Wait until all processes are about to connect, so that connecting itself is short."""
    global _made
    store = job_store()
    if store is None:
        return
    key, _made = f"streampack/groups/{_made}", _made + 1
    here, deadline = store.add(key, 1), time.monotonic() + timeout_s
    while here < dist.get_world_size():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{here} of {dist.get_world_size()} processes came to connect")
        time.sleep(0.02)
        here = store.add(key, 0)


def _connected_group(timeout_s: float) -> Any:
    try_s = min(timeout_s, max(timeout_s / MESH_TRIES, LEAST_TRY_S))
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=try_s))
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s), group)
    return group


def _finish(operation: Callable[[], Any], timeout_s: float) -> Any:
    try:
        return operation()
    except RuntimeError as error:
        raise RankError(
            f"Another process of the job died, or left its loop, or hung for {timeout_s:g} s: "
            f"{first_line(error)}",
            "Look for the process that failed first and resume all, or raise rank_timeout_s of "
            "PackedLoader.",
            setting="rank_timeout_s",
        ) from error
