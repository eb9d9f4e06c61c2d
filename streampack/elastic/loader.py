"""ElasticLoader: the steps of a run on ranks that come and go."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from streampack.accounts.leaf import count
from streampack.arguments import explained, type_in_words, whole_number
from streampack.batch import BatchGroup, Item
from streampack.dataset import PackedDataset
from streampack.elastic.members import Members, Single
from streampack.elastic.plan import ElasticPlan
from streampack.elastic.run import ElasticRun, Membership
from streampack.errors import ConfigError, StateError
from streampack.job.topology import Topology
from streampack.loader import PackedLoader
from streampack.run.plan import RunPlan, resume_run
from streampack.run.prefetcher import Prefetcher
from streampack.run.state import named


class ElasticLoader(PackedLoader[Item]):
    """Load the steps of a run on ranks that come and go while it runs.

    A step has the same batches on any number of ranks: the next `step_batches` batches of the run.
    They are divided among the ranks that are alive, so some ranks take several. The sequence of
    batches equals a run that nobody ever left.

    Example:
        >>> from streampack import PackedDataset
        >>> from streampack.elastic import ElasticLoader
        >>> dataset = PackedDataset([[1, 2, 3]] * 100, seq_len=8, batch_size=2, lanes=4)
        >>> loader = ElasticLoader(dataset, step_batches=4)
        >>> loader.set_ranks(0, 1)  # a single rank; `members` connects more
        >>> for step in loader:
        ...     print(len(step))  # batches of this rank, over which gradients are added
        ...     break
        4

    Each step is a `BatchGroup`, as from `PackedLoader.accumulate`: sum the losses of its batches,
    average the gradients over ranks. All ranks have as many batches in a step; a rank with fewer
    gets empty ones (padding only).

    After every step each rank knows the states of all lanes, some kilobytes each, so `state_dict`
    is the state of the whole run on any rank. Any `PackedLoader` can resume from it, with
    `merge_states` from none.

    Args:
        dataset: dataset to load, with ``lanes=``: at least as many as there may be ranks, and best
            a multiple of `step_batches`, which divides steps most evenly.
        step_batches: batches of a step over all ranks; 8 if up to eight ranks shall take one each.
        options: as for `PackedLoader`: `num_workers`, `prefetch_factor`, `multiprocessing_context`,
            `timeout`, `pin_memory`, `transform`, `device`.

    Raises:
        ConfigError: settings cannot work.

    Raises (while iterating):
        RankError: a rank died or sent nothing in time, or is at another step or in another run.
            Call `set_ranks`, and iterate once more.
    """

    _run: ElasticRun

    @explained
    def __init__(self, dataset: PackedDataset, *, step_batches: int, **options: Any) -> None:
        if not isinstance(dataset, PackedDataset) or dataset._config.packer._shares_batches:
            raise ConfigError(
                "dataset must be a PackedDataset, without Buckets(cp=...), got "
                f"{type_in_words(dataset)}.",
                "Pass PackedDataset(source, seq_len=..., lanes=...); rollouts have a loader.",
                setting="dataset",
            )
        refused = sorted({"ranks", "end", "rank_timeout_s"}.intersection(options))
        if refused:
            raise ConfigError(
                f"{refused[0]} must be left out, since the ranks of an elastic run are set later.",
                "Pass members with a time limit to set_ranks; runs drain.",
                setting=refused[0],
            )
        if count in dataset._config.on_take:
            raise ConfigError(
                "ledger must be left out, since a rank that is killed takes its counts along.",
                "Leave out ledger= of the dataset.",
                setting="ledger",
            )
        step_batches = whole_number("step_batches", step_batches)
        if not dataset._config.lanes and dataset._start is None:
            raise ConfigError(
                "lanes must be given to the dataset, since their number may not depend on the "
                "ranks that are there.",
                f"Pass PackedDataset(..., lanes={12 * step_batches}), or fewer for a small corpus.",
                setting="lanes",
            )
        super().__init__(_whole(dataset), **options)
        plan = ElasticPlan.of_run(self.dataset.plan, step_batches, Topology())
        self._run = ElasticRun(plan, self.dataset._begins(), resume=self._resumed)

    def set_ranks(
        self,
        rank: int | None,
        world_size: int,
        members: Members | None = None,
        *,
        at_step: int | None = None,
    ) -> None:
        """Set the ranks that take the batches from the next step on.

        Every member calls it when ranks come or go, between two steps or after an error, and may
        call it before every step. Nothing is exchanged before the next step is asked for. Then a
        member that has just started, or has missed steps, gets the states of all lanes from one
        that has them; and a lane that changes its rank rereads its window.

        Args:
            rank: rank of this process; None if it takes part in the exchanges but takes no batch,
                as a replica that torchft heals.
            world_size: number of ranks that take batches.
            members: connection of all members, `GroupMembers` or `StoreMembers`, made for this
                membership. None is enough for a single rank.
            at_step: step to continue with, the same on every member, as the loop counts steps that
                were trained: with torchft ``manager.current_step()``. If it is the step that was
                given last, its batches are repeated; `skip` then skips them. None continues
                behind that step.

        Raises:
            ConfigError: a number is invalid, or members are missing.
        """
        world_size = whole_number("world_size", world_size)
        if rank is not None:
            rank = whole_number("rank", rank, least=0, most=world_size - 1)
        if at_step is not None:
            at_step = whole_number("at_step", at_step, least=0)
        if members is None:
            if world_size > 1 or rank is None:
                raise ConfigError(
                    f"members must be given for {world_size} ranks, got None.",
                    "Pass GroupMembers(group), with a group of the processes that are alive.",
                    setting="members",
                )
            members = Single()
        if self._live is not None and self._live.is_interrupted:
            self._stop()  # the step that it holds was divided among the ranks of before
        self._run.set_members(Membership(rank, world_size, members), at_step)

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Resume from the state of the whole run; see `PackedLoader.load_state_dict`.

        The next `set_ranks` tells which step its loop counts there.
        """
        super().load_state_dict(state, allow=allow)

    def skip(self, batches: int) -> int:
        """Skip the next `batches` steps; they are recorded, and do not count for `at_step`.

        All ranks must call it at the same step.

        Returns:
            Number of skipped steps: fewer at the end of the run.
        """
        steps = whole_number("batches", batches, least=0)
        if self._finished:
            return 0
        live = self._live
        ahead = live if live is not None else self._open()
        run, skipped, first = self._run, 0, None
        while skipped < steps and ahead.get(1):
            first = run.state.next_batch if first is None else first
            for _ in ahead.get(len(run.coming.batches)):
                ahead.step_over()
            run.step, run._before = run.step - 1, None
            skipped += 1
        if first is not None:
            run.step_over(first)
        return skipped

    def accumulate(self, batches: int) -> NoReturn:
        """Raise `ConfigError`: every step is a group already."""
        raise ConfigError(
            "Steps are groups of batches already.",
            "Iterate the loader, and choose step_batches.",
            setting="batches",
        )

    def __iter__(self) -> Iterator[BatchGroup[Item]]:  # type: ignore[override]
        return self._iterate(self._steps)

    def _steps(self, ahead: Prefetcher) -> Generator[BatchGroup[Item], None, None]:
        """Yield the steps, each taken whole."""
        run = self._run
        while True:
            began = time.perf_counter()
            if not ahead.get(1):
                return
            coming = run.coming
            step = ahead.get(len(coming.batches))
            if (error := run.interruption()) is not None:
                ahead.is_interrupted = True
                raise error
            items = coming.num_loss_tokens / run.plan.members.world_size
            for batch in step:
                batch.num_items_in_batch = items
                batch._step_batches = len(step)
            counts = [batch.num_loss_tokens for batch in step]
            taken = [ahead.take() for _ in step]
            run.metrics.count_step(counts, items / len(counts))
            run.metrics.wait_s += time.perf_counter() - began
            yield BatchGroup(taken, coming.num_loss_tokens, self._transformed)

    def _resumed(self, state: Mapping[str, Any]) -> tuple[RunPlan, Any]:
        return resume_run(self.dataset._config, self.dataset.topology, state, ())


def _whole(dataset: PackedDataset) -> PackedDataset:
    """Return the dataset as a run of one rank, which has all lanes, at its state."""
    whole = dataset._alone()
    start = dataset._start
    if start is None:
        return whole
    plan = RunPlan.of(dataset.plan.config, Topology())
    lanes = {**start.others, **start.lanes}
    missing = sorted(set(range(plan.config.lanes)).difference(lanes))
    if missing:
        raise StateError(
            f"The state must have all lanes, and lacks {named(missing)}.",
            "Load the result of merge_states for the states of all ranks.",
        )
    ordered = {lane: lanes[lane] for lane in plan.topology.lanes(start.next_batch, len(lanes))}
    whole._continue_from(plan, replace(start, topology=Topology(), lanes=ordered, others={}))
    return whole
