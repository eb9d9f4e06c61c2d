"""The engine of Ray's workers, on this machine or on a cluster."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from streampack.errors import ConfigError, StreampackError, WorkerError, first_line
from streampack.extras import missing_package
from streampack.tasks.engine import RETRIES, Engine, Task

ANSWER_S = 10.0
KEEPALIVE_MS = 10_000  # detects a lost machine in about one minute, instead of seven
OBJECT_STORE_BYTES = 128 << 20  # small, because it holds jobs and task indices, no data


class OnRay:
    """Engine that runs tasks on Ray.

    Args:
        ray: the module, initialized.
        width: tasks at a time, by default two per core of the cluster.
    """

    def __init__(self, ray: Any, width: int | None = None) -> None:
        self._ray = ray
        self._width = width or 2 * max(int(ray.cluster_resources().get("CPU", 1)), 1)

    def run(
        self, function: Callable[..., Any], job: Any, tasks: Sequence[Task]
    ) -> Generator[Any, None, None]:
        """See `Engine`."""
        ray = self._ray
        remote = ray.remote(max_retries=RETRIES)(function)
        shared = ray.put(job)
        waiting = deque(tasks)
        running: dict[Any, Task] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self._width:
                    task = waiting.popleft()
                    running[remote.remote(shared, *task)] = task
                (ready,), _ = ray.wait(list(running), num_returns=1)
                yield self._result(ready, function.__name__, running.pop(ready))
        finally:
            for reference in running:
                ray.cancel(reference, force=True)

    def _result(self, reference: Any, name: str, task: Task) -> Any:
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(reference)
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
def on_ray(address: str | None, workers: int | None) -> Iterator[Engine]:
    """Open the engine of Ray's workers.

    Args:
        address: address of a Ray cluster; None starts Ray on this machine, unless this process has.
        workers: Ray workers on this machine, by default one per core; on a cluster, tasks at a
            time.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address.
        WorkerError: Ray does not start.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    for name in ("time_ms", "timeout_ms"):
        os.environ.setdefault(f"RAY_grpc_client_keepalive_{name}", str(KEEPALIVE_MS))
    try:
        import ray
    except ImportError:
        instead = "use this process alone (--workers 0)" if address is None else "omit the address"
        setting = "workers" if address is None else "address"
        raise missing_package("Ray", "order", f", or {instead}", setting=setting) from None
    ours = not ray.is_initialized()
    if ours:
        _start(ray, address, workers)
    try:
        yield OnRay(ray, None if address is None else workers).run
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
                else "Check the address (ray start prints it), or omit it to use this machine.",
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
