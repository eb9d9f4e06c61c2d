"""Weights of a mixture that change while a run goes on: from which batch on, and which."""

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
    """The changes of a run with one more, in the place of another one at the same batch.

    Args:
        plan, state: of the run.
        weights: by name, of all sources.
        from_step: in which they begin to hold; None is the next one.
        taken: steps before it.

    Raises:
        ConfigError: see `PackedLoader.set_weights`.
    """
    mixture = plan.config.source
    if not isinstance(mixture, Mixture):
        raise ConfigError(
            f"The source is no mixture ({mixture.kind}).",
            "Begin the run with a sources.Mixture of what is to have weights.",
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
            f"weights is {weights!r:.80}.", "Pass a dict of numbers by name.", setting="weights"
        )
    ((_, exact),) = checked_weights(weights, list(mixture.sources))
    step = taken if from_step is None else whole_number("from_step", from_step, least=0)
    if step < taken:
        raise ConfigError(
            f"from_step is {step}, and {taken} steps are taken.",
            "Pass a later step; None is the next one.",
            setting="from_step",
        )
    by_name = dict(zip(mixture.sources, map(float, exact), strict=True))
    change = WeightChange(_batch_of_step(plan, state.next_batch, step, taken), by_name)
    others = [other for other in state.weight_changes if other.batch != change.batch]
    return tuple(sorted([*others, change], key=lambda change: change.batch))


def _batch_of_step(plan: RunPlan, batch: int, step: int, taken: int) -> int:
    """Number of the first batch of a step; `batch` is that of the next one, after those taken.

    Where ranks share batches, the steps of a turn of all lanes are alike: that of a turn.
    """
    config, ranks = plan.config, plan.topology.world_size
    if plan.groups is None or step == taken:
        return batch + (step - taken) * ranks
    turn = -(-batch // config.lanes)
    later = range(turn * config.lanes, (turn + step - taken + 1) * config.lanes, config.lanes)
    return later[bisect_left(later, step, key=lambda number: steps_before(plan, number))]


def steps_before(plan: RunPlan, batch: int) -> int:
    """Steps of ranks that share batches, before this one; inside a turn of the lanes, about."""
    config = plan.config
    share = config.packer.batch_share(batch // config.lanes, schedule_seed=config.seed)
    return round(batch / plan.topology.world_size * share)
