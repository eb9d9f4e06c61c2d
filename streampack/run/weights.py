"""Changes of a mixture's weights during a run, each from a given batch on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from streampack.arguments import whole_number
from streampack.errors import ConfigError
from streampack.run.plan import RunPlan
from streampack.run.state import RunState
from streampack.sources.credits import WeightChange, Weights, checked_weights
from streampack.sources.mixture import Mixture


def with_weights(
    plan: RunPlan, state: RunState, weights: Weights, from_step: int | None, *, taken: int
) -> tuple[WeightChange, ...]:
    """Return the weight changes of a run plus one, which replaces a change at the same batch.

    Args:
        plan, state: plan and state of the run.
        weights: weights of all sources by name.
        from_step: first step with the new weights; None is the next one.
        taken: number of steps taken.

    Raises:
        ConfigError: see `PackedLoader.set_weights`.
    """
    mixture = plan.config.source
    if not isinstance(mixture, Mixture):
        raise ConfigError(
            f"The source must be a sources.Mixture, got {mixture.kind}.",
            "Begin the run with a sources.Mixture of the sources that need weights.",
            setting="source",
        )
    if plan.config.order is not None:
        raise ConfigError(
            "The run has an order, which reads far ahead of its batches.",
            "Leave out order=, or give the Mixture its phases as weights.",
            setting="order",
        )
    if not isinstance(weights, Mapping):
        raise ConfigError(
            f"weights must be a dict of numbers by name, got {weights!r:.80}.",
            "Pass one weight for every source.",
            setting="weights",
        )
    ((_, exact),) = checked_weights(weights, list(mixture.sources))
    step = taken if from_step is None else whole_number("from_step", from_step, least=0)
    if step < taken:
        raise ConfigError(
            f"from_step must be at least {taken}, the steps taken, got {step}.",
            "Pass a later step; None is the next one.",
            setting="from_step",
        )
    by_name = dict(zip(mixture.sources, map(float, exact), strict=True))
    change = WeightChange(_batch_of_step(plan, state.next_batch, step, taken), by_name)
    others = [other for other in state.weight_changes if other.batch != change.batch]
    return tuple(sorted([*others, change], key=lambda change: change.batch))


def _batch_of_step(plan: RunPlan, batch: int, step: int, taken: int) -> int:
    """Return the index of the first batch of a step; `batch` is the next index after `taken` steps.

    If ranks share batches, steps are alike within a turn of all lanes, so the turn's index is used.
    """
    config, ranks = plan.config, plan.topology.world_size
    if plan.groups is None or step == taken:
        return batch + (step - taken) * ranks
    turn = -(-batch // config.lanes)
    later = range(turn * config.lanes, (turn + step - taken + 1) * config.lanes, config.lanes)
    return later[bisect_left(later, step, key=lambda number: steps_before(plan, number))]


def steps_before(plan: RunPlan, batch: int) -> int:
    """Return the steps before a batch of shared batches; approximate inside a turn of lanes."""
    config = plan.config
    share = config.packer.batch_share(batch // config.lanes, schedule_seed=config.seed)
    return round(batch / plan.topology.world_size * share)
