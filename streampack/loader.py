"""PackedLoader: the batches of a rank, made ahead by worker processes, with exact state.

The state covers the batches that the loop has taken, never batches made ahead by workers. Finite
runs end on every rank after the same step; see `streampack.job.ending`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_args, overload

import torch
from torch.utils.data import DataLoader

from streampack.arguments import (
    Explained,
    explained,
    one_of,
    real_number,
    type_in_words,
    whole_number,
)
from streampack.batch import BatchGroup, Item, PackedBatch
from streampack.dataset import PackedDataset
from streampack.errors import ConfigError, StateError
from streampack.job.connect import LONGEST_S, TIMEOUT_S
from streampack.job.ending import End, Ranks
from streampack.job.topology import Topology
from streampack.job.wrong_callers import refuse_bare_checkpointing, refuse_taking_ahead
from streampack.metrics import Metrics
from streampack.run.feeds import InProcess
from streampack.run.plan import resume_run
from streampack.run.prefetcher import Prefetcher
from streampack.run.rank import run_of

if TYPE_CHECKING:
    from streampack.forecasts.estimation import Estimate
    from streampack.forms.device_copies import DeviceCopies
    from streampack.mixtures.by_source import SourceReport
    from streampack.mixtures.token_shares import Weights

logger = logging.getLogger(__name__)

Given = TypeVar("Given")  # items of an iterator: the loader's items, or groups of them


class PackedLoader(Explained, DataLoader[Any], Generic[Item]):
    """Load the batches of a `PackedDataset`, made ahead by worker processes.

    Example:
        >>> from streampack import PackedDataset, PackedLoader
        >>> loader = PackedLoader(PackedDataset([[1, 2, 3]] * 100, seq_len=8, batch_size=2))
        >>> for batch in loader:
        ...     state = loader.state_dict()  # after a training step on batch
        ...     break
        >>> state["next_batch"]
        1

    The loader is a torch DataLoader, for libraries that require one, such as Lightning Fabric.
    accelerate's ``prepare`` leaves it unchanged. It cannot be rebuilt with other samplers.

    Iteration continues where the loop stopped: after a ``break`` with the batch behind the last one
    received, after `load_state_dict` with the batch behind the state. After the last epoch it
    restarts with the same order, which depends only on the seed and the position in the run. For
    several passes in different orders, give the dataset ``epochs=n`` and write one loop. One
    iterator is live at a time: the next one, or `load_state_dict`, ends it. Several loaders may
    share a dataset; each starts from the dataset's state and keeps its own.

    A finite run ends on every data-parallel rank after the same step. The processes of an
    initialised process group agree on it: all of them must iterate, and must leave a loop early
    only after the same step. Without a process group each ends when its lanes have ended;
    `SimulatedRanks` lets threads of one process agree.

    Args:
        dataset: dataset to load.
        num_workers: worker processes, up to the number of the rank's lanes; 0 makes batches in the
            loop's process. Use workers if tokenizing or reading is slower than a training step.
        prefetch_factor: batches that each worker makes ahead; None is 16, because batches are
            sent in compact form.
        multiprocessing_context: "fork", "spawn" or "forkserver"; None is Python's default.
        pin_memory: give batches in page-locked memory, if there is a device to copy them to.
        timeout: seconds to wait for the workers' next batch; 0 waits as long as they live.
        end: how a finite run ends. "drain" loses nothing: lanes that end early give empty batches
            (padding only) in steps in which another rank has a batch. "stop" ends at the first
            rotation in which a lane has no batch, and counts the remainder in `Metrics.left`.
        transform: converts each `PackedBatch`, on its device, to the item that the loop receives:
            ``lambda batch: batch.hf(model=model)`` for trainers that call ``model(**batch)``;
            ``PackedBatch.numpy`` for JAX. None gives the batch.
        device: device to copy batches to, each while the loop computes on the one before it; None
            leaves them on the CPU.
        ranks: connection of the ranks that agree: None detects the job's processes (see
            `streampack.job.connect`); `SimulatedRanks` connects threads of one process.
        rank_timeout_s: seconds to wait in a step for another process of the job, which may hang or
            have left its loop. Choose more than the time of an evaluation or a checkpoint on one
            rank alone; the same on all ranks.

    Raises:
        ConfigError: settings cannot work.
        ValueError: torch's DataLoader refuses a setting.

    Raises (while iterating):
        WorkerError: a worker was killed or timed out. The loader can be iterated once more, also on
            one of several ranks: it continues after the last batch that the loop received.
        RankError: another rank died, or started another run or at another batch.
        StreampackError: any error of the source or a hook in a worker.
    """

    dataset: PackedDataset
    num_workers: int = 0
    _is_accelerate_prepared = True  # otherwise accelerate would wrap the dataset in another loader

    @explained
    def __init__(
        self,
        dataset: PackedDataset,
        *,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        multiprocessing_context: Any = None,
        pin_memory: bool = False,
        timeout: float = 0,
        end: End = "drain",
        transform: Callable[[PackedBatch], Item] | None = None,
        device: torch.device | str | None = None,
        ranks: Ranks | None = None,
        rank_timeout_s: float = TIMEOUT_S,
    ) -> None:
        one_of("end", end, get_args(End))
        if not isinstance(dataset, PackedDataset):
            raise ConfigError(
                f"dataset must be a PackedDataset, got {type_in_words(dataset)}.",
                "Pass PackedLoader(PackedDataset(source, seq_len=...)).",
                setting="dataset",
            )
        if device is not None and pin_memory:
            raise ConfigError(
                f"pin_memory must be False with device={device!r}, since its copies are pinned.",
                "Leave out pin_memory.",
                setting="pin_memory",
            )
        self.transform = transform
        num_workers = whole_number("num_workers", num_workers, least=0)
        if prefetch_factor is not None:
            prefetch_factor = whole_number("prefetch_factor", prefetch_factor)
        elif num_workers:
            prefetch_factor = 16
        super().__init__(
            dataset,
            batch_size=None,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            multiprocessing_context=multiprocessing_context,
            pin_memory=pin_memory,
            timeout=timeout,
        )
        self._copies: DeviceCopies | None = None
        if device is not None:
            from streampack.forms.device_copies import DeviceCopies

            self._copies = DeviceCopies(device)
        self._pin_memory = pin_memory and torch.cuda.is_available()
        timeout_s = real_number("rank_timeout_s", rank_timeout_s, least=0.001, most=LONGEST_S)
        self._run = run_of(
            dataset.plan, dataset._begins(), ranks=ranks, end=end, timeout_s=timeout_s
        )
        self._trains = not dataset._evaluates  # the batches of all ranks together are a step
        self._finished = False
        self._live: Prefetcher | None = None

    def check_worker_number_rationality(self) -> None:
        """Do nothing: torch checks when workers start, and there are never more than lanes."""

    def state_dict(self, *, after: Any = None, before: Any = None) -> dict[str, Any]:
        """Return the JSON-able state after a batch; a resumed run begins with the next batch.

        Without arguments it is the state after the last batch that the loop received, which is
        right in the body of ``for batch in loader``. A loop that takes the next batch before it
        saves, such as nanoGPT's, names the batch that it holds: ``state_dict(before=batch)``.

        Args:
            after: the batch that was trained on last.
            before: the batch that the loop holds and has not trained on; a resumed run begins with
                it. None if the run has ended.

        Both accept any item that the loop received: a batch or a copy of it on a device, the output
        of `transform` or a tensor in it, a group of `accumulate`, from the last 16 batches.

        Raises:
            StateError: the batch is not one of the last 16; torch.distributed.checkpoint calls the
                method (pass it a `DistributedState`); or another thread takes the batches, so that
                the loop's last batch is unknown.
        """
        refuse_bare_checkpointing()
        if after is not None and before is not None:
            raise ConfigError(
                "Only one of after= and before= may be set, got both.",
                "Pass one.",
                setting="before",
            )
        if after is None and before is None:
            self._check_thread()
        return self._run.state_dict(after, before)

    def _check_thread(self) -> None:
        """Raise `StateError` if a thread other than this one takes batches now."""
        thread = None if self._live is None else self._live.thread
        if thread is None or thread in (threading.main_thread(), threading.current_thread()):
            return
        if thread.is_alive():
            raise StateError(
                f'The thread "{thread.name}" takes batches ahead of the loop that saves.',
                "Pass state_dict(after=batch), the batch that was trained on last.",
                setting="after",
            )

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Resume from a saved state at the next iteration.

        Args:
            state: saved state; see `PackedDataset.load_state_dict`.
            allow: settings that may differ; see `PackedDataset.load_state_dict`.

        Raises:
            StateError: the state belongs to another run; the message names the field.
        """
        dataset = self.dataset
        self._run.continue_from(*resume_run(dataset._config, dataset.topology, state, allow))
        self._finished = False
        self._stop()

    def estimate_steps(self) -> Estimate | None:
        """Estimate the steps of the whole run, with an error.

        Until a fiftieth of the corpus is read, this is `PackedDataset.estimate_steps`, which reads
        a sample once. After that it follows from the reports of this rank's lanes (ranks may differ
        a little), and costs nothing, except for compressed lines. Return None for endless runs and
        for sources without a known length, such as generators.
        """
        from streampack.forecasts.estimation import estimate_of

        return estimate_of(self._run)

    @overload
    def progress(self, over: None = None, *, every_s: float = 60.0) -> Iterator[Item]: ...

    @overload
    def progress(self, over: Iterable[Given], *, every_s: float = 60.0) -> Iterator[Given]: ...

    def progress(
        self, over: Iterable[Any] | None = None, *, every_s: float = 60.0
    ) -> Iterator[Any]:
        """Iterate, and show how far the run is: batches, tokens, tokens/s, waiting, time left.

        For a mixture it also shows the largest difference between a source's share and its weight.

        ``for batch in loader.progress():``. A terminal or a notebook shows a bar, which needs rich
        (the extra ``cli``); elsewhere lines are written to standard error. Only rank 0 shows it.
        Tokens count for this rank since the loader was made; rates cover the last minute. The
        number of steps comes from `estimate_steps`, which first reads some thousand documents.

        Args:
            over: iterable to follow, for example ``loader.accumulate(4)``; None is the loader.
            every_s: seconds between two lines if there is no bar.
        """
        items = self if over is None else over
        topology = self._run.plan.topology
        if topology.rank or Topology.detect().rank:  # the second covers all processes of the job
            return iter(items)
        from streampack.forecasts.progress import with_progress

        return with_progress(items, self._run, every_s=every_s)

    def metrics(self) -> Metrics:
        """Totals over the batches that the loop has taken from this loader."""
        return self._run.metrics + Metrics()

    def by_source(self) -> SourceReport:
        """Report the tokens taken from each source of a mixture, next to the shares by weight.

        ``print(loader.by_source())`` shows a table of expected and observed shares, tokens,
        documents, loss tokens and epochs. It covers this rank since the loader was made; only
        epochs count from the beginning of the run.
        """
        from streampack.mixtures.by_source import by_source

        return by_source(self._run)

    def __repr__(self) -> str:
        return (
            f"PackedLoader({self.dataset!r}, num_workers={self.num_workers}, "
            f"next_batch={self._run.state.next_batch})"
        )

    def __iter__(self) -> Iterator[Item]:  # type: ignore[override]
        return self._iterate(lambda ahead: ahead.batches(self._transformed, counted=self._trains))

    def accumulate(self, batches: int) -> Iterator[BatchGroup[Item]]:
        """Iterate in groups of `batches`, for gradient accumulation.

        A group has the number of loss tokens of its batches on all data-parallel ranks together.
        `PackedBatch.loss` and `.hf()` divide by it correctly for gradients averaged over ranks, as
        in DDP and FSDP: sum the losses of a group, and do not divide them any further. The number
        is one sum over ranks, which overlaps the use of the previous group. The last group of a
        finite run may be shorter, equally on all ranks. All batches of the current group count as
        taken.

        Args:
            batches: batches per group, equal on all ranks.

        Raises:
            ConfigError: `batches` is not an integer of at least 1.
        """
        count = whole_number("batches", batches)
        return self._iterate(lambda ahead: ahead.groups(count, self._transformed))

    def skip(self, batches: int) -> int:
        """Skip the next `batches` batches of this rank, for example after a spike in the loss.

        All ranks must call it after the same step. The batches count as consumed: the state
        continues after them and records their indices (``state["stepped_over"]``), and `Metrics`
        counts their tokens separately.

        Returns:
            Number of skipped batches: fewer than `batches` at the end of the run.

        Raises:
            ConfigError: `batches` is not an integer, or negative.
        """
        batches = whole_number("batches", batches, least=0)
        if self._finished:
            return 0
        live = self._live
        ahead = live if live is not None else self._open()
        first, skipped = self._run.state.next_batch, 0
        while skipped < batches and ahead.get(1):
            ahead.step_over()
            skipped += 1
        self._run.step_over(first)
        if live is None:
            self._stop()
        return skipped

    def set_weights(self, weights: Weights, *, from_step: int | None = None) -> None:
        """Mix the sources of the run's `Mixture` by other weights from a step on.

        All ranks must call it after the same step with the same weights. It may be called inside
        the loop, after every step: a call mostly takes below 0.5 ms, and no batch that workers
        have made is dropped. The change belongs to a batch of the run, which follows from the step
        of the call alone: ten turns of all lanes after the next batch, which no lane has begun.
        Each lane draws by the new weights from its first round that begins at that batch or later,
        or by the mean of several changes since its last round; documents in its window come first,
        with an order its ordering window. So shares follow weights that change at every step, and
        the batches are the same for any number of ranks and workers. The state records the changes
        that are still ahead, and of the last 32 turns of all lanes.

        Args:
            weights: one weight for every source by name, as for `Mixture`. They stay constant until
                the next change.
            from_step: first step with the new weights, counted from the beginning of the run with
                the current number of ranks; None is the first step that no lane has begun. With
                an earlier one, batches made ahead are dropped and remade, which costs as much as a
                resume; so it does with large groups (`accumulate`), with more ranks than lanes, and
                on several ranks in loops that count no loss tokens (evaluation, the Trainer of
                Hugging Face). If ranks share batches, a given step waits for whole rounds of the
                lanes.

        Raises:
            ConfigError: the source is not a mixture, the weights name other sources or cannot be
                shares, or the step is past.

        Raises (in the next step):
            RankError: the ranks passed different weights, or only this rank called the method. In
                the second case the other ranks raise one step later, after the batch that they had
                asked about before.
        """
        from streampack.mixtures.weights import set_weights

        if self._finished:
            self._begin_again()
        set_weights(self, weights, from_step)

    # ------------------------------------------------------------------ one iterator at a time

    def _open(self) -> Prefetcher:
        self.dataset._check_topology()
        if not self.dataset._evaluates:
            refuse_taking_ahead()
        if self._live is not None and self._live.is_interrupted:
            self._live.is_interrupted = False
            return self._live
        if self._finished:
            config = self._run.plan.config
            if config.shuffle:
                logger.warning(
                    "The run of %s epochs has ended, and this loop begins it again with the same "
                    "order. Use PackedDataset(epochs=n) and one loop for passes in other orders.",
                    config.epochs,
                )
            self._begin_again()
        self._stop()
        self._live = Prefetcher(self._run, self._batches(), self._copies, self._pin_memory)
        return self._live

    def _begin_again(self) -> None:
        """Return to the beginning of the run, and to the original weights of the mixture."""
        self._run.continue_from(self._run.plan, self._run.plan.start())
        self._finished = False

    def _batches(self) -> Generator[PackedBatch, None, None]:
        if not self.num_workers:
            return self._run.batches(InProcess())
        from streampack.workers.feed import WorkerFeed

        return self._run.batches(WorkerFeed(self))

    def _transformed(self, batch: PackedBatch) -> Item:
        if self.transform is None:
            return cast(Item, batch)
        item = self.transform(batch)
        self._run.transformed(batch, item)
        return item

    def _iterate(
        self, items: Callable[[Prefetcher], Iterator[Given]]
    ) -> Generator[Given, None, None]:
        """Yield `items` of a new iterator, which is live until the loop leaves it."""
        ahead = self._open()
        try:
            yield from items(ahead)
            self._finished = True
            single = self._run.plan.config.epochs == 1
            self._run.log_lost("of the epoch" if single else "of the run")
        finally:
            if self._live is ahead and not ahead.is_interrupted:
                self._stop()

    def _stop(self) -> None:
        """End the live iterator, and its workers, if there is one."""
        live, self._live = self._live, None
        if live is not None:
            live.end()
