"""Changes of a mixture's weights during a run, each from a given batch on.

A change reaches the lanes in one of two ways, with the same batches. If no lane of any rank can
have begun its batch, lanes read it from the `WeightChannel` before they do. Otherwise the lanes are
reopened at the place of the loop. Which of the two follows from the step of the call, the size
of the loop's groups and the numbers of lanes and ranks, so all ranks do the same.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streampack.arguments import whole_number
from streampack.errors import ConfigError
from streampack.mixtures.source import Mixture
from streampack.mixtures.token_shares import (
    MEAN_TURNS,
    WEIGHTS,
    WeightChange,
    Weights,
    checked_weights,
)
from streampack.mixtures.weight_channel import AHEAD_TURNS, WeightChannel
from streampack.run.rank import RankRun

if TYPE_CHECKING:
    from streampack.loader import PackedLoader

#: Turns of all lanes between the next batch of the loop and the first one with new weights. A loop
#: that takes single batches has asked for at most 3 steps and 2 turns more, and rounds begin less
#: than `AHEAD_TURNS` turns later.
LEAD_TURNS = AHEAD_TURNS + 6


def set_weights(loader: PackedLoader[Any], weights: Weights, from_step: int | None) -> None:
    """Add a change of weights to a run, which replaces a change at the same batch.

    Args:
        loader: loader of the run.
        weights: weights of all sources by name.
        from_step: first step with the new weights; None is the first that no lane has begun.

    Raises:
        ConfigError: see `PackedLoader.set_weights`.
    """
    run, live = loader._run, loader._live
    plan, state = run.plan, run.state
    mixture = plan.config.source
    if not isinstance(mixture, Mixture):
        raise ConfigError(
            f"The source must be a sources.Mixture, got {mixture._kind}.",
            "Begin the run with a sources.Mixture of the sources that need weights.",
            setting="source",
        )
    if not isinstance(weights, Mapping):
        raise ConfigError(
            f"weights must be a dict of numbers by name, got {weights!r:.80}.",
            "Pass one weight for every source.",
            setting="weights",
        )
    ((_, exact),) = checked_weights(weights, list(mixture.sources))
    first = _first_batch(run, from_step)
    change = WeightChange(first, dict(zip(mixture.sources, map(float, exact), strict=True)))
    oldest = run.oldest - MEAN_TURNS * plan.config.lanes
    changes = _with(state.beside.get(WEIGHTS, ()), change, oldest)
    values = {**state.beside, WEIGHTS: changes}
    run.change(values, change)
    if live is None:
        return
    channel = run.kept.get("beside")
    told = loader._trains or run.num_ranks == 1  # otherwise only an opening compares the ranks
    if told and first >= _reach(run, len(live._got)) and isinstance(channel, WeightChannel):
        channel.announce(changes)
    else:
        run._untaken.clear()
        live.continue_from(loader._batches())


def _first_batch(run: RankRun, from_step: int | None) -> int:
    """Return the index of the first batch with the new weights."""
    taken, following = run.steps_taken, run.state.next_batch
    if from_step is None:
        return following + LEAD_TURNS * run.plan.config.lanes
    step = whole_number("from_step", from_step, least=0)
    if step < taken:
        raise ConfigError(
            f"from_step must be at least {taken}, the steps taken, got {step}.",
            "Pass a later step; None is the first one that no lane has begun.",
            setting="from_step",
        )
    return run.plan.batch_after(following, step - taken)


def _reach(run: RankRun, ahead: int) -> int:
    """Return a batch above all at which a lane of any rank can have begun a round.

    Args:
        run: run of a rank.
        ahead: batches that the loop has got and not taken.
    """
    plan = run.plan
    turn = max(plan.config.lanes, plan.topology.world_size)
    return plan.batch_after(run.state.next_batch, max(ahead, 1) + 2) + (AHEAD_TURNS + 2) * turn


def _with(saved: Sequence[list[Any]], change: WeightChange, oldest: int) -> list[list[Any]]:
    """Return the changes of a state with one more, which replaces one at the same batch.

    Those after batch `oldest` are kept, and the one in force there.
    """
    at = bisect_left(saved, change.batch, key=_batch_of)
    later = saved[at:]
    if later and later[0][0] == change.batch:
        later = later[1:]
    changes = [*saved[:at], [*change], *later]
    return changes[max(bisect_right(changes, oldest, key=_batch_of) - 1, 0) :]


def _batch_of(change: Sequence[Any]) -> int:
    batch: int = change[0]
    return batch
