"""Collectives between the processes of a job, over a gloo group on the CPU.

They are sums and maxima over data-parallel ranks, for example of the remaining batches or of the
loss tokens in a group of batches. All processes of the job take part, including the other processes
of a model-parallel group, which contribute once together.

torch.distributed must be initialised. Every collective raises `RankError` if another process dies,
or does not respond for `timeout_s`.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from streampack.distributed.kept import keep
from streampack.errors import ConfigError, RankError, first_line
from streampack.job.connect import TIMEOUT_S
from streampack.job.ending import OtherPlaceError
from streampack.job.listed_once import job_store, within
from streampack.job.topology import Topology


class ProcessRanks:
    """Collectives over the data-parallel ranks of a job connected by torch.distributed.

    The constructor is a collective: every process of the job must call it.

    Args:
        topology: topology of this process; every data-parallel rank must have the same number of
            processes.
        timeout_s: seconds to wait for other processes.

    Raises:
        ConfigError: the processes' topologies do not fit together.
        RankError: a process died or did not respond.
    """

    def __init__(self, topology: Topology, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._group = _group(timeout_s)
        processes = dist.get_world_size()
        topologies = torch.zeros(processes, 2, dtype=torch.int64)
        topologies[dist.get_rank()] = torch.tensor([topology.rank, topology.world_size])
        self._start(topologies, dist.ReduceOp.SUM)()
        counts = torch.bincount(topologies[:, 0], minlength=topology.world_size)
        if len({*counts.tolist()}) > 1 or len({*topologies[:, 1].tolist()}) > 1:
            raise ConfigError(
                f"Every data-parallel rank must occur equally often in the job's {processes} "
                f"processes, got ranks {topologies[:, 0].tolist()} of {topologies[:, 1].tolist()}.",
                "Pass topology=Topology.from_mesh(mesh, dims), or Topology(rank, world_size) with "
                "the same world_size everywhere.",
                setting="topology",
            )
        self._processes, self._replicas = processes, int(counts[0])
        self._ranks: list[int] = topologies[:, 0].tolist()  # of each process

    def total(self, count: int, same: int = 0) -> Callable[[], int]:
        """See `Ranks`."""
        wait = self._start(torch.tensor([count, same, same**2]), dist.ReduceOp.SUM)

        def result() -> int:
            total, sames, squares = wait().tolist()
            # The variance is zero only if all ranks passed the same number.
            if (self._processes * squares - sames**2) % (1 << 64):
                raise OtherPlaceError
            return int(total) // self._replicas

        return result

    def highest(self, values: NDArray[np.float32]) -> Callable[[], NDArray[np.float32]]:
        """See `Ranks`."""
        wait = self._start(torch.tensor(values), dist.ReduceOp.MAX)
        return lambda: wait().numpy()

    def scatter(self, parts: Sequence[Any] | None) -> Any:
        """Return the object for this data-parallel rank, which the first process passes.

        Args:
            parts: in the first process an object for each data-parallel rank; elsewhere None.
        """
        data = [pickle.dumps(parts[rank]) for rank in self._ranks] if parts is not None else []
        size = torch.tensor([max(map(len, data), default=0)])
        self._started(lambda group: dist.broadcast(size, 0, group, async_op=True), size)()
        taken = torch.empty(int(size), dtype=torch.uint8)
        padded = [torch.zeros(int(size), dtype=torch.uint8) for _ in data]
        for tensor, of_rank in zip(padded, data, strict=True):
            tensor.numpy()[: len(of_rank)] = np.frombuffer(of_rank, np.uint8)
        self._started(
            lambda group: dist.scatter(taken, padded or None, 0, group, async_op=True),
            (taken, padded),
        )()
        part = pickle.loads(taken.numpy().tobytes())  # noqa: S301
        for tensor in (taken, *padded):
            tensor.data = torch.empty(0, dtype=torch.uint8)  # what is kept takes no memory
        return part

    def _start(self, values: torch.Tensor, operation: Any) -> Callable[[], torch.Tensor]:
        """Start to reduce `values` in place; the returned function waits for the result."""
        wait = self._started(
            lambda group: dist.all_reduce(values, operation, group, async_op=True), values
        )

        def result() -> torch.Tensor:
            wait()
            return values

        return result

    def _started(self, operation: Callable[[Any], Any], tensors: Any) -> Callable[[], None]:
        """Start a collective on the group and keep it; the returned function waits for its end."""
        work = _finish(lambda: operation(self._group), self._timeout_s)
        keep(work, tensors)
        return lambda: _finish(work.wait, self._timeout_s)


MESH_TRIES = 5  # attempts of gloo to connect all processes, each with the group's timeout
LEAST_TRY_S = 2.0

_groups: dict[float, tuple[Any, Any]] = {}  # by timeout: default group at creation, group
_made = 0  # groups that this process began to create


def _group(timeout_s: float) -> Any:
    """Return a gloo group over all processes, created once per timeout."""
    world = dist.group.WORLD
    made_in, group = _groups.get(timeout_s, (None, None))
    if made_in is not world:
        _finish(lambda: within(timeout_s, lambda: _wait_for_all(timeout_s)), timeout_s)
        tries_s = max(timeout_s, MESH_TRIES * LEAST_TRY_S)
        group = _finish(lambda: within(tries_s, lambda: _connected_group(timeout_s)), timeout_s)
        _groups[timeout_s] = world, group
    return group


def _wait_for_all(timeout_s: float) -> None:
    """Wait until all processes are ready to connect, so that connecting itself is short."""
    global _made
    store = job_store()
    if store is None:
        return
    key, _made = f"streampack/groups/{_made}", _made + 1
    here, deadline = store.add(key, 1), time.monotonic() + timeout_s
    while here < dist.get_world_size():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{here} of {dist.get_world_size()} processes connected")
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
            f"Another process of the job died, left its loop, or hung for {timeout_s:g} s: "
            f"{first_line(error)}",
            "Look for the process that failed first and resume all, or raise rank_timeout_s of the "
            "loader.",
            setting="rank_timeout_s",
        ) from error
