"""PackedLoader: the batches of a rank, made ahead by worker processes, with exact state.

Its state is what the loop has taken, never what a worker has made ahead. Finite runs end on every
rank after the same step; see `streampack.job.ending`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_args, overload

import torch
from torch.utils.data import DataLoader

from streampack.arguments import explained, one_of, real_number, type_in_words, whole_number
from streampack.batch import BatchGroup, Item, PackedBatch
from streampack.dataset import PackedDataset
from streampack.deals.report_exchange import ReportExchange
from streampack.deals.sharing import Sharing
from streampack.errors import ConfigError, StateError
from streampack.job.connect import LONGEST_S, TIMEOUT_S
from streampack.job.ending import End, Ranks
from streampack.job.topology import Topology
from streampack.job.wrong_callers import refuse_bare_checkpointing, refuse_taking_ahead
from streampack.lane.config import LaneShare
from streampack.lane.state import LaneEnd
from streampack.leaves import METHODS, load
from streampack.metrics import Metrics
from streampack.run.feeds import feed_in_process
from streampack.run.prefetcher import DeviceCopies, Prefetcher
from streampack.run.rank import RankRun

if TYPE_CHECKING:
    from streampack.run.estimation import Estimate
    from streampack.run.provenance import SourceReport
    from streampack.sources.credits import Weights

logger = logging.getLogger(__name__)

Given = TypeVar("Given")  # of one iterator: the loader's items, or groups of them


class PackedLoader(DataLoader[Any], Generic[Item]):
    """Iterate a `PackedDataset` with worker processes.

    It is a torch DataLoader for what asks for one, as Lightning Fabric does. accelerate's
    ``prepare`` leaves it as it is. A new DataLoader with other samplers cannot be made out of it.

    Iterating goes on where the loop stopped: after a ``break``, after the last batch it got;
    after `load_state_dict`, after the state. After the last epoch it begins again with the same
    order, which follows from the seed and the place in the run alone. For several passes in
    different orders, give the dataset ``epochs=n`` and write one loop. One iterator is live at a
    time: the next one, or `load_state_dict`, ends it. Several loaders may share a dataset; each
    starts from the dataset's state and keeps its own.

    A finite run ends on every data-parallel rank after the same step. With an initialised process
    group its processes agree on it; all of them iterate, and leave a loop early, if at all, after
    the same step. Without one each ends when its lanes have ended; `SimulatedRanks` lets threads of
    one process agree.

    Args:
        dataset: what to load.
        num_workers: worker processes of torch's DataLoader, up to the number of the rank's lanes;
            0 makes batches in the loop's own process.
        prefetch_factor: batches each worker makes ahead; None is 16, which are small.
        multiprocessing_context: "fork", "spawn" or "forkserver"; None is Python's default.
        pin_memory: give batches in page-locked memory, where there is a device to copy them to.
        timeout: seconds to wait for the workers' next batch; 0 waits as long as they live.
        end: how a finite run ends. "drain" loses nothing: lanes that are dry before others give
            empty batches (padding only) in the steps in which another rank has one. "stop" leaves
            at the first rotation in which some lane has no batch, and counts what it leaves in
            `Metrics.left`.
        transform: makes of each `PackedBatch`, on its device, what iterating gives:
            ``lambda batch: batch.hf(model=model)`` for trainers that call ``model(**batch)``;
            ``PackedBatch.numpy`` for JAX. None gives the batch.
        device: copy batches there, each while the loop computes on the one before it; None leaves
            them on the CPU.
        ranks: who agrees: None finds the job's processes (see `streampack.job.connect`);
            `SimulatedRanks` are threads of one.
        rank_timeout_s: how long to wait in a step for another process of the job, which may hang
            or have left its loop. Longer than an evaluation or a checkpoint that one rank does
            alone; the same on all ranks.

    Raises:
        ConfigError: settings that cannot work; ValueError of those of a DataLoader.

    Raises (while iterating):
        WorkerError: a worker was killed or timed out. The loader can be iterated again, on one of
            several ranks, too: it goes on after the last batch that the loop got.
        RankError: another rank died, or starts another run or from another place.
        StreampackError: whatever the source or a hook raised in a worker.
    """

    dataset: PackedDataset
    _is_accelerate_prepared = True  # or accelerate would make another one of its dataset

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
                f"The dataset is {type_in_words(dataset)}.",
                "Pass PackedLoader(PackedDataset(source, seq_len=...)).",
                setting="dataset",
            )
        if device is not None and pin_memory:
            raise ConfigError(
                f"pin_memory is True and device is {device!r}, whose copies are pinned.",
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
        self._copies: DeviceCopies | None = None if device is None else DeviceCopies(device)
        self._pin_memory = pin_memory and torch.cuda.is_available()
        timeout_s = real_number("rank_timeout_s", rank_timeout_s, least=0.001, most=LONGEST_S)
        self._run = RankRun(
            dataset.plan, dataset._begins(), ranks=ranks, end=end, timeout_s=timeout_s
        )
        self._trains = not dataset._evaluates  # the batches of all ranks together are a step
        self._finished = False
        self._live: Prefetcher | None = None

    def check_worker_number_rationality(self) -> None:
        """Nothing: torch warns when workers start, of which there are no more than lanes."""

    def state_dict(self, *, after: Any = None, before: Any = None) -> dict[str, Any]:
        """JSON-able state of the run after a batch: a resumed run begins with the one behind it.

        Without arguments it is the state after the last batch that the loop got. That is right in
        the body of ``for batch in loader``. A loop that takes the next batch before it saves, as
        nanoGPT's does, names the batch that it holds: ``state_dict(before=batch)``.

        Args:
            after: the batch that was trained on last.
            before: the batch that the loop holds and has not trained on; a resumed run begins with
                it. None where the run has ended.

        Both take what the loop got: a batch or a copy of it on a device, the output of `transform`
        or a tensor in it, a group of `accumulate`. It is of the last 16 batches.

        Raises:
            StateError: the batch is not one of the last 16; torch.distributed.checkpoint asks,
                which takes a `DistributedState`; another thread takes the batches, so
                that it is not known which of them the loop has got.
        """
        refuse_bare_checkpointing()
        if after is not None and before is not None:
            raise ConfigError("after= and before= are both given.", "Pass one.", setting="before")
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
        """Go on after a saved state at the next iteration.

        Args:
            state: see `PackedDataset.load_state_dict`.
            allow: see there.

        Raises:
            StateError: the state is of another run; the message names the field.
        """
        self._run.go_on(*self.dataset._resumed(state, allow=allow))
        self._finished = False
        self._stop()

    def estimate_steps(self) -> Estimate | None:
        """About how many steps the run has, from its beginning, and within what error.

        Before a fiftieth of the corpus is read it is what `PackedDataset.estimate_steps` says, for
        which documents are read once. After that it follows from what this rank's lanes have found
        (ranks may differ a little), and costs nothing. It is None where that is: of endless runs
        and of what has no known length, as generators.
        """
        return self._run.estimate_steps()

    @overload
    def progress(self, over: None = None, *, every_s: float = 60.0) -> Iterator[Item]: ...

    @overload
    def progress(self, over: Iterable[Given], *, every_s: float = 60.0) -> Iterator[Given]: ...

    def progress(
        self, over: Iterable[Any] | None = None, *, every_s: float = 60.0
    ) -> Iterator[Any]:
        """Iterate, and show how far the run is: batches, tokens, tokens/s, waiting, time left.

        For a mixture it also shows by how much a source's share differs from its weight, at most.

        ``for batch in loader.progress():``. A terminal or a notebook shows a bar, which needs rich
        (the extra ``cli``); elsewhere lines are written to standard error. Only rank 0 shows it.
        Tokens are those of this rank since the loader was made; rates are those of the last
        minute. The number of steps is that of `estimate_steps`, which first reads some thousand
        documents.

        Args:
            over: what is iterated, for example ``loader.accumulate(4)``; None is the loader.
            every_s: seconds between two lines where there is no bar.
        """
        items = self if over is None else over
        topology = self._run.plan.topology
        if topology.rank or Topology.detect().rank:  # the latter of all processes of the job
            return iter(items)
        shown: Iterator[Any] = load(METHODS["with_progress"])(items, self._run, every_s=every_s)
        return shown

    def metrics(self) -> Metrics:
        """Totals over the batches that the loop has taken from this loader."""
        return self._run.metrics + Metrics()

    def by_source(self) -> SourceReport:
        """What the loop has taken of each source of a mixture, beside what the weights ask for.

        ``print(loader.by_source())`` is a table of expected and observed shares, tokens, documents,
        loss tokens and epochs. It is of this rank, since the loader was made; only epochs are since
        the beginning of the run.
        """
        return self._run.by_source()

    def __repr__(self) -> str:
        return (
            f"PackedLoader({self.dataset!r}, num_workers={self.num_workers}, "
            f"next_batch={self._run.state.next_batch})"
        )

    def __len__(self) -> int:
        raise TypeError(
            "PackedLoader has no length. How many rows documents fill is known when they are "
            "packed. Ask loader.estimate_steps() for about how many there will be. A Trainer takes "
            "it as loader= of streampack.trainers.TrainerMixin, a DataLoader its dataset."
        )

    def __bool__(self) -> bool:
        return True  # not by its length

    def __iter__(self) -> Iterator[Item]:  # type: ignore[override]
        return self._iterate(lambda ahead: ahead.batches(self._transformed, counted=self._trains))

    def accumulate(self, batches: int) -> Iterator[BatchGroup[Item]]:
        """Iterate in groups of `batches`, for gradient accumulation.

        A group says how many loss tokens its batches have on all data-parallel ranks together.
        `PackedBatch.loss` and `.hf()` divide by it as they must where gradients are averaged over
        the ranks, as by DDP and FSDP: add the losses of a group up, and do not divide again. That
        number is one sum over ranks, which travels while the group before is used. The last
        group of a finite run may be shorter, equally on all ranks. All batches of the group at
        hand count as taken.

        Args:
            batches: per group, equal on all ranks.

        Raises:
            ConfigError: `batches` is no whole number of at least one.
        """
        count = whole_number("batches", batches)
        return self._iterate(lambda ahead: ahead.groups(count, self._transformed))

    def skip(self, batches: int) -> int:
        """Step over the next `batches` batches of this rank, as after a spike in the loss.

        All ranks do it after the same step. The batches count as consumed: the state goes on
        after them and records their numbers (``state["stepped_over"]``), and `Metrics` counts
        their tokens apart.

        Returns:
            How many there were: fewer than `batches` at the end of the run.

        Raises:
            ConfigError: `batches` is no whole number, or negative.
        """
        batches = whole_number("batches", batches, least=0)
        if self._finished:
            return 0
        live = self._live
        ahead = live if live is not None else self._open()
        first, found = self._run.state.next_batch, 0
        while found < batches and ahead.get(1):
            ahead.step_over()
            found += 1
        self._run.step_over(first)
        if live is None:
            self._stop()
        return found

    def set_weights(self, weights: Weights, *, from_step: int | None = None) -> None:
        """Mix the sources of the run's `Mixture` by other weights from a step on.

        All ranks call it after the same step with the same numbers. It may be called inside the
        loop, which goes on. Batches made ahead are dropped and made again, so that it costs
        as much as a resume. Each lane draws by the new weights from its first round on that
        begins with that step or later; what waits in its window comes first. So the batches are
        the same for any number of ranks and workers, and the state records the change.

        Args:
            weights: by name, one for every source, as for `Mixture`. They stay constant up to the
                next change.
            from_step: a step from the beginning of the run, counted as ranks are now; None is the
                one that comes next. If ranks share batches, whole rounds of the lanes wait for it.

        Raises:
            ConfigError: the source is no mixture, the run has an order, the weights are not of
                these sources or cannot be shares, or the step is over.

        Raises (in the next step):
            RankError: the ranks gave different numbers, or this one was alone in calling it. In
                the latter case the others raise one step later, after the batch that they had
                asked about before.
        """
        if self._finished:
            self._begin_again()
        self._run.set_weights(weights, from_step)
        if self._live is not None:
            self._live.go_on(self._batches())

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
        """Go back to the beginning, and to the mixture's own weights."""
        self._run.go_on(self._run.plan, self._run.plan.start())
        self._finished = False

    def _batches(self) -> Generator[PackedBatch, None, None]:
        return self._run.batches(self._feed, processes=self.num_workers > 0)

    def _feed(
        self, share: LaneShare, sharing: Sharing, exchange: ReportExchange
    ) -> Iterable[PackedBatch | LaneEnd]:
        """Who makes the batches: worker processes, or this process."""
        if self.num_workers:
            from streampack.run.workers import WorkerSettings, feed_from_workers

            settings = WorkerSettings(
                num_workers=self.num_workers,
                prefetch_factor=self.prefetch_factor or 1,
                timeout_s=self.timeout,
                context=self.multiprocessing_context,
            )
            return feed_from_workers(share, sharing, settings)
        return feed_in_process(share, sharing, exchange)

    def _transformed(self, batch: PackedBatch) -> Item:
        if self.transform is None:
            return cast(Item, batch)
        item = self.transform(batch)
        self._run.transformed(batch, item)
        return item

    def _iterate(
        self, items: Callable[[Prefetcher], Iterator[Given]]
    ) -> Generator[Given, None, None]:
        """What `items` gives of one iterator, which is live until the loop leaves it."""
        ahead = self._open()
        try:
            yield from items(ahead)
            self._finished = True
            one = self._run.plan.config.epochs == 1
            self._run.say_lost("of the epoch" if one else "of the run")
        finally:
            if self._live is ahead and not ahead.is_interrupted:
                self._stop()

    def _stop(self) -> None:
        """End the live iterator, and its workers, if there is one."""
        live, self._live = self._live, None
        if live is not None:
            live.end()
