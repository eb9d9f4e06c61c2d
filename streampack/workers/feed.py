"""A rank's batches as its lanes give them, made by worker processes.

Each worker runs some of the lanes and sends their batches in rotation; the feed asks the worker
that owns the next lane, so the order is the same for any number of workers, none included.
"""

from __future__ import annotations

import logging
import multiprocessing
import threading
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from streampack.arguments import one_of, real_number, whole_number
from streampack.batch import PackedBatch
from streampack.lane.batch import LaneEnd
from streampack.lane.config import LaneShare
from streampack.lane.sharing import Sharing
from streampack.lane.warm_up import warm_up
from streampack.workers.clean_up import whole_clean_up
from streampack.workers.worker_handle import WorkerHandle

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How worker processes are run; see `PackedLoader`."""

    num_workers: int
    prefetch_batches: int
    context: Any
    timeout_s: float | None

    @classmethod
    def checked(
        cls,
        num_workers: int,
        prefetch_batches: int,
        start_method: str | None,
        timeout_s: float | None,
    ) -> WorkerSettings:
        """These settings; raises `ConfigError` where workers cannot be run so."""
        none = "There is no such number of processes or batches."
        if start_method is not None:
            methods = multiprocessing.get_all_start_methods()
            consequence = "Python cannot start worker processes that way here."
            one_of("multiprocessing_context", start_method, methods, consequence)
        if timeout_s is not None:
            timeout_s = real_number(
                "timeout_s",
                timeout_s,
                "No worker could be waited for so long.",
                least=0.001,
                most=threading.TIMEOUT_MAX,
                otherwise="or None (as long as the worker lives)",
            )
        return cls(
            num_workers=whole_number("num_workers", num_workers, none, least=0),
            prefetch_batches=whole_number("prefetch_batches", prefetch_batches, none),
            context=multiprocessing.get_context(start_method),
            timeout_s=timeout_s,
        )


def feed_from_workers(
    share: LaneShare, sharing: Sharing, settings: WorkerSettings
) -> Generator[PackedBatch | LaneEnd, None, None]:
    """A rank's batches of some lanes, from workers that live as long as this generator.

    A lane without any gives its end, once.
    """
    warm_up(share.config)
    lanes = list(share.states)
    count = min(settings.num_workers, len(lanes))
    if count < settings.num_workers:
        logger.warning(
            "num_workers is %d, more than this rank's lanes (%d), each of which one worker runs: "
            "%d are started. Pass num_workers=%d; or, if reading is too slow and the corpus large "
            "enough, lanes= of the dataset.",
            settings.num_workers,
            count,
            count,
            count,
        )
    workers: list[WorkerHandle] = []
    try:
        for number in range(count):
            own = {lane: share.states[lane] for lane in lanes[number::count]}
            pipes = [worker.receiver for worker in workers]
            workers.append(
                WorkerHandle(
                    number,
                    replace(share, states=own),
                    sharing,
                    settings.context,
                    settings.prefetch_batches,
                    pipes,
                )
            )
        wants_fields = threading.Event()
        # Threads start after the last fork, so that no child is forked beside them.
        for worker in workers:
            worker.start_receiving(wants_fields)
        running = {lane: workers[i % count] for i, lane in enumerate(lanes)}
        while running:
            for lane in list(running):
                item = running[lane].receive(settings.timeout_s)
                assert item.lane == lane, "a worker's lanes rotate as the loader's do"
                if isinstance(item, LaneEnd) or not item.has_next:
                    del running[lane]
                yield item
    finally:
        with whole_clean_up():
            for worker in workers:
                worker.stop()
