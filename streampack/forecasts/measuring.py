"""Measurements of a packer or a balance on a sample, before a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import NO_FIELDS, Fields
from streampack.errors import ConfigError
from streampack.forecasts.dry_run import stream_plan
from streampack.forecasts.sampling import sample
from streampack.lane.config import LaneConfig
from streampack.limits.balancing import Balance
from streampack.packing import Packer
from streampack.packing.packer import is_unmeasured, row_limits
from streampack.packing.rng import permutation
from streampack.window.config import WindowConfig

SHARES_DOCUMENTS = 8192  # half as many gave up to 3.4 % other documents per row (docs/papers.md)
BALANCE_WINDOWS = 3  # windows of rows packed from a sample to measure the cost of rows
BALANCE_ORDERS = 64  # maximum packings of the sample for that measurement


def measured(config: LaneConfig, saved: Mapping[str, Any] | None = None) -> LaneConfig:
    """Return `config` with the measurements that its packer and balance need, from a sample.

    Args:
        config: configuration of the run.
        saved: fingerprint of the state that the run resumes from, with its measurements.

    Raises:
        ConfigError: the source can be read only once, so a sample would be lost to the run.
    """
    if saved is not None:
        config = as_measured(config, saved)
    if is_unmeasured(config.packer):
        lengths = sample(config, documents=SHARES_DOCUMENTS).lengths
        config = replace(config, packer=config.packer.with_sample(lengths))
    if not is_unmeasured(config.choice):
        return config
    if config.source.once:
        raise ConfigError(
            "A balance measures row costs on a sample, but the source can be read only once.",
            "Leave out choice=, or pass a source that can be read again.",
            setting="choice",
        )
    sampled = sample(config)
    balance = measure_balance(
        sampled.lengths,
        config.packer,
        config.window,
        batch_tokens=config.batch_tokens,
        weights=sampled.weights,
    )
    return replace(config, choice=balance)


def as_measured(config: LaneConfig, saved: Mapping[str, Any]) -> LaneConfig:
    """Return `config` with the measurements of a saved fingerprint, as far as they apply.

    A packer's measurement applies to rows of the same lengths, costs of rows to the same longest.
    """
    packer, balance = cast(Any, config.packer), saved["balance"]
    value = saved["packer"].get(packer.measures)
    same_rows = saved["packer"].get("seq_lens") == list(packer.seq_lens)
    if is_unmeasured(packer) and isinstance(value, list) and same_rows:
        packer = replace(packer, **{packer.measures: tuple(value)})
        config = replace(config, packer=packer)
    current = config.choice.describe()
    if current is None or balance is None or balance["kind"] != current["kind"]:
        return config
    if saved["packer"].get("seq_len") != packer.seq_lens[-1]:
        return config
    return replace(config, choice=Balance.from_description(balance))


def measure_balance(
    lengths: NDArray[np.int64],
    packer: Packer,
    window: WindowConfig,
    *,
    batch_tokens: int,
    weights: Fields = NO_FIELDS,
) -> Balance:
    """Return the schedule of the packer's row costs, from sampled document lengths and weights.

    The sample is packed as a lane packs it without a balance, several times in random orders,
    because one pass would fill only a few long rows. `window` must be resolved.
    """
    balance = packer.choice if isinstance(packer.choice, Balance) else Balance()
    window_tokens = window.tokens(packer)
    held = lengths > 0
    lengths = lengths[held]
    total = max(int(np.minimum(lengths, window_tokens).sum()), 1)
    orders = min(-(-BALANCE_WINDOWS * window_tokens // total), BALANCE_ORDERS)
    stream = np.concatenate([permutation(len(lengths), order) for order in range(orders)])
    weights = {name: values[held][stream] for name, values in weights.items()}
    plan = stream_plan(lengths[stream], packer, window, batch_tokens=batch_tokens, weights=weights)
    if not plan.num_rows:
        return replace(balance, quantiles=(0,))
    costs = balance.costs(plan, weights)
    loads = row_limits(packer).loads(plan, weights)
    full = (loads if len(loads) else plan.row_fill()) >= window.min_fill * plan.seq_len
    return balance.measured(costs[full] if balance.full_rows and full.any() else costs)
