"""Loader: training steps from a queue, divided among ranks, with an exact state."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from streampack.arguments import Explained, explained, one_of, type_in_words, whole_number
from streampack.distributed.exchange import ProcessRanks
from streampack.errors import ConfigError, RankError, first_line
from streampack.job.connect import TIMEOUT_S
from streampack.job.topology import Topology
from streampack.packing.overflow import require_seq_len
from streampack.rollouts.queue import Queue
from streampack.rollouts.step import Step, steps_of_ranks

logger = logging.getLogger(__name__)

WARN_AFTER_S = 30.0  # a longer wait for answers is logged, once
_PAUSE_S = 20.0  # rank 0 tells the others so often that it is at work
_END = ()  # sent after the last step


class Loader(Explained):
    """The training steps of a queue, each as micro-batches of this rank.

    All ranks iterate it. Rank 0 waits for the groups of a step, plans it with `pack`, and sends
    every other rank the sequences of its micro-batches, through torch.distributed. All ranks have
    the same number of micro-batches in a step.

    Args:
        queue: the queue, in the first process; None in all others.
        seq_len: slots of a row; a micro-batch is one row.
        layout: "tree" stores the common prefix of a group once; see `pack`.
        topology: this process's data-parallel rank; None detects it. Ranks that hold parts of one
            model share one, and get the same rows.
        pad_id: see `MicrobatchPlan.batches`.
        pad_to: see `MicrobatchPlan.batches`.
        processor: the model's processor, if answers have images; see `PackedDataset`.
        passes: times that the loop iterates each step, such as PPO's epochs; the step counts as
            trained at the end of the last one.
        rank_timeout_s: seconds to wait for a rank that does not respond. Waiting for answers and
            planning do not count; a rank's forward and backward passes do, and their compilation.
        options: `cost`, `align`, `order`, `seed` and `microbatches` of `pack`.

    Raises:
        ConfigError: an argument is invalid, or the queue is in another process than the first.
    """

    @explained
    def __init__(
        self,
        queue: Queue | None,
        *,
        seq_len: int,
        layout: Literal["documents", "tree"] = "documents",
        topology: Topology | None = None,
        pad_id: int = 0,
        pad_to: int | None = None,
        processor: Any = None,
        passes: int = 1,
        rank_timeout_s: float = TIMEOUT_S,
        **options: Any,
    ) -> None:
        self.topology = Topology.detect() if topology is None else topology
        one_of("layout", layout, ("documents", "tree"))
        self._layout = layout
        self._options = {"seq_len": require_seq_len(seq_len, "error"), **options}
        self._settings = {"pad_id": pad_id, "pad_to": pad_to, "processor": processor}
        self._passes = whole_number("passes", passes)
        self._ranks: ProcessRanks | None = None
        self._timeout_s = rank_timeout_s
        self._queue = queue
        self._owns = _process() == 0
        if self._owns != isinstance(queue, Queue):
            raise ConfigError(
                "queue must be a Queue in the first process and None in all others, got "
                f"{type_in_words(queue)} in process {_process()}.",
                "Make the queue if torch.distributed.get_rank() is 0.",
                setting="queue",
            )
        if self.topology.world_size > _processes():
            raise ConfigError(
                f"{self.topology.world_size} ranks need as many processes of torch.distributed, "
                f"got {_processes()}.",
                "Call torch.distributed.init_process_group() before.",
                setting="topology",
            )

    def __iter__(self) -> Iterator[Step]:
        if _processes() > 1 and self._ranks is None:
            self._ranks = ProcessRanks(self.topology, timeout_s=self._timeout_s)
        while True:
            step = self._alone() if self._ranks is None else self._received(self._ranks)
            if step is None:
                return
            on_last = None if self._queue is None else self._queue.finish_step
            yield replace(step, settings=self._settings, passes=self._passes, on_last=on_last)

    def _alone(self) -> Step | None:
        steps = self._planned_steps(lambda: None)
        return steps[0] if steps else None

    def _received(self, ranks: ProcessRanks) -> Step | None:
        """Take part in the exchanges up to the next step."""
        parts: Sequence[Any] | None = None
        if self._queue is not None:
            count = self.topology.world_size
            try:
                with _telling(ranks, count, self._pause_s) as check:
                    parts = self._planned_steps(check) or [_END] * count
            except RankError:
                raise
            except Exception as error:
                ranks.scatter([f"{type(error).__name__}: {first_line(error)}"] * count)
                raise
        began = time.perf_counter()
        while (part := ranks.scatter(parts)) is None:
            pass  # rank 0 is at work
        if isinstance(part, str):
            raise RankError(
                f"The first process must make the next step, and it failed: {part}",
                "See its error, and resume all ranks.",
            )
        if part == _END:
            return None
        step: Step = replace(part, send_s=time.perf_counter() - began if parts else 0.0)
        return step

    @property
    def _pause_s(self) -> float:
        return min(_PAUSE_S, self._timeout_s / 4)

    def _planned_steps(self, check: Callable[[], None]) -> list[Step]:
        """Wait for the groups of the next step; return the ranks' parts, [] after the last step.

        Args:
            check: called while answers are missing; raises `RankError` if another rank died.
        """
        queue, began, warned = self._queue, time.monotonic(), False
        assert queue is not None
        while (groups := queue.next_step(self._pause_s)) is None:
            if not warned and time.monotonic() - began > WARN_AFTER_S:
                warned = True
                logger.warning("waiting: %s", _why(queue))
            check()
        if not groups:
            return []
        return steps_of_ranks(
            queue.steps,
            groups,
            ranks=self.topology.world_size,
            layout=self._layout,
            options=self._options,
        )

    def published(self, version: int, *, steps: int | None = None) -> None:
        """Announce that samplers have the weights after the last step; frees its slots.

        Call it in the first process; in the others it does nothing.

        Args:
            version: policy version of the weights, as in `Answer.version`.
            steps: number of steps of the run that these weights have been trained on, for weights
                that arrive while later steps are trained; None is all steps handed out to the end.
        """
        version = whole_number("version", version, least=0)
        if steps is not None:
            steps = whole_number("steps", steps, least=0)
        if self._queue is not None:
            self._queue.publish(version, self._queue.steps if steps is None else steps)

    def state_dict(self) -> dict[str, Any]:
        """Return the JSON-able state of the run in the first process, {} in the others.

        A step counts as trained once its last micro-batch is handed out.
        """
        return {} if self._queue is None else self._queue.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the state of the first process; in the other processes it does nothing.

        Prompts that were in flight are redispatched, first and in their order. The number of
        ranks and samplers may change.

        Raises:
            StateError: it is damaged, or of other prompts.
        """
        if self._queue is not None:
            self._queue.load_state(state)

    def saved(self, state: Mapping[str, Any]) -> None:
        """Announce that a state is safe; drops spooled groups that later resumes do not need.

        Call it in the first process; in the others it does nothing.
        """
        if self._queue is not None:
            self._queue.saved(state)


