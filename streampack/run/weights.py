"""Changes of a mixture's weights during a run, each from a given batch on."""

from __future__ import annotations

from collections.abc import Mapping

from streampack.arguments import whole_number
from streampack.errors import ConfigError
from streampack.run.rank import RankRun
from streampack.sources.mixture import Mixture
from streampack.sources.token_shares import (
    WEIGHTS,
    WeightChange,
    Weights,
    changes_of,
    checked_weights,
)


def set_weights(run: RankRun, weights: Weights, from_step: int | None) -> None:
    """Add a change of weights to a run, which replaces a change at the same batch.

    Args:
        run: the run of this rank.
        weights: weights of all sources by name.
        from_step: first step with the new weights; None is the next one.

    Raises:
        ConfigError: see `PackedLoader.set_weights`.
    """
    plan, state, taken = run.plan, run.state, run.steps_taken
    mixture = plan.config.source
    if not isinstance(mixture, Mixture):
        raise ConfigError(
            f"The source must be a sources.Mixture, got {mixture.kind}.",
            "Begin the run with a sources.Mixture of the sources that need weights.",
            setting="source",
        )
    if plan.config.order is not None:
        raise ConfigError(
            "Weights cannot change in a run with an order, which reads far ahead of its batches.",
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
    first = plan.batch_after(state.next_batch, step - taken)
    changes = [change for change in changes_of(state.beside) if change.batch != first]
    changes.append(WeightChange(first, by_name))
    changes.sort(key=lambda change: change.batch)
    run.change({**state.beside, WEIGHTS: [[batch, weights] for batch, weights in changes]})
