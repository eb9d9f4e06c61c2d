"""Engines that run the tasks of a stage: Ray's workers, here or on a cluster, or this process.

A task is a function of the job and its indices, and its results are in the work folder. So a task
that is lost with its worker is repeated.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from streampack.corpus_order.settings import CorpusOrder
from streampack.errors import ConfigError, StreampackError, WorkerError, first_line
from streampack.extras import missing_package

ANSWER_S = 10.0
RETRIES = 3  # attempts for a task that lost its worker
KEEPALIVE_MS = 10_000  # detects a lost machine in about one minute, instead of seven
OBJECT_STORE_BYTES = 128 << 20  # small, because it holds jobs and task indices, no data

Report = Callable[[int], None]


#: Calls ``function(job, *task)`` for each task, in any order, and reports the number finished.
Engine = Callable[
    [Callable[..., None], CorpusOrder, Sequence[tuple[int, ...]], Report],
    None,
]


def run_here(
    function: Callable[..., None],
    job: CorpusOrder,
    tasks: Sequence[tuple[int, ...]],
    report: Report,
) -> None:
    """Run the tasks one after the other in this process; see `Engine`."""
    for number, task in enumerate(tasks, start=1):
        function(job, *task)
        report(number)


class OnRay:
    """Engine that runs tasks on Ray, up to two per core at a time."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._width = 2 * max(int(ray.cluster_resources().get("CPU", 1)), 1)

    def run(
        self,
        function: Callable[..., None],
        job: CorpusOrder,
        tasks: Sequence[tuple[int, ...]],
        report: Report,
    ) -> None:
        """See `Engine`."""
        ray = self._ray
        remote = ray.remote(max_retries=RETRIES)(function)
        shared = ray.put(job)
        waiting, done = deque(tasks), 0
        running: dict[Any, tuple[int, ...]] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self._width:
                    task = waiting.popleft()
                    running[remote.remote(shared, *task)] = task
                (ready,), _ = ray.wait(list(running), num_returns=1)
                self._finish(ready, function.__name__, running.pop(ready))
                done += 1
                report(done)
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def _finish(self, reference: Any, name: str, task: tuple[int, ...]) -> None:
        exceptions = self._ray.exceptions
        try:
            self._ray.get(reference)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, StreampackError):
                raise error.cause from None
            raise
        except exceptions.RayError as error:
            raise WorkerError(
                f"Ray lost the workers of {name}{task} {RETRIES + 1} times: {first_line(error)}",
                "Give them more memory (fewer workers, more parts), and repeat the command, which "
                "continues the job.",
            ) from error


@contextmanager
def opened(address: str | None, workers: int | None) -> Iterator[Engine]:
    """Open the engine of a job.

    Args:
        address: address of a Ray cluster; None starts Ray on this machine, unless this process has.
        workers: Ray workers on this machine, by default one per core; 0 uses no Ray.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address.
        WorkerError: Ray does not start.
    """
    if workers == 0 and address is None:
        yield run_here
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    for name in ("time_ms", "timeout_ms"):
        os.environ.setdefault(f"RAY_grpc_client_keepalive_{name}", str(KEEPALIVE_MS))
    try:
        import ray
    except ImportError:
        instead = ", or use this process alone (--workers 0)"
        raise missing_package("Ray", "order", instead, setting="workers") from None
    ours = not ray.is_initialized()
    if ours:
        _start(ray, address, workers)
    try:
        yield OnRay(ray).run
    finally:
        if ours:
            ray.shutdown()


def _start(ray: Any, address: str | None, workers: int | None) -> None:
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    if address is not None:
        host, _, port = address.rpartition("://")[2].rpartition(":")
        answers = False
        try:
            if host:  # Ray itself would retry for minutes
                socket.create_connection((host, int(port)), timeout=ANSWER_S).close()
                answers = True
            ray.init(address=address, **quiet)
        except (Exception, SystemExit) as error:  # Ray gives up by exiting
            raise ConfigError(
                f'There is no Ray cluster to join at "{address}": {first_line(error)}',
                "If it wants a token (~/.ray/auth_token of its head), set RAY_AUTH_MODE=token and "
                "RAY_AUTH_TOKEN here too; else start it with the same versions of Ray and Python."
                if answers
                else "Check the address (ray start prints it), or leave --address out to use this "
                "machine.",
                setting="address",
            ) from error
        return
    try:
        ray.init(
            address="local",
            num_cpus=workers,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _node_ip_address="127.0.0.1",  # for machines without a network
            **quiet,
        )
    except Exception as error:  # Ray has no narrower error for a slow process of its own
        raise WorkerError(
            f"Ray did not start on this machine: {error}",
            "Repeat the command when the machine has less to do, or use this process alone "
            "(--workers 0).",
        ) from error