@contextmanager
def _telling(ranks: ProcessRanks, count: int, pause_s: float) -> Iterator[Callable[[], None]]:
    """Tell the other ranks in a thread that this one is at work: it waits, compiles or plans.

    Yields:
        A function that raises the error of the thread, if there is one.
    """
    over, errors = threading.Event(), []

    def tell() -> None:
        while not over.wait(pause_s):
            try:
                ranks.scatter([None] * count)
            except RankError as error:
                errors.append(error)
                return

    def check() -> None:
        if errors:
            raise errors[0]

    thread = threading.Thread(target=tell, name="streampack-rollouts", daemon=True)
    thread.start()
    try:
        yield check
    finally:
        over.set()
        thread.join()
    check()


def _why(queue: Queue) -> str:
    now = queue.metrics()
    if now.starved:
        return (
            "the samplers may not go on before a step is published; call loader.published(version) "
            "after each step, or raise steps_ahead of the queue"
        )
    return (
        f"the next step lacks answers; {now.in_flight} groups are in flight, {now.finished} of "
        "them finished"
    )


def _process() -> int:
    import torch.distributed as dist

    connected = dist.is_available() and dist.is_initialized()
    return dist.get_rank() if connected else 0


def _processes() -> int:
    import torch.distributed as dist

    connected = dist.is_available() and dist.is_initialized()
    return dist.get_world_size() if connected else 1
